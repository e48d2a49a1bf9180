"""Errors of the events themselves. Pure."""


class InternalInputError(Exception):
    """A record written by one of the services breaks the schema or an invariant: a defect, and fatal.

    Only ingest receives bad records from outside. The other services can process everything that it accepts.
    """
