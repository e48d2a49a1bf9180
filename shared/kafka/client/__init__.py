"""Connections to brokers: requests, reading, idempotent writing, errors as classified."""
