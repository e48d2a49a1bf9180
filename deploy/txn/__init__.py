"""`once txn`: transactions listed, hanging ones found and aborted, one traced."""
