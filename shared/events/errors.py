"""Errors of the events themselves. Pure."""


class InternalInputError(Exception):
    """A record written by one of the services is not what its reader was promised: a defect, and fatal.

    Only ingest meets bad records from outside; what it lets through, the others can always process.
    """
