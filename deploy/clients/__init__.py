"""Clients of the gateway: the file of their keys, and the audit of both."""
