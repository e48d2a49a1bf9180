"""The exactly-once runtime: group membership, partitions, transactions, state."""
