"""Reads the records of one transaction from its partitions, and the marker that ended it in each.

Invariant: every record that was acknowledged before is read, whatever other transactions hold the last stable offset.
The log is read up to the high watermark, and markers are read instead of asking for committed records.
"""

import asyncio
import time
from collections.abc import Iterable

from shared.eos.audit import Fate, Part
from shared.eos.errors import UnknownOutcomeError
from shared.eos.progress import TransactionNote
from shared.eos.records import Record
from shared.events.headers import SOURCE, header
from shared.kafka.client.batches import Batch, Marker, decode
from shared.kafka.client.cluster import Cluster, Target, check
from shared.kafka.client.requests import Request

MARKER_DEADLINE_S = 5.0  # a leader that moved may lag behind the markers for a moment
MARKER_POLL_S = 0.05
WAIT_MS = 0  # the fetch returns what is there; no more records arrive
PAGE_BYTES = 256 * 1024  # of each partition in one fetch: a transaction's records are among the first


class TransactionPart:
    """One partition's part of a transaction, as far as it was made from one input partition.

    Args:
        target: the partition.
        transaction: the transaction whose batches are collected.
        source: the input partition.

    Attributes:
        target: as given.
    """

    def __init__(self, target: Target, transaction: TransactionNote, source: Target) -> None:
        self.target = target
        self._source = source
        self._transaction = transaction
        self._batches: list[Batch] = []
        self._marker: Marker | None = None

    @property
    def ended(self) -> bool:
        """Whether a marker follows its records."""
        return self._marker is not None

    @property
    def open(self) -> bool:
        """Whether it has records and no marker."""
        return bool(self._batches) and self._marker is None

    def take(self, batches: Iterable[Batch]) -> None:
        """Take batches of the partition in order, those of other transactions included."""
        of, ended_ms = self._transaction.id, self._transaction.ended_ms
        for batch in batches:
            if batch.producer_id != of.producer_id or self.ended:
                continue
            if batch.is_control:
                if self._batches:
                    self._marker = batch.marker
            elif batch.producer_epoch == of.producer_epoch and of.begun_ms <= batch.timestamp_ms <= ended_ms:
                self._batches.append(batch)

    def records(self) -> list[Record]:
        """Its records in order, however it ended."""
        return [record for batch in self._batches for record in batch.records(self.target) if self._has(record)]

    def _has(self, record: Record) -> bool:
        topic, partition = self._source
        source = header(record.headers, SOURCE)
        if source is None:  # a state's change that no record caused; a changelog is partitioned like its input
            return record.partition == partition
        return source.startswith(b"%b:%d:" % (topic.encode(), partition))

    def part(self) -> Part:
        """Return how it ended here. Without a marker it is not aborted yet: the producer's next marker decides."""
        records = len(self.records())
        if not records:
            return Part(Fate.ABSENT, 0)
        return Part(Fate.ABORTED if self._marker is Marker.ABORT else Fate.COMMITTED, records)


async def left_open(cluster: Cluster, topics: Iterable[str], producer_id: int) -> list[Target]:
    """Return the partitions of topics in which a producer has records without a marker.

    Call it when it has no open transaction; markers on their way are waited for. Raises KafkaUnavailableError.
    """
    targets = await cluster.partitions(topics)

    async def ask(node_id: int, led: list[Target]) -> list[Target]:
        asked = [{"Name": topic, "PartitionIndexes": [partition]} for topic, partition in led]
        response = await cluster.send(node_id, Request("DescribeProducers", 0, {"Topics": asked}))
        found: list[Target] = []
        for topic in response["Topics"]:
            for partition in topic["Partitions"]:
                target = topic["Name"], partition["PartitionIndex"]
                check(partition["ErrorCode"], f"{target[0]}:{target[1]}")
                rows = (row for row in partition["ActiveProducers"] if row["ProducerId"] == producer_id)
                found += [target for row in rows if row["CurrentTxnStartOffset"] >= 0]
        return found

    async def attempt() -> list[Target]:
        answers = await asyncio.gather(*(ask(*one) for one in cluster.by_leader(targets).items()))
        return sorted(target for found in answers for target in found)

    deadline = time.monotonic() + MARKER_DEADLINE_S
    while (found := await cluster.retry(attempt, "producers cannot be read")) and time.monotonic() < deadline:
        await asyncio.sleep(MARKER_POLL_S)
        await cluster.refresh()
    return found


async def read_parts(
    cluster: Cluster, transaction: TransactionNote, source: Target, *, wait: bool
) -> list[TransactionPart]:
    """Read a transaction's part of each partition that it wrote to, after its coordinator has ended it.

    Args:
        cluster: an open connection.
        transaction: the transaction to read, as noted for an input partition.
        source: the input partition.
        wait: also wait for markers that are not in the log yet.

    Raises:
        UnknownOutcomeError: a marker is still missing after MARKER_DEADLINE_S.
        KafkaUnavailableError: the cluster does not answer.
    """
    targets = [(topic, partition) for topic, numbers in transaction.records.items() for partition in numbers]
    parts = {target: TransactionPart(target, transaction, source) for target in targets}
    await cluster.partitions({topic for topic, _ in parts})
    # One millisecond earlier: the time index names the last offset of the batches that share a timestamp
    starts = await cluster.offsets(parts, transaction.id.begun_ms - 1)
    positions = {target: start for target, start in starts.items() if start >= 0}
    deadline = time.monotonic() + MARKER_DEADLINE_S
    while positions:
        fetched = await cluster.fetch(positions, committed=False, wait_ms=WAIT_MS, partition_bytes=PAGE_BYTES)
        waiting = True
        for target, _, high_watermark, _, _, data in fetched:
            batches = decode(data)
            part = parts[target]
            part.take(batches)
            if batches:
                positions[target] = batches[-1].last_offset + 1
                waiting = False
            if part.ended or (positions[target] >= high_watermark and not (wait and part.open)):
                del positions[target]
        if waiting and positions:
            if time.monotonic() > deadline:
                raise UnknownOutcomeError(f"a transaction that has ended has no marker in {sorted(positions)}")
            await asyncio.sleep(MARKER_POLL_S)
            await cluster.refresh()
    return list(parts.values())
