"""Writing records that are missing: `once repair`."""
