"""ingest: decides of each raw record whether it is accepted, a repeat, or refused."""
