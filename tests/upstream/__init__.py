"""Programs that reproduce defects of the brokers for docs/upstream.md. Each runs a cluster of its own."""
