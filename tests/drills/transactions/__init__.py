"""Faults of a transaction's requests, against four programs that do the same hop exactly once."""
