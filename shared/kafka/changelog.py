"""Restoring a partition's state from its changelog."""

from collections.abc import Callable, Sequence

from shared.eos.progress import NEXT_OFFSET_KEY, decode_next_offset
from shared.eos.records import Record
from shared.eos.store import Change, Store
from shared.kafka.access import Bootstrap
from shared.kafka.reader import OnProgress, read_partition

OnChanges = Callable[[Sequence[Change]], None]


class Restored:
    """Takes changelog records into a store.

    Args:
        store: what takes them.
        changed: told of each of the state's own.

    Attributes:
        next_offset: as the state holds it, None for a new state.
        records: how many were taken.
    """

    def __init__(self, store: Store, changed: OnChanges) -> None:
        self._store = store
        self._changed = changed
        self.next_offset: int | None = None
        self.records = 0

    def take(self, records: list[Record]) -> None:
        """Take records in the changelog's order."""
        self.records += len(records)
        for record in records:
            if record.key == NEXT_OFFSET_KEY:
                self.next_offset = decode_next_offset(record.value or b"").next_offset
            else:
                self._store.restore(record.key or b"", record.value)
        self._changed([(record.key or b"", record.value) for record in records if record.key != NEXT_OFFSET_KEY])


async def restore(
    bootstrap_servers: Bootstrap, topic: str, partition: int, store: Store, changed: OnChanges, progress: OnProgress
) -> Restored:
    """Read a changelog partition read_committed up to its end, in the order it was written.

    Call it after InitProducerId: only then is the predecessor's transaction settled and the end final.

    Args:
        bootstrap_servers: brokers, comma separated, or an `Access`.
        topic, partition: the changelog.
        store: what takes the records, empty.
        changed: told of each of the state's changes.
        progress: called after each page with the offsets passed and those to be passed in all.

    Raises:
        KafkaUnavailableError: the cluster did not answer.
    """
    restored = Restored(store, changed)
    await read_partition(bootstrap_servers, topic, partition, restored.take, progress)
    return restored
