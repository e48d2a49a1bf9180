"""The `once` command line."""
