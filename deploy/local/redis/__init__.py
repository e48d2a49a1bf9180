"""A real Redis on this machine, and its exporter."""
