"""The data pipeline: topics landed as tables, totals of the ledger, and the reconciliation."""
