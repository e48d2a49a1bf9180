"""Claims and marks of effects as Redis holds them, and the effects that are at risk if Redis is lost. Pure.

A mark holds what an EffectResult holds, except the request, in a few bytes: Redis has one for every effect of the
retention.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from shared.events.effects import EffectRequest, EffectResult, EffectState

TEXT_CHARS_MAX = 200
_SEPARATOR = "|"
_FIELDS = 7
_FIELDS_MIN = 5
_CODES = {EffectState.SENT.value: "s", EffectState.FAILED.value: "f", EffectState.IN_DOUBT.value: "d"}
_STATES = {code: state for state, code in _CODES.items()}


class Mark(NamedTuple):
    """An effect's result, as in EffectResult.

    Reason and detail are printable, without `|`, and of at most TEXT_CHARS_MAX characters each.
    """

    state: str  # an EffectState
    at_ms: int  # when it was decided, milliseconds since 1970 UTC
    attempts: int
    revision: int
    resends: int
    reason: str = ""
    detail: str = ""


class Mode(Enum):
    """How a predecessor's claim is treated while its lease has not ended."""

    KEYED = "keyed"  # taken over at once: the destination knows the effect's id, so a second call does no harm
    KEYLESS = "keyless"  # a call is begun first, see `Claims.begin`; one that was begun is held: it may be under way


class Wanted(NamedTuple):
    """An effect to be claimed."""

    effect_id: str
    mode: Mode
    # Of the result that a person's decision reopens; 0 for none. A mark `failed` or `in_doubt` of exactly this revision
    # can be claimed again. Give it at each later try as well
    reopen_revision: int = 0
    resends: int = 0  # so far, as far as Kafka knows
    resend_if_new: bool = False  # whether a call under a new claim is one more
    resend_if_again: bool = False  # the same for a retaken or reopened claim
    void: str = ""  # the holder whose claim, if it is still there, stands for no call; empty for none


class Status(Enum):
    """The answer to a request for a claim. NEW, RETAKEN and REOPENED are claims given."""

    NEW = "new"  # it was not claimed; or, where calls are begun first, none was begun
    RETAKEN = "retaken"  # claimed and not marked, by a predecessor or by this owner: a call may have been made
    HELD = "held"  # a predecessor has it, and its lease has not ended
    KNOWN = "known"  # it is marked
    REOPENED = "reopened"  # it was marked, and a person decided to make it again


class Claim(NamedTuple):
    """The answer for one effect."""

    status: Status
    lease_left_ms: int = 0  # if it is held
    mark: Mark | None = None  # if it is known; if it is reopened, the mark that it had
    resends: int = 0  # if it is retaken: those that its owners may have made, committed or not


def encode_mark(mark: Mark) -> bytes:
    """Encode `<s, f or d>|<at_ms>|<attempts>|<revision>|<resends>|<reason>|<detail>`, without empty ends.

    Reason and detail are made to fit, see `Mark`. Raises ValueError for an unknown state or a negative number.
    """
    numbers = (mark.at_ms, mark.attempts, mark.revision, mark.resends)
    if mark.state not in _CODES or min(numbers) < 0:
        raise ValueError(f"a mark has a known state and no negative number, not {mark.state!r} with {numbers}")
    fields = [_CODES[mark.state], *map(str, numbers), _fitted(mark.reason), _fitted(mark.detail)]
    while not fields[-1]:
        fields.pop()
    return _SEPARATOR.join(fields).encode()


def decode_mark(value: bytes) -> Mark:
    """Decode a mark; ValueError if it is none, written by another program."""
    fields = value.decode().split(_SEPARATOR)
    if not _FIELDS_MIN <= len(fields) <= _FIELDS or fields[0] not in _STATES:
        raise ValueError(f"no mark of an effect: {value[:40]!r}")
    reason, detail = [*fields[_FIELDS_MIN:], "", ""][:2]
    numbers = fields[1:_FIELDS_MIN]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise ValueError(f"no mark of an effect: {value[:40]!r} has a number that is none")
    at_ms, attempts, revision, resends = map(int, numbers)
    return Mark(_STATES[fields[0]], at_ms, attempts, revision, resends, reason, detail)


def mark_of(result: EffectResult) -> Mark:
    """The mark of a result. If it was sent, as most are, the destination's answer is left out: no decision needs it."""
    mark = Mark(result.state, result.at_ms, result.attempts, result.revision, result.resends)
    if result.state == EffectState.SENT:
        return mark
    return mark._replace(reason=_fitted(result.reason), detail=_fitted(result.detail))


def result_of(effect_id: str, mark: Mark, request: EffectRequest) -> EffectResult:
    """The result that the mark's owner would have written, had it lived to commit it.

    The request is a part of it only while a person may have to decide on the effect.
    """
    return EffectResult(effect_id, *mark, None if mark.state == EffectState.SENT else request)


def _fitted(text: str) -> str:
    text = text[:TEXT_CHARS_MAX]
    if text.isprintable() and _SEPARATOR not in text:
        return text
    return "".join(char if char.isprintable() else " " for char in text).replace(_SEPARATOR, "/")


@dataclass(frozen=True, slots=True)
class Risk:
    """Effects that may have been called with Redis alone knowing of it, by earlier owners or in an aborted transaction.

    Until an owner has worked through them, a loss of Redis makes them doubtful. It knows itself what it calls itself.
    """

    left: int = 0  # at most so many of the requests from the committed offset on
    until: int = 0  # the offset that they are below
    waiting: frozenset[str] = frozenset()  # ids of waiting effects

    def joined(self, left: int, until: int, waiting: Collection[str]) -> "Risk":
        """Add what a transaction that aborted had called."""
        return Risk(max(self.left, left), max(self.until, until), self.waiting | frozenset(waiting))

    def passed(self, requests: int, next_offset: int, settled: Collection[str], put_off: Collection[str]) -> "Risk":
        """What is left after a transaction that passed so many requests and committed `next_offset`.

        Args:
            settled: its effects that were claimed: Kafka knows of their doubts from here on.
            put_off: of its requests at risk, those that were not even claimed, and wait now.
        """
        waiting = (self.waiting - frozenset(settled)) | frozenset(put_off)
        return Risk(left_of(self.left, self.until, requests, next_offset), self.until, waiting)


def left_of(left: int, until: int, passed: int, next_offset: int) -> int:
    """How many requests below an offset are left when some were passed and `next_offset` is committed."""
    return 0 if next_offset >= until else max(left - passed, 0)
