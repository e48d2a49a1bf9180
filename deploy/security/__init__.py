"""Identities of the cluster: the principals, an authority of the stack's own, and their certificates."""
