"""The committed offsets of groups, as their coordinator reads them from its log.

Offsets of a transaction are pending until its marker is there (KIP-447). Nothing counts before it is replicated, but to
a reader that asks for stable offsets, whose answer waits for that.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from deploy.drills.clients.record_batches import TRANSACTIONAL, record_batch
from shared.kafka.client.batches import Batch, Marker
from tests.simulation.cluster import Partition, Target

_ENTRY_BYTES: Final = 2**31
_COMMITTED: Final = -1
"""In place of the producer id of a transaction."""


class Place(NamedTuple):
    """Whose offset it is."""

    group: str
    topic: str
    partition: int


class Committed(NamedTuple):
    """An offset with the metadata that the group gave it."""

    offset: int
    metadata: str


class Offsets:
    """What one partition of the offsets topic says, followed as it is replicated.

    Args:
        latest: whether it is followed to the end of the leader's log instead.
    """

    def __init__(self, partition: Partition, *, latest: bool = False) -> None:
        self._partition = partition
        self._latest = latest
        self._epoch = -1
        self._forget()

    def _forget(self) -> None:
        self._next = 0
        self._committed: dict[Place, Committed] = {}
        self._since: dict[tuple[int, Place], int] = {}  # where the log has each
        self._pending: dict[int, dict[Place, Committed]] = {}

    def of(self, group: str) -> Mapping[Target, Committed]:
        """The committed offsets of a group, by topic and partition."""
        self._follow()
        return {(place.topic, place.partition): at for place, at in self._committed.items() if place.group == group}

    def pending(self, group: str) -> frozenset[Target]:
        """Partitions of a group whose offsets a transaction has that has not ended."""
        self._follow()
        places = [place for pending in self._pending.values() for place in pending if place.group == group]
        return frozenset((place.topic, place.partition) for place in places)

    def _follow(self) -> None:
        if self._epoch != self._partition.epoch:  # the log may have lost its end since
            self._epoch = self._partition.epoch
            self._forget()
        log = self._partition.log
        limit = log.end if self._latest else log.high_watermark
        for batch in log.read(self._next, limit, _ENTRY_BYTES):
            self._learn(batch)
            self._next = batch.last_offset + 1

    def _learn(self, batch: Batch) -> None:
        if batch.is_control:
            pending = self._pending.pop(batch.producer_id, {})
            if batch.marker is Marker.COMMIT:
                for place, at in pending.items():
                    since = self._since[batch.producer_id, place]
                    if since > self._since.get((_COMMITTED, place), -1):  # not over a later commit outside
                        self._committed[place] = at
                        self._since[_COMMITTED, place] = since
            return
        into = self._pending.setdefault(batch.producer_id, {}) if batch.is_transactional else self._committed
        for number, (place, at) in enumerate(entries_of(batch, self._partition.target)):
            into[place] = at
            self._since[batch.producer_id if batch.is_transactional else _COMMITTED, place] = batch.base_offset + number


def entries_of(batch: Batch, target: Target) -> Iterator[tuple[Place, Committed]]:
    """Decode the offsets in a batch of the log."""
    for record in batch.records(target):
        place = msgspec.json.decode(record.key or b"", type=Place)
        yield place, msgspec.json.decode(record.value or b"", type=Committed)


def entries(
    offsets: Mapping[Place, Committed], producer_id: int = -1, producer_epoch: int = -1, *, timestamp_ms: int
) -> Batch:
    """Offsets as a batch of the log: of a transaction where a producer is given, without sequences as Kafka's are."""
    records = [(msgspec.json.encode(place), msgspec.json.encode(at)) for place, at in offsets.items()]
    attributes = TRANSACTIONAL if producer_id >= 0 else 0
    return record_batch(records, producer_id, producer_epoch, -1, attributes=attributes, timestamp_ms=timestamp_ms)
