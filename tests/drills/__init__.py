"""Drills: real faults on the real local stack, and what must be seen of them."""
