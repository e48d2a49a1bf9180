"""Receivers for the outbox's tests: real servers that keep a log, and fail on demand."""
