"""Connections to brokers: requests, reads, idempotent writes, and classified errors."""
