"""What the claims are asked and answer, and what Redis remembers of an effect that is decided. Pure.

A mark holds what an EffectResult holds, but for the request, in a few bytes: there is one for every effect of the
retention.

What may have been called with Redis alone knowing of it, by owners before or in a transaction that aborted. Pure.

Until an owner has worked through that, a loss of Redis makes it doubtful. What it calls itself, it knows by itself.
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
    """What became of an effect.

    Attributes:
        state: an EffectState.
        at_ms: when it was decided, milliseconds since 1970 UTC.
        attempts, revision, resends: as in EffectResult.
        reason, detail: as in EffectResult, but printable, without `|` and of at most TEXT_CHARS_MAX characters each.
    """

    state: str
    at_ms: int
    attempts: int
    revision: int
    resends: int
    reason: str = ""
    detail: str = ""


class Mode(Enum):
    """How a predecessor's claim is treated while its lease has not ended."""

    KEYED = "keyed"
    """It is taken over at once: the destination knows the effect's id, so a second call does no harm."""
    KEYLESS = "keyless"
    """A call is begun first, see `Claims.begin`. A begun one is held: it may still be under way."""


class Wanted(NamedTuple):
    """An effect to be claimed.

    Attributes:
        effect_id: which.
        mode: see Mode.
        reopen_revision: of the result that a person decided to make the effect again from; 0 is none. A mark `failed`
            or `in_doubt` of exactly this revision is claimed anew. To be given at each later try of it as well.
        resends: of the effect so far, as far as Kafka knows.
        resend_if_new, resend_if_again: whether a call under a new claim, or a retaken or reopened one, is one more.
        void: the holder whose claim, if it is still there, stands for no call; empty for none.
    """

    effect_id: str
    mode: Mode
    reopen_revision: int = 0
    resends: int = 0
    resend_if_new: bool = False
    resend_if_again: bool = False
    void: str = ""


class Status(Enum):
    """What came of a claim. NEW, RETAKEN and REOPENED are claims given."""

    NEW = "new"
    """Nobody had it, or, where calls are begun first, nobody who has begun one."""
    RETAKEN = "retaken"
    """It was claimed and not marked, by a predecessor or by this owner: a call may have been made."""
    HELD = "held"
    """A predecessor has it, and its lease has not ended."""
    KNOWN = "known"
    """It is marked."""
    REOPENED = "reopened"
    """It was marked, and a person decided to make it again."""


class Claim(NamedTuple):
    """What came of a claim.

    Attributes:
        status: see Status.
        lease_left_ms: of one that is held.
        mark: of one that is known; of one that is reopened, the mark that it had.
        resends: of one that is retaken, those that its owners may have made, whether or not they lived to commit them.
    """

    status: Status
    lease_left_ms: int = 0
    mark: Mark | None = None
    resends: int = 0


def encode_mark(mark: Mark) -> bytes:
    """The string `<s, f or d>|<at_ms>|<attempts>|<revision>|<resends>|<reason>|<detail>`, empty ends left out.

    Reason and detail are made to fit: see `Mark`.

    Raises:
        ValueError: the state is no EffectState, or a number is negative.
    """
    numbers = (mark.at_ms, mark.attempts, mark.revision, mark.resends)
    if mark.state not in _CODES or min(numbers) < 0:
        raise ValueError(f"a mark has a known state and no negative number, not {mark.state!r} with {numbers}")
    fields = [_CODES[mark.state], *map(str, numbers), _fitted(mark.reason), _fitted(mark.detail)]
    while not fields[-1]:
        fields.pop()
    return _SEPARATOR.join(fields).encode()


def decode_mark(value: bytes) -> Mark:
    """The mark of such a string.

    Raises:
        ValueError: it is none; somebody else wrote it.
    """
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
    """The mark of a result.

    What the destination of a sent effect said is left out: nobody has to decide on it, and nearly all marks are such.
    """
    sent = result.state == EffectState.SENT
    return Mark(
        state=result.state,
        at_ms=result.at_ms,
        attempts=result.attempts,
        revision=result.revision,
        resends=result.resends,
        reason="" if sent else _fitted(result.reason),
        detail="" if sent else _fitted(result.detail),
    )


def result_of(effect_id: str, mark: Mark, request: EffectRequest) -> EffectResult:
    """The result of a mark: what its owner would have written, had it lived to commit it.

    Args:
        effect_id: the effect's.
        mark: of this effect.
        request: the effect; in the result only while a person may have to decide on it.
    """
    return EffectResult(
        effect_id=effect_id,
        state=mark.state,
        at_ms=mark.at_ms,
        attempts=mark.attempts,
        revision=mark.revision,
        resends=mark.resends,
        reason=mark.reason,
        detail=mark.detail,
        request=None if mark.state == EffectState.SENT else request,
    )


def _fitted(text: str) -> str:
    text = text[:TEXT_CHARS_MAX]
    if text.isprintable() and _SEPARATOR not in text:
        return text
    return "".join(char if char.isprintable() else " " for char in text).replace(_SEPARATOR, "/")


@dataclass(frozen=True, slots=True)
class Risk:
    """Some of the requests from the committed offset on, and some of the waiting effects.

    Attributes:
        left: how many requests at most.
        until: the offset that they are below.
        waiting: the waiting effects, by id.
    """

    left: int = 0
    until: int = 0
    waiting: frozenset[str] = frozenset()

    def joined(self, left: int, until: int, waiting: Collection[str]) -> "Risk":
        """With what a transaction that aborted had called; arguments as the attributes."""
        return Risk(max(self.left, left), max(self.until, until), self.waiting | frozenset(waiting))

    def passed(self, requests: int, next_offset: int, settled: Collection[str], put_off: Collection[str]) -> "Risk":
        """After a transaction.

        Args:
            requests: how many it passed.
            next_offset: the offset that it committed.
            settled: the effects of it that were claimed: Kafka knows of their doubts from here on.
            put_off: of the requests that were at risk, those that were not even claimed, and wait now.
        """
        waiting = (self.waiting - frozenset(settled)) | frozenset(put_off)
        return Risk(left_of(self.left, self.until, requests, next_offset), self.until, waiting)


def left_of(left: int, until: int, passed: int, next_offset: int) -> int:
    """How many requests below an offset are left when some were passed and `next_offset` is committed."""
    return 0 if next_offset >= until else max(left - passed, 0)
