"""Faults, one module for each family. Each is injected with evidence, and healed."""
