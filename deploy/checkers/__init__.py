"""The proof: invariants I1 to I9 and I11 checked over the committed records. Pure; knows the events, no service."""
