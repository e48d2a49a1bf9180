"""The exactly-once runtime without I/O: states, errors, stores, offsets, crash points. Knows no client library."""
