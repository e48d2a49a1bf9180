"""The demonstration: real transactions through real services under faults, then the verdict."""
