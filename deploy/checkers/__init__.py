"""The proof: invariants I1 to I9 checked over the committed records. Pure; knows the events, no service."""
