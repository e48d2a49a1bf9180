"""Restoring a partition's state from its changelog."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from aiokafka.errors import KafkaError

from shared.eos.progress import NEXT_OFFSET_KEY, NextOffset, decode_next_offset
from shared.eos.records import Record
from shared.eos.sources import SeenSources
from shared.eos.store import Change, Store
from shared.kafka.client.batches import Batch, pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster
from shared.kafka.client.errors import unavailable
from shared.kafka.client.reader import PAGE_BYTES, OnProgress

OnChanges = Callable[[Sequence[Change]], None]


class LastNote(NamedTuple):
    """The last NEXT_OFFSET_KEY record of a changelog, that of an aborted transaction included.

    Attributes:
        offset: its own, in the changelog.
    """

    offset: int
    noted: NextOffset


class Restored:
    """Takes changelog records into a store.

    Args:
        store: what takes them.
        changed: told of each of the state's own.

    Attributes:
        committed: the last committed note, which is the state's; None for a new state.
        last: the last note, whether it was committed or not; None where there is none.
        records: how many were taken.
    """

    def __init__(self, store: Store, changed: OnChanges) -> None:
        self._store = store
        self._changed = changed
        self.committed: NextOffset | None = None
        self.last: LastNote | None = None
        self.records = 0

    @property
    def next_offset(self) -> int | None:
        """As the state holds it; None for a new state."""
        return None if self.committed is None else self.committed.next_offset

    @property
    def sources(self) -> SeenSources:
        """As the state holds them."""
        return SeenSources() if self.committed is None else self.committed.sources

    def take(self, records: Iterable[Record]) -> None:
        """Take committed records in the changelog's order."""
        changes: list[Change] = []
        for record in records:
            self.records += 1
            if record.key == NEXT_OFFSET_KEY:
                self.committed = self._note(record)
            else:
                changes.append((record.key or b"", record.value))
        self._apply(changes)

    def complete(self, changes: Sequence[Change], noted: NextOffset) -> None:
        """Take the changes and the note of a torn transaction that is going to be completed."""
        self._apply(changes)
        self.committed = noted

    def _apply(self, changes: Sequence[Change]) -> None:
        for key, value in changes:
            self._store.restore(key, value)
        self._changed(changes)

    def pass_over(self, aborted: Iterable[Record]) -> None:
        """Take note of what aborted transactions noted, and of nothing else."""
        for record in aborted:
            if record.key == NEXT_OFFSET_KEY:
                self._note(record)

    def _note(self, record: Record) -> NextOffset:
        noted = decode_next_offset(record.value or b"")
        if self.last is None or record.offset > self.last.offset:
            self.last = LastNote(record.offset, noted)
        return noted


async def restore(
    cluster: Cluster, topic: str, partition: int, store: Store, changed: OnChanges, progress: OnProgress
) -> Restored:
    """Read a changelog partition up to its last stable offset, in the order it was written.

    Call it after InitProducerId: only then is the predecessor's transaction settled and the end final.

    Args:
        cluster: an open connection.
        topic, partition: the changelog.
        store: what takes the records, empty.
        changed: told of each of the state's changes.
        progress: called after each page with the offsets passed and those to be passed in all.

    Raises:
        KafkaUnavailableError: the cluster did not answer.
    """
    target = topic, partition
    await cluster.partitions([topic])
    beginning = (await cluster.offsets([target], EARLIEST))[target]
    end = (await cluster.offsets([target], LATEST, committed=True))[target]
    restored = Restored(store, changed)
    try:
        async with aclosing(
            pages(cluster, {target: beginning}, ends={target: end}, committed=True, partition_bytes=PAGE_BYTES)
        ) as read:
            async for page in read:
                restored.take(_records(page.batches, target))
                noting = [batch for batch in page.aborted if batch.contains(NEXT_OFFSET_KEY)]
                restored.pass_over(_records(noting, target))
                progress(min(page.next_offset, end) - beginning, end - beginning)
    except KafkaError as error:
        raise unavailable(cluster.bootstrap_servers, f"the state cannot be read: {error!r}") from error
    return restored


def _records(batches: Iterable[Batch], target: tuple[str, int]) -> list[Record]:
    return [record for batch in batches for record in batch.records(target)]
