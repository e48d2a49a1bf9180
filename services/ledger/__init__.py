"""ledger: double-entry postings in two legs."""
