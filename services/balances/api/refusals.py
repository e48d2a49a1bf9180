"""What the read side refuses, and what it says then. Pure.

What holds: every refusal says what to change, and where the view was looked into, as of when.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from services.balances.projection.progress import Position


class Refusal(StrEnum):
    """Why a request was refused."""

    PARAMETER_UNKNOWN = "parameter_unknown"
    PARAMETER_INVALID = "parameter_invalid"
    ACCOUNT_INVALID = "account_invalid"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BUSY = "busy"
    VIEW_UNAVAILABLE = "view_unavailable"
    KAFKA_UNAVAILABLE = "kafka_unavailable"
    NOT_REACHED = "not_reached"


STATUS: Mapping[Refusal, int] = {
    Refusal.PARAMETER_UNKNOWN: 400,
    Refusal.PARAMETER_INVALID: 400,
    Refusal.ACCOUNT_INVALID: 400,
    Refusal.NOT_FOUND: 404,
    Refusal.METHOD_NOT_ALLOWED: 405,
    Refusal.BUSY: 503,
    Refusal.VIEW_UNAVAILABLE: 503,
    Refusal.KAFKA_UNAVAILABLE: 503,
    Refusal.NOT_REACHED: 504,
}
"""HTTP status by reason."""


class Refused(msgspec.Struct, frozen=True):
    """Why the request was refused, and what to do instead.

    Attributes:
        error: for machines.
        detail: for people: what to change, or when to ask again.
        as_of: how far the view had read when it looked; empty where it did not look.
    """

    error: str
    detail: str
    as_of: tuple[Position, ...] = ()


class RefusedError(Exception):
    """A request that gets no 200.

    Attributes:
        status: of HTTP.
        body: what the answer says.
    """

    def __init__(self, reason: Refusal, detail: str, as_of: tuple[Position, ...] = ()) -> None:
        super().__init__(f"{reason}: {detail}")
        self.status = STATUS[reason]
        self.body = Refused(reason.value, detail, as_of)
