"""Claims and marks of effects as Redis holds them, their keys, and the effects at risk if Redis is lost. Pure.

A mark holds the numbers of an EffectResult in a few bytes: Redis has one for every effect of the retention. The
destination's answer and the request are not in it. Marks are the fields of buckets: small hashes, which Redis keeps as
listpacks. A mark of its own key would take three times the memory. An effect is in the bucket that its id's last digits
choose. Claims are few, and have keys of their own. All keys of a partition share a hash tag.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from shared.events.effects import EffectFailure, EffectRequest, EffectResult, EffectState

ANSWER_NOT_KEPT: Final = "decided before; Redis does not keep the destination's answer"
"""The detail of a result that is written from a mark."""

_KINDS: Final = {
    b"s": (EffectState.SENT.value, ""),
    b"d": (EffectState.IN_DOUBT.value, ""),
    b"f": (EffectState.FAILED.value, ""),
    b"r": (EffectState.FAILED.value, EffectFailure.REFUSED.value),
    b"x": (EffectState.FAILED.value, EffectFailure.RETRIES_EXHAUSTED.value),
    b"a": (EffectState.FAILED.value, EffectFailure.ABANDONED.value),
    b"e": (EffectState.FAILED.value, EffectFailure.ENDPOINT_DISABLED.value),
}
_CODES: Final = {kind: code for code, kind in _KINDS.items()}
_TIME_BYTES: Final = 6
_FORMER_STATES: Final = {
    b"s": EffectState.SENT.value,
    b"f": EffectState.FAILED.value,
    b"d": EffectState.IN_DOUBT.value,
}
COUNT_MAX: Final = 2**53 - 1
"""The largest count: scripts hold numbers as doubles."""
_INSTALLATION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FORMER_ID: Final = re.compile(r"[0-9a-f]{32}")
_CHOOSING_DIGITS: Final = 8


class Keys:
    """The keys of one partition of an installation.

    Args:
        installation: its id, of letters, digits, `_` and `-`; ValueError for any other.
        partition: of effects.requests.
        buckets: how many the marks are spread over.
    """

    def __init__(self, installation: str, partition: int, buckets: int) -> None:
        if not _INSTALLATION.fullmatch(installation):
            raise ValueError(f"an installation's id has letters, digits, _ and - only, not {installation!r}")
        self.prefix = f"once:{{{installation}:{partition}}}:"
        self.trust = self.prefix + "trust"
        self.rebuild = self.prefix + "rebuild"
        self.probe = self.prefix + "probe"  # exists only within a script
        self._claim = self.prefix + "c:"
        self._bucket = f"{self.prefix}m:{buckets}:"
        self._buckets = buckets
        self._former = f"once:{{{partition}}}:"

    def of(self, effect_id: str) -> tuple[str, str]:
        """Return the key of an effect's claim, and the bucket of its mark."""
        number = int(effect_id[-_CHOOSING_DIGITS:], 16) % self._buckets
        return self._claim + effect_id, self._bucket + str(number)

    @property
    def every_bucket(self) -> str:
        """The pattern of all buckets, those of another number of buckets included."""
        return self.prefix + "m:*"

    def misplaces(self, bucket: str) -> bool:
        """Whether a key that `every_bucket` found belongs to another number of buckets."""
        return not bucket.startswith(self._bucket)

    @property
    def former_trust(self) -> str:
        """The trust key of the layout without installations, in which claims and marks were strings under their ids."""
        return self._former + "trust"

    @property
    def every_former(self) -> str:
        """The pattern of all keys of that layout."""
        return self._former + "*"

    def former_id(self, key: str) -> str | None:
        """Return the effect of a key that `every_former` found; None if it is no effect's."""
        effect_id = key.removeprefix(self._former)
        return effect_id if _FORMER_ID.fullmatch(effect_id) else None


