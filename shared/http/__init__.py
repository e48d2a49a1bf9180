"""Shared parts of services' HTTP interfaces: OpenAPI documents, their HTML page, and responses."""
