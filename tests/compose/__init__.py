"""`make compose-verify`: the containers on a real engine, loaded under faults, and judged."""
