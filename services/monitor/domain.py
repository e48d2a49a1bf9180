"""The picture that the monitor builds from the cluster's answers, round by round. Pure.

Invariant: a value that was not answered stays as last reported, until the cluster no longer lists it. So the loss of a
broker resolves no alert and raises none. A transaction that ended is gone with the next answer.
"""

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, TypeVar

import msgspec

from shared.events.operations import RunOutcome
from shared.http.monitor import Run

Target = tuple[str, int]  # topic, partition

OPEN_SHOWN_S: Final = 1.0
"""Transactions younger than this are normal and get no series."""
OPEN_SHOWN_MAX: Final = 20
"""Series at most, whatever the number of transactional.ids."""
BREAKS: Final = "breaks"
"""The verdict of a reconciliation with open breaks that are not explained."""

K = TypeVar("K")
V = TypeVar("V")


class Partition(NamedTuple):
    """A partition's last stable offset and high watermark, as last reported."""

    stable: int
    end: int
    since_s: float | None = None  # when it was first seen to wait at this offset, by a monotonic clock
    stuck_s: float = 0.0  # how long it had waited when it was last reported


class Picture(msgspec.Struct, frozen=True):
    """All exported values: replaced whole with each round, never changed.

    Attributes:
        brokers: number of brokers alive.
        transactions: age of each open transaction in seconds, by coordinator and transactional.id.
        hanging: number of transactions that each partition holds open without a coordinator.
        behind: offsets between a group's committed offset and the last stable offset, by group and partition.
        run: the newest reconciliation.
    """

    asked: bool = False  # whether the cluster has answered anything yet
    brokers: int = 0
    partitions: dict[Target, Partition] = {}
    transactions: dict[int, dict[str, float]] = {}
    hanging: dict[Target, int] = {}
    behind: dict[str, dict[Target, int]] = {}
    run: Run | None = None


def follow(before: Partition | None, stable: int, end: int, now_s: float) -> Partition:
    """Return a partition's progress after one more answer; `now_s` is by a monotonic clock."""
    if stable >= end:
        return Partition(stable, end)
    if before is None or before.since_s is None or before.stable != stable:
        return Partition(stable, end, now_s)
    return Partition(stable, end, before.since_s, max(now_s - before.since_s, 0.0))


def keep(before: Mapping[K, V], answered: Mapping[K, V], still_there: Collection[K]) -> dict[K, V]:
    """Return the new values, and the last known ones of keys that still exist but were not answered."""
    return {key: value for key, value in before.items() if key in still_there and key not in answered} | dict(answered)


def keep_open(
    before: Mapping[int, Mapping[str, float]], answered: Mapping[int, Mapping[str, float]], alive: Collection[int]
) -> dict[int, dict[str, float]]:
    """Return open transactions by coordinator; a silent one keeps those that no other coordinator has taken over.

    `answered` has the coordinators that answered, `alive` the ids of brokers that the cluster counts as alive.
    """
    taken = {name for ages in answered.values() for name in ages}
    left = {node: {name: age_s for name, age_s in ages.items() if name not in taken} for node, ages in before.items()}
    return keep(left, {node: dict(ages) for node, ages in answered.items()}, alive)


def oldest(by_coordinator: Mapping[int, Mapping[str, float]]) -> list[tuple[str, float]]:
    """Return the transactions that get a series, the oldest first: transactional.id and age in seconds."""
    shown = [(name, age_s) for ages in by_coordinator.values() for name, age_s in ages.items() if age_s > OPEN_SHOWN_S]
    return sorted(shown, key=lambda one: (-one[1], one[0]))[:OPEN_SHOWN_MAX]


def behind(committed: Mapping[Target, int], inputs: Mapping[Target, Partition]) -> dict[Target, int]:
    """Return a group's lag in offsets, for each of its input partitions; an absent committed offset counts as 0."""
    return {target: max(known.stable - committed.get(target, 0), 0) for target, known in inputs.items()}


def last_run(before: Run | None, at_ms: int, outcome: RunOutcome) -> Run:
    """Return the later of two reconciliations; at the same timestamp, the one read last."""
    if before is not None and before.at_ms > at_ms:
        return before
    return Run(at_ms, outcome)
