"""The identity of ledger.postings, the ends of its partitions, and how old the view is.

Invariant: markers at a partition's end are not missing records. No figure is smaller than the truth: the age includes
the time since the brokers were asked, by a clock that is never set back.
"""

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from services.balances.projection.domain import Position
from services.balances.projection.progress import PartitionFreshness
from shared.events.catalogue import LEDGER_POSTINGS
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.client.identities import topic_ids

SETTLE_S: Final = 10.0  # a partition's end may be behind a position: a new leader learns what is committed with delay
KNOWN_MS: Final = 5_000  # the brokers' answers are used for so long
_PAUSE_S: Final = 0.5


class LostRecordsError(Exception):
    """The topic no longer has what the view needs next, or lacks what the view was made from."""


async def topic_identity(cluster: Cluster) -> str:
    """Return the cluster's id and the topic's: a topic that was deleted and created again has another one.

    Raises KafkaUnavailableError.
    """
    ids = await topic_ids(cluster, [LEDGER_POSTINGS])
    return f"{await cluster.cluster_id()}, topic {ids[LEDGER_POSTINGS]}"


class Ends:
    """Asks the brokers, over an open connection that knows the topic and its partitions."""

    def __init__(self, cluster: Cluster, targets: Sequence[Target]) -> None:
        self._cluster = cluster
        self._targets = targets

    async def stable(self) -> dict[int, int]:
        """The last stable offset of each partition."""
        found = await self._cluster.offsets(self._targets, LATEST, committed=True)
        return {partition: offset for (_, partition), offset in found.items()}

    async def check(self, positions: Mapping[int, Position]) -> None:
        """Raise LostRecordsError, with what to do, if the topic lacks a position."""
        beginnings = await self._cluster.offsets(self._targets, EARLIEST)
        for partition, position in positions.items():
            beginning = beginnings[LEDGER_POSTINGS, partition]
            if position.next_offset < beginning:
                raise LostRecordsError(
                    f"the view has {LEDGER_POSTINGS}:{partition} up to {position.next_offset}, and its log begins at "
                    f"{beginning}: the records between have expired. Restore the topic or the view's database from a "
                    f"backup, and set the topic's retention.ms to -1"
                )
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while beyond := await self._beyond(positions):
            if asyncio.get_running_loop().time() > deadline:
                raise LostRecordsError(
                    f"the view has more than the topic: {beyond}. The view was made from another one of this name: "
                    "make it again with `python -m services.balances --rebuild`"
                )
            await asyncio.sleep(_PAUSE_S)

    async def _beyond(self, positions: Mapping[int, Position]) -> str:
        ends = await self._cluster.offsets(self._targets, LATEST)
        return ", ".join(
            f"{LEDGER_POSTINGS}:{partition} up to {position.next_offset} of {ends[LEDGER_POSTINGS, partition]}"
            for partition, position in positions.items()
            if position.next_offset > ends[LEDGER_POSTINGS, partition]
        )


class Behind:
    """The age of the view. Times are milliseconds of a monotonic clock, except `wall_ms`."""

    def __init__(self) -> None:
        self._stable: Mapping[int, int] = {}
        self._asked_ms = 0
        self._caught_up: dict[int, tuple[int, int]] = {}  # the last end that was reached, and when it was asked for

    def look(self, stable: Mapping[int, int], positions: Mapping[int, Position], asked_ms: int) -> None:
        """Note the last stable offsets of brokers that were asked at `asked_ms`, before the positions were read."""
        self._stable = stable
        self._asked_ms = asked_ms
        for partition, end in stable.items():
            if partition in positions and positions[partition].next_offset >= end:
                self._caught_up[partition] = end, asked_ms

    def freshness(self, positions: Mapping[int, Position], now_ms: int, wall_ms: int) -> list[PartitionFreshness]:
        """Every partition as it is now.

        What is missing came after the view had everything, and after the last record that it has. A view that is
        rebuilt has everything again at the end that it had reached.

        Args:
            wall_ms: milliseconds since 1970 UTC, as the timestamps of records.
        """
        stable = self._stable if now_ms - self._asked_ms <= KNOWN_MS else {}
        return [
            self._partition(partition, position, stable.get(partition), now_ms, wall_ms)
            for partition, position in sorted(positions.items())
        ]

    def _partition(
        self, partition: int, position: Position, stable: int | None, now_ms: int, wall_ms: int
    ) -> PartitionFreshness:
        if stable is None:
            return PartitionFreshness(partition, position.next_offset, None, None, None)
        asked_s = (now_ms - self._asked_ms) / 1000
        seconds_behind = asked_s
        if position.next_offset < stable:
            end, caught_up_ms = self._caught_up.get(partition, (math.inf, 0))
            since_complete_ms = wall_ms - position.timestamp_ms
            if position.next_offset >= end:
                since_complete_ms = min(now_ms - caught_up_ms, since_complete_ms)
            seconds_behind = max(since_complete_ms / 1000, asked_s)
        return PartitionFreshness(partition, position.next_offset, stable, seconds_behind, asked_s)


def seconds(fresh: Iterable[PartitionFreshness]) -> list[tuple[tuple[str], float]]:
    """Known seconds behind, by the partition's labels."""
    return [((str(at.partition),), at.seconds_behind) for at in fresh if at.seconds_behind is not None]


def lags(fresh: Iterable[PartitionFreshness], own: Collection[int]) -> list[tuple[tuple[str, str], int]]:
    """Known offsets behind of an instance's own partitions, by their labels."""
    return [
        ((LEDGER_POSTINGS, str(at.partition)), max(at.last_stable_offset - at.next_offset, 0))
        for at in fresh
        if at.last_stable_offset is not None and at.partition in own
    ]
