"""Restoring a partition's state from its changelog."""

from collections.abc import Callable

from shared.eos.progress import NEXT_OFFSET_KEY, decode_next_offset
from shared.eos.records import Record
from shared.eos.store import Store
from shared.kafka.reader import read_partition


class Restored:
    """Takes changelog records into a store.

    Attributes:
        next_offset: as the state holds it, None for a new state.
        records: how many were taken.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
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


async def restore(bootstrap_servers: str, topic: str, partition: int, store: Store) -> Restored:
    """Read a changelog partition read_committed up to its end, in the order it was written.

    Call it after InitProducerId: only then is the predecessor's transaction settled and the end final.

    Raises:
        KafkaUnavailableError: the cluster did not answer.
    """
    restored = Restored(store)
    take: Callable[[list[Record]], None] = restored.take
    await read_partition(bootstrap_servers, topic, partition, take)
    return restored
