"""The view's progress, from the worker that reads the topic to the readers of the database. Pure.

Invariant: only the database says what an answer was made from; the progress here may be a moment old.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec


class PartitionFreshness(NamedTuple):
    """How far one partition of ledger.postings is in the view."""

    partition: int
    next_offset: int  # every committed record below it is in the tables
    last_stable_offset: int | None  # None while the brokers do not say
    # How long the first missing record can have been in the ledger at most, whether the brokers have reported it or
    # not: never less than asked_s; None while the brokers do not say
    seconds_behind: float | None
    asked_s: float | None  # since the brokers were asked for last_stable_offset; None likewise


class Progress(Protocol):
    """The worker, for a reader."""

    async def freshness(self) -> Sequence[PartitionFreshness]:
        """Every partition, as far as is known; it waits for the brokers for a moment at most."""

    async def reached(self, partition: int, offset: int, timeout_s: float) -> bool:
        """Whether every committed record up to and including this offset is in the tables, within the timeout."""


class Position(msgspec.Struct, frozen=True):
    """How far the view has read one partition of ledger.postings.

    Attributes:
        partition: of ledger.postings.
        next_offset: every committed record below it is in the answer, and none from it on.
        last_stable_offset: where the partition's committed records end; null if the brokers do not say.
        offsets_behind: how many offsets are still to be read, 0 when no committed record is missing. Transaction
            markers have offsets, so it is the most records that can be missing. Null if the brokers do not say.
        seconds_behind: how long the first missing record can have been in the ledger at most; null if the brokers do
            not say. Where nothing is known to be missing it is asked_s: a record may have come since.
        asked_s: seconds since the brokers were asked for last_stable_offset; null if they do not say.
    """

    partition: int
    next_offset: int
    last_stable_offset: int | None
    offsets_behind: int | None
    seconds_behind: float | None
    asked_s: float | None


class Freshness(msgspec.Struct, frozen=True):
    """How old the answers are.

    Attributes:
        caught_up: whether no committed record was missing when the brokers were asked; null if they do not say.
        offsets_behind: of all partitions together; null if the brokers do not say.
        seconds_behind: of the partition that is behind most; null if the brokers do not say.
        as_of: how far the view has read each partition.
    """

    caught_up: bool | None
    offsets_behind: int | None
    seconds_behind: float | None
    as_of: tuple[Position, ...]


def as_of(
    positions: Mapping[int, int],
    freshness: Mapping[int, PartitionFreshness],
    partitions: Iterable[int],
    elapsed_s: float = 0.0,
) -> tuple[Position, ...]:
    """The age of an answer about some partitions.

    Args:
        positions: next offsets in the snapshot that it was made from; 0 for a partition that is missing.
        freshness: the worker's, requested before the snapshot was taken.
        elapsed_s: since the worker reported the freshness.
    """
    return tuple(
        _position(partition, positions.get(partition, 0), _later(freshness.get(partition), elapsed_s))
        for partition in partitions
    )


def _later(known: PartitionFreshness | None, elapsed_s: float) -> PartitionFreshness | None:
    if known is None or known.seconds_behind is None or known.asked_s is None:
        return known
    behind_s, asked_s = (round(seconds + elapsed_s, 3) for seconds in (known.seconds_behind, known.asked_s))
    return known._replace(seconds_behind=behind_s, asked_s=asked_s)


def _position(partition: int, next_offset: int, known: PartitionFreshness | None) -> Position:
    if known is None or known.last_stable_offset is None:
        return Position(partition, next_offset, None, None, None, None)
    stable = known.last_stable_offset
    if next_offset >= stable:
        return Position(partition, next_offset, stable, 0, known.asked_s, known.asked_s)
    rebuilt = next_offset < known.next_offset  # the view was rebuilt in between: the age is of the former one
    seconds = None if rebuilt else known.seconds_behind
    return Position(partition, next_offset, stable, stable - next_offset, seconds, known.asked_s)


def overall(positions: tuple[Position, ...]) -> Freshness:
    """The age of an answer about all these partitions."""
    offsets = [position.offsets_behind for position in positions if position.offsets_behind is not None]
    seconds = [position.seconds_behind for position in positions if position.seconds_behind is not None]
    known = len(offsets) == len(seconds) == len(positions)
    return Freshness(
        caught_up=not any(offsets) if known else None,
        offsets_behind=sum(offsets) if known else None,
        seconds_behind=max(seconds, default=0.0) if known else None,
        as_of=positions,
    )
