"""The read side's API over real HTTP, on SQLite and on PostgreSQL, with rows of the real ledger's postings."""
