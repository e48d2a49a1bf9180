"""The exactly-once runtime's pure half: states, errors, stores, offsets, crash points. Knows no client library."""
