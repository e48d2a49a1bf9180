"""The lineage of a payment: its records, across all topics."""
