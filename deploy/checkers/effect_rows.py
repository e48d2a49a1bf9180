"""Effects as rows of a few bytes, found by effect_id. Pure.

Four topics and the sinks' logs must be joined on a random id. Rows are kept as packed bytes in buckets by the id's
first byte and joined bucket by bucket at the end: a million take some 35 MB from each source, and no dict of all.
"""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeVar

from shared.events.effects import EFFECT_ID_BYTES

BUCKETS = 256
NO_SINK = 0
"""The sink of an effect that is compared with no log."""

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

    Args:
        make: of a row from its fields.
        layout: of the fields after the id, as in `struct`.
    """

    def __init__(self, make: Callable[[Iterable[Any]], R], layout: str) -> None:
        self._make: Callable[[Iterable[Any]], R] = make
        self._layout = Struct(f"<{EFFECT_ID_BYTES}s{layout}")
        self._buckets = [bytearray() for _ in range(BUCKETS)]

    def add(self, key: bytes, *fields: int) -> None:
        """Remember a row."""
        self._buckets[key[0]] += self._layout.pack(key, *fields)

    def bucket(self, number: int) -> Iterator[R]:
        """The rows whose ids begin with this byte."""
        return map(self._make, self._layout.iter_unpack(self._buckets[number]))


class EffectRows:
    """Every row that was fed."""

    def __init__(self) -> None:
        self.requests = Rows(RequestRow._make, "qQ")
        self.results = Rows(ResultRow._make, "qBII")
        self.letters = Rows(LetterRow._make, "q")
        self.deliveries = Rows(DeliveryRow._make, "Qq")


def key_of(effect_id: str) -> bytes | None:
    """The id's bytes; None if it is not 32 lower-case hex digits."""
    try:
        key = bytes.fromhex(effect_id)
    except ValueError:
        return None
    return key if len(key) == EFFECT_ID_BYTES and key.hex() == effect_id else None


def count(value: int) -> int:
    """Clamp a count to what a row can hold; no outbox reaches that bound."""
    return min(max(value, 0), _COUNT_MAX)
