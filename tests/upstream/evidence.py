"""Evidence of one transaction in the logs: its batches and the markers after them, by partition."""

from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from shared.kafka.admin.transaction_state import STATE_TOPIC, StateRecord, Status, decode_value
from shared.kafka.client.batches import Marker, decode, pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target


class Ending(NamedTuple):
    """How a transaction ended on one partition.

    Attributes:
        first_offset: of its batches.
        records: in its batches.
        marker: the first marker after its batches, which decides; None without one.
        marker_epoch: the producer epoch of that marker; -1 without one.
    """

    first_offset: int
    records: int
    marker: Marker | None
    marker_epoch: int

    def __str__(self) -> str:
        ended = "no marker" if self.marker is None else f"{self.marker.name} (producer epoch {self.marker_epoch})"
        return f"{self.records} records from offset {self.first_offset}: {ended}"


async def endings(brokers: str, topic: str, producer_id: int, epoch: int) -> dict[Target, Ending]:
    """Read how one producer's transaction at an epoch ended, from every partition of a topic.

    Args:
        brokers: where the cluster listens.
        topic: to read to the high watermark.
        producer_id: of the transaction.
        epoch: of the transaction, the only one at this epoch.
    """
    found: dict[Target, Ending] = {}
    async with Cluster(brokers) as cluster:
        targets = await cluster.partitions([topic])
        first, end = await cluster.offsets(targets, EARLIEST), await cluster.offsets(targets, LATEST)
        async with aclosing(pages(cluster, first, ends=end, committed=False)) as read:
            async for page in read:
                for batch in page.batches:
                    if batch.producer_id != producer_id:
                        continue
                    known = found.get(page.target)
                    if not batch.is_control and batch.producer_epoch == epoch:
                        count = batch.last_offset - batch.base_offset + 1
                        begun, records = (batch.base_offset, 0) if known is None else known[:2]
                        found[page.target] = Ending(begun, records + count, None, -1)
                    elif batch.is_control and known is not None and known.marker is None:
                        found[page.target] = known._replace(marker=batch.marker, marker_epoch=batch.producer_epoch)
    return found


def states_on_disk(data: Path, partition: int) -> list[StateRecord]:
    """The states in one replica of a partition of __transaction_state, replicated or not.

    Args:
        data: the broker's data directory.
        partition: with the states of one transactional.id.
    """
    found: list[StateRecord] = []
    for segment in sorted((data / f"{STATE_TOPIC}-{partition}").glob("*.log")):
        for batch in decode(segment.read_bytes()):
            records = () if batch.is_control else batch.records((STATE_TOPIC, partition))
            found.extend(
                StateRecord(record.offset, record.timestamp_ms, decode_value(record.value))
                for record in records
                if record.value is not None
            )
    return found


def statuses(data: Path, partition: int) -> list[Status]:
    """The statuses of `states_on_disk`."""
    return [record.state.status for record in states_on_disk(data, partition)]
