"""monitor: exports cluster state that no service can observe."""
