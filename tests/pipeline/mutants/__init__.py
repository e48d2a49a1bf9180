"""The checks of the reconciliation, broken on purpose: for each way, one of their tests must fail."""
