"""Outcomes of a call to the outside, what a sink is, and what an HTTP answer to a webhook means. Pure.

Invariant: Retriable and Refused mean that this call certainly made no effect. Every other call without an acceptance is
Unknown, and its effect never ends as failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Final, Protocol, Self, get_args

from shared.events.effects import EffectRequest


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination accepted it, now or at an earlier call with the same key."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Retriable:
    """The destination certainly did not accept it, and may do so later."""

    detail: str
    retry_after_s: float | None = None  # the pause that the destination asked for, in seconds


@dataclass(frozen=True, slots=True)
class Refused:
    """The destination will never accept it as it is."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The call may have been accepted: its answer was lost, did not come in time, or does not say."""

    detail: str
    retry_after_s: float | None = None  # as in Retriable


Outcome = Delivered | Retriable | Refused | Unknown
OUTCOME_NAMES: Final[Mapping[type[Outcome], str]] = {kind: kind.__name__.lower() for kind in get_args(Outcome)}


class Sink(Protocol):
    """A way to the outside. Open it as an async context manager."""

    @property
    def takes_keys(self) -> bool:
        """Whether the destination recognises an effect by its id, so that a second call makes no second effect."""

    @property
    def calls_max(self) -> int:
        """How many calls it makes at once; more would wait within it."""

    async def deliver(self, request: EffectRequest) -> Outcome:
        """Make one call. Bounded in time; raises nothing that the outside could cause."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


RETRY_AFTER_MAX_S = 3600.0  # a destination may not ask for more: retries must fit into their deadline
DETAIL_MAX_CHARS = 200

_NOT_PROCESSED = frozenset({425, 429})
_SAYS_NOTHING = frozenset({302, 303, 408, 409})
_DELAY_DIGITS_MAX = 9


def judge(status: int, reason: str, retry_after: str | None, body: bytes, now_s: float) -> Outcome:
    """Judge an answer. A call without an answer is judged where it failed.

    - 425 (RFC 8470) and 429 (RFC 6585) say that the request was not processed: Retriable.
    - Other 3xx and 4xx refuse it: Refused.
    - 303 is Unknown. By RFC 9110 it leads to the answer to a request that was processed, whatever that answer is. 302
      is used like it: many frameworks answer so by default once they have processed a POST.
    - 408 is Unknown. By RFC 9110 no complete request arrived, but proxies give it when a server is slow.
    - 409 is Unknown. A receiver of keys answers so while a call with the same key is under way, which may succeed.
    - 5xx is Unknown. A server may fail after it has stored the effect. A proxy gives 502 and 504, and some give 503,
      when it lost its connection to a server that has the request. So RFC 9110's definition of 503 is no evidence.
    - A status that HTTP does not define, or 101, which was not asked for, is Unknown.

    Args:
        retry_after: the header, as received.
        body: the beginning of the body.
        now_s: seconds since 1970 UTC.
    """
    if 200 <= status < 300:
        return Delivered(f"{status} {printable(reason)}".rstrip())
    detail = f"{status} {printable(reason)}".rstrip()
    said = printable(body.decode("utf-8", "replace"))
    if said:
        detail = f"{detail}: {said}"
    if 300 <= status < 400:
        detail += " (redirects are not followed: subscribe the new URL)"
    pause_s = parse_retry_after(retry_after, now_s)
    if status in _NOT_PROCESSED:
        return Retriable(detail, pause_s)
    if status in _SAYS_NOTHING or not 300 <= status < 500:
        return Unknown(detail, pause_s)
    return Refused(detail)


def parse_retry_after(value: str | None, now_s: float) -> float | None:
    """The seconds that a Retry-After header asks for, RETRY_AFTER_MAX_S at most (RFC 9110, section 10.2.3).

    The header is a number of seconds, or a date, for which `now_s` is seconds since 1970 UTC. Anything else gives None.
    """
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return RETRY_AFTER_MAX_S if len(text) > _DELAY_DIGITS_MAX else min(float(text), RETRY_AFTER_MAX_S)
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    delay_s = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now_s
    return min(delay_s, RETRY_AFTER_MAX_S) if delay_s >= 0 else None


def printable(text: str) -> str:
    """At most DETAIL_MAX_CHARS characters of a text, on one line, with a space for each that cannot be printed."""
    cut = text[: 2 * DETAIL_MAX_CHARS]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else " " for char in cut)
    return " ".join(cut.split())[:DETAIL_MAX_CHARS]
