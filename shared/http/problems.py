"""Bodies of refusals. Pure.

Invariant: a refusal has `error` and `detail` on every path; on /v1 it is a problem of RFC 9457 as well.
"""

from typing import Final

import msgspec

PROBLEM: Final = "application/problem+json"


class Refused(msgspec.Struct, frozen=True):
    """Why the request was refused, and what to send instead.

    Attributes:
        error: for machines.
        detail: for people: what to change, or when to send it again.
    """

    error: str
    detail: str


class Problem(msgspec.Struct, frozen=True):
    """Why the request was refused, as in RFC 9457.

    Attributes:
        type: identifies the kind of problem; a URN that ends with `error`.
        title: the same for people.
        status: of HTTP.
        detail: for people: what to change, or when to send it again.
        error: for machines, as the paths outside of /v1 have it.
    """

    type: str
    title: str
    status: int
    detail: str
    error: str


def problem(status: int, error: str, detail: str) -> Problem:
    return Problem(f"urn:once:{error}", error.replace("_", " ").capitalize(), status, detail, error)
