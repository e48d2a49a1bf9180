"""Outcome of each effect: requests joined with results, dead letters, waiting ones and the sinks' logs (I11). Pure.

Four topics and the sinks' logs must be joined on a random id. Rows are kept as packed bytes in buckets by the id's
first byte and joined bucket by bucket at the end: a million take some 35 MB from each source, and no dict of all. All
rows of an effect are in one bucket, so each bucket is judged by itself.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

from deploy.checkers.offsets import check_consumed, named, partition_of
from deploy.checkers.verdict import Findings, Kind
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_REQUESTS, EFFECTS_RESULTS, EFFECTS_WAITING
from shared.events.effects import EFFECT_ID_BYTES, EffectState

BUCKETS = 256
NO_SINK = 0  # of an effect that is compared with no log
_COUNT_MAX = 2**32 - 1


class RequestRow(NamedTuple):
    """A request: its id, its place in effects.requests, and the fingerprint of the sink that has a log, or NO_SINK."""

    key: bytes
    at: int
    sink: int


class ResultRow(NamedTuple):
    """A result: its id, its place in effects.results, a code of its state, and its counts."""

    key: bytes
    at: int
    state: int
    revision: int
    resends: int


class LetterRow(NamedTuple):
    """A dead letter: its id, and its place in effects.dead-letter."""

    key: bytes
    at: int


class DeliveryRow(NamedTuple):
    """An entry of a sink's log: its id, the sink's fingerprint, and the entry's number from 1."""

    key: bytes
    sink: int
    number: int


R = TypeVar("R", RequestRow, ResultRow, LetterRow, DeliveryRow)


class Rows(Generic[R]):
    """Rows of one shape, in the order in which they were added within each bucket.

    `make` builds a row from its fields; `layout` is that of the fields after the id, as in `struct`.
    """

    def __init__(self, make: Callable[[Iterable[Any]], R], layout: str) -> None:
        self._make: Callable[[Iterable[Any]], R] = make
        self._layout = Struct(f"<{EFFECT_ID_BYTES}s{layout}")
        self._buckets = [bytearray() for _ in range(BUCKETS)]

    def add(self, key: bytes, *fields: int) -> None:
        self._buckets[key[0]] += self._layout.pack(key, *fields)

    def bucket(self, number: int) -> Iterator[R]:
        """Yield the rows whose ids begin with this byte."""
        return map(self._make, self._layout.iter_unpack(self._buckets[number]))


class EffectRows:
    def __init__(self) -> None:
        self.requests = Rows(RequestRow._make, "qQ")
        self.results = Rows(ResultRow._make, "qBII")
        self.letters = Rows(LetterRow._make, "q")
        self.deliveries = Rows(DeliveryRow._make, "Qq")


def key_of(effect_id: str) -> bytes | None:
    """Return the id's bytes; None if it is not 32 lower-case hex digits."""
    try:
        key = bytes.fromhex(effect_id)
    except ValueError:
        return None
    return key if len(key) == EFFECT_ID_BYTES and key.hex() == effect_id else None


def count(value: int) -> int:
    """Clamp a count to what a row can hold; no outbox reaches that bound."""
    return min(max(value, 0), _COUNT_MAX)


GONE = 0  # a result that was deleted
ABANDONED = 255  # failed because an operator abandoned it: whether it was sent is unknown
STATES = {state: code for code, state in enumerate(EffectState, 1)}
_SENT = STATES[EffectState.SENT]
_FAILED = STATES[EffectState.FAILED]
_IN_DOUBT = STATES[EffectState.IN_DOUBT]


@dataclass(slots=True)
class EffectCounts:
    """The verdict's figures."""

    requested: int = 0
    delivered: int = 0
    duplicated: int = 0
    in_doubt: int = 0
    failed: int = 0


