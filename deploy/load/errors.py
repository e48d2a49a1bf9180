"""Errors of loading a file."""


class LoadError(Exception):
    """A file cannot be loaded; the message says what to change."""
