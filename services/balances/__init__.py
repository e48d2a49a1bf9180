"""The read side: a Faust view of ledger.postings in a database, and a page that shows the system at work."""
