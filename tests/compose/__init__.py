"""`make compose-verify`: the deployment brought up on a real engine, loaded under faults, and judged."""
