"""The trace of one transaction, from the requests on the wire to the records in the logs."""
