"""A real Redis on this machine."""