class Mark(NamedTuple):
    """An effect's result, as in EffectResult, without its texts."""

    state: str  # an EffectState
    at_ms: int  # when it was decided, milliseconds since 1970 UTC
    attempts: int
    revision: int
    resends: int
    reason: str = ""  # an EffectFailure of a failed one


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
    void: str = ""  # the holder whose claim, if it is still there, belongs to no call; empty for none


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
    """Encode a mark: a letter for state and reason, six bytes of `at_ms`, and attempts, revision and resends as LEB128.

    Raises ValueError for an unknown state or reason, or a number that does not fit.
    """
    code = _CODES.get((mark.state, mark.reason))
    counts = (mark.attempts, mark.revision, mark.resends)
    if code is None or not 0 <= mark.at_ms < 1 << 8 * _TIME_BYTES or not all(0 <= n <= COUNT_MAX for n in counts):
        raise ValueError(f"a mark has a known state and reason, and numbers that fit, unlike {mark}")
    return b"".join((code, mark.at_ms.to_bytes(_TIME_BYTES), *map(_leb128, counts)))


def decode_mark(value: bytes) -> Mark:
    """Decode a mark; ValueError if it is none, written by another program."""
    kind, numbers = _KINDS.get(value[:1]), value[1 + _TIME_BYTES :]
    counts = _numbers(numbers)
    if kind is None or len(counts) != 3 or max(counts) > COUNT_MAX:
        raise ValueError(f"no mark of an effect: {value[:40]!r}")
    attempts, revision, resends = counts
    return Mark(kind[0], int.from_bytes(value[1 : 1 + _TIME_BYTES]), attempts, revision, resends, kind[1])


def decode_former_mark(value: bytes) -> Mark:
    """Decode a mark of the layout without buckets, `<s, f or d>|<at_ms>|<attempts>|<revision>|<resends>|<reason>|...`.

    Raises ValueError if it is none.
    """
    state, *fields = value.split(b"|")
    numbers = fields[:4]
    if state not in _FORMER_STATES or len(numbers) != 4 or not all(number.isdigit() for number in numbers):
        raise ValueError(f"no mark of an effect: {value[:40]!r}")
    reason = fields[4].decode() if len(fields) > 4 else ""
    at_ms, attempts, revision, resends = map(int, numbers)
    return _known(Mark(_FORMER_STATES[state], at_ms, attempts, revision, resends, reason))


def _leb128(number: int) -> bytes:
    if number < 0x80:  # nearly all are
        return bytes((number,))
    groups = [number >> shift & 0x7F for shift in range(0, number.bit_length(), 7)]
    return bytes((*(group | 0x80 for group in groups[:-1]), groups[-1]))


def _numbers(value: bytes) -> list[int]:
    """All numbers of a text of LEB128; none if its last one is cut."""
    found, number, shift = [], 0, 0
    for byte in value:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(number)
            number = shift = 0
    return [] if shift else found


def mark_of(result: EffectResult) -> Mark:
    """The mark of a result. A reason that this version does not know is left out."""
    mark = Mark(result.state, result.at_ms, result.attempts, result.revision, result.resends, result.reason)
    return _known(mark)


def _known(mark: Mark) -> Mark:
    return mark if (mark.state, mark.reason) in _CODES else mark._replace(reason="")


def result_of(effect_id: str, mark: Mark, request: EffectRequest) -> EffectResult:
    """The result that the mark's owner would have written, had it lived to commit it, without the destination's answer.

    The request is a part of it only while a person may have to decide on the effect.
    """
    sent = mark.state == EffectState.SENT
    detail = "" if sent else ANSWER_NOT_KEPT
    return EffectResult(effect_id, *mark, detail=detail, request=None if sent else request)


@dataclass(frozen=True, slots=True)
class Risk:
    """Effects that earlier owners may have called with Redis alone knowing of it.

    Until an owner has worked through them, a loss of Redis makes them doubtful. It knows itself what it calls itself.
    """

    left: int = 0  # at most so many of the requests from the committed offset on
    until: int = 0  # the offset that they are below
    waiting: frozenset[str] = frozenset()  # ids of waiting effects

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
