"""Drills: real faults on the real local stack, and the alerts that must show them."""
