"""What became of a payment: its records, across all topics."""
