"""The view as its database has it: postings folded, page by page, exactly once."""