class Outcomes:
    """Judges the rows.

    Args:
        sinks: destinations with a log, by fingerprint.
        waiting: places in effects.waiting, by id. It is emptied.
        beginnings: first offsets of effects.requests, by partition.
        committed: offsets of the outbox on effects.requests, by partition.
    """

    def __init__(
        self,
        findings: Findings,
        sinks: Mapping[int, str],
        waiting: dict[bytes, int],
        beginnings: Mapping[int, int],
        committed: Mapping[int, int],
    ) -> None:
        self._findings = findings
        self._sinks = sinks
        self._waiting = waiting
        self._beginnings = beginnings
        self._committed = committed
        self._counts = EffectCounts()

    def judge(self, rows: EffectRows) -> EffectCounts:
        """Judge all rows, and waiting effects without a request. Call it once."""
        for number in range(BUCKETS):
            self._judge_bucket(rows, number)
        for key, at in self._waiting.items():
            self._orphan(key, EFFECTS_WAITING, at)
        return self._counts

    def _judge_bucket(self, rows: EffectRows, number: int) -> None:
        requests = self._requests(rows, number)
        results = self._results(rows, number)
        letters = {letter.key: letter.at for letter in rows.letters.bucket(number)}
        delivered = self._deliveries(rows, number, requests, results)
        for request in requests.values():
            self._judge(request, results.pop(request.key, None), letters.pop(request.key, None), delivered)
        for key, result in results.items():
            self._orphan(key, EFFECTS_RESULTS, result.at)
        for key, at in letters.items():
            self._orphan(key, EFFECTS_DEAD_LETTER, at)

    def _requests(self, rows: EffectRows, number: int) -> dict[bytes, RequestRow]:
        requests: dict[bytes, RequestRow] = {}
        for request in rows.requests.bucket(number):
            first = requests.setdefault(request.key, request)
            if first is not request:
                where = named(EFFECTS_REQUESTS, request.at)
                detail = f"{named(EFFECTS_REQUESTS, first.at)} asks for it too"
                self._findings.add(Kind.EFFECT_REQUESTED_TWICE, where, detail)
        self._counts.requested += len(requests)
        return requests

    def _results(self, rows: EffectRows, number: int) -> dict[bytes, ResultRow]:
        """Return the last result of each. A new owner may write the last one again, but never another instead."""
        results: dict[bytes, ResultRow] = {}
        for result in rows.results.bucket(number):
            if result.state == GONE:
                results.pop(result.key, None)
                continue
            last = results.get(result.key)
            if last is not None:
                older = result.revision < last.revision
                if older or (result.revision == last.revision and result.state != last.state):
                    where = named(EFFECTS_RESULTS, result.at)
                    detail = f"{named(EFFECTS_RESULTS, last.at)} had decided otherwise"
                    self._findings.add(Kind.EFFECT_CONTRADICTED, where, detail)
            results[result.key] = result
        return results

    def _deliveries(
        self, rows: EffectRows, number: int, requests: Mapping[bytes, RequestRow], results: Mapping[bytes, ResultRow]
    ) -> Counter[bytes]:
        """Count the entries of each requested effect in the log of its sink."""
        delivered: Counter[bytes] = Counter()
        phantoms: set[tuple[bytes, int]] = set()
        for delivery in rows.deliveries.bucket(number):
            key, where = delivery.key, f"{self._sinks[delivery.sink]}:{delivery.number}"
            request = requests.get(key)
            if request is not None and request.sink == delivery.sink:
                delivered[key] += 1
                again = delivered[key] > 1
            elif request is None and key in results and self._expired(results[key].at):
                continue
            else:
                again = (key, delivery.sink) in phantoms
                phantoms.add((key, delivery.sink))
                self._findings.add(Kind.EFFECT_PHANTOM, where, f"no committed request of {key.hex()} names this sink")
            if again:
                self._counts.duplicated += 1
                self._findings.add(Kind.EFFECT_DUPLICATED, where, f"{key.hex()} was delivered before")
        self._counts.delivered += len(delivered) + len(phantoms)
        return delivered

    def _judge(
        self, request: RequestRow, result: ResultRow | None, letter: int | None, delivered: Mapping[bytes, int]
    ) -> None:
        key, where = request.key, named(EFFECTS_REQUESTS, request.at)
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            decided = "" if result is None else f", although {named(EFFECTS_RESULTS, result.at)} is its result"
            self._findings.add(Kind.EFFECT_WAITING, where, f"{key.hex()} is still to be tried again{decided}")
        elif result is None:
            self._findings.add(Kind.EFFECT_MISSING, where, f"{key.hex()} has no result")
        taken = result is not None or waiting is not None or letter is not None
        check_consumed(self._findings, EFFECTS_REQUESTS, request.at, taken, self._committed)
        self._check_homes(
            request,
            {
                EFFECTS_RESULTS: None if result is None else result.at,
                EFFECTS_WAITING: waiting,
                EFFECTS_DEAD_LETTER: letter,
            },
        )
        if result is not None:
            self._judge_result(request, result, letter)
        if request.sink != NO_SINK:
            self._judge_sink(request, result, waiting, delivered.get(key, 0))

    def _check_homes(self, request: RequestRow, places: Mapping[str, int | None]) -> None:
        right = partition_of(request.at)
        for topic, at in places.items():
            if at is not None and partition_of(at) != right:
                self._findings.add(Kind.EFFECT_ELSEWHERE, named(topic, at), f"belongs on partition {right}")

    def _judge_result(self, request: RequestRow, result: ResultRow, letter: int | None) -> None:
        where, counts = named(EFFECTS_RESULTS, result.at), self._counts
        counts.in_doubt += result.state == _IN_DOUBT
        counts.duplicated += result.resends
        if result.state in {_FAILED, ABANDONED}:
            counts.failed += 1
            if letter is None:
                self._findings.add(Kind.EFFECT_FAILED_SILENTLY, where, "failed, but not in effects.dead-letter")
        elif letter is not None and result.revision <= 1:
            detail = f"in {named(EFFECTS_DEAD_LETTER, letter)} without ever having failed"
            self._findings.add(Kind.EFFECT_CONTRADICTED, where, detail)
        if request.sink == NO_SINK:
            counts.delivered += result.state == _SENT

    def _judge_sink(self, request: RequestRow, result: ResultRow | None, waiting: int | None, delivered: int) -> None:
        """Compare one request with its sink's log. An effect in doubt, or still to be tried, may be in it or not."""
        where = named(EFFECTS_REQUESTS, request.at)
        if result is not None and result.state == _SENT and not delivered:
            self._findings.add(Kind.EFFECT_NOT_AT_SINK, where, f"{request.key.hex()} is said to be sent")
        denied = waiting is None and (result is None or result.state == _FAILED)
        if denied and delivered:
            self._findings.add(Kind.EFFECT_DENIED, where, f"{request.key.hex()} is at the sink, and not said to be")

    def _orphan(self, key: bytes, topic: str, at: int) -> None:
        if not self._expired(at):
            self._findings.add(Kind.EFFECT_ORPHAN, named(topic, at), f"no committed request of {key.hex()}")

    def _expired(self, at: int) -> bool:
        """Whether its request may have ended: some of that partition have."""
        return self._beginnings.get(partition_of(at), 0) > 0
