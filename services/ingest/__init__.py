"""ingest: accepts, deduplicates or refuses each raw record."""
