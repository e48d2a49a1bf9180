"""monitor: asks the cluster what no service can tell of itself."""
