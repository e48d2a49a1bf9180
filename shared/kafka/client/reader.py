"""Reads committed records without a consumer group: whole topics up to a fixed end, single records, and offsets.

Invariant: only committed records below the last stable offset at call time are returned, unless `record_at` is asked
for others. Each is returned once and in its partition's order. Reading ends even when the tail holds only markers or
aborted records.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TypeVar

from aiokafka.errors import KafkaError

from shared.eos.progress import CommittedOffset, committed_offset
from shared.eos.records import Record
from shared.events.headers import Coordinates
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import Batch, pages
from shared.kafka.client.cluster import EARLIEST, LATEST, PARTITION_BYTES, Cluster, Target, check
from shared.kafka.client.errors import TopicMismatchError, unavailable
from shared.kafka.client.requests import Request

# A state is restored between heartbeats, several partitions at once: no page may block the event loop for long
PAGE_BYTES = 256 * 1024

OnRecords = Callable[[str, int, list[Record]], None]
OnProgress = Callable[[int, int], None]

V = TypeVar("V")


async def read_topics(
    bootstrap_servers: Bootstrap,
    topics: Sequence[str],
    on_records: OnRecords,
    *,
    start: Mapping[Target, int] | None = None,
    progress: OnProgress | None = None,
) -> dict[Target, int]:
    """Read topics read_committed, from the start of their logs up to the last stable offset at call time.

    Args:
        topics: their names.
        on_records: called with topic, partition and records, in order per partition. It must not keep a whole topic.
        start: offsets to begin at instead, by (topic, partition).
        progress: called with offsets passed and the total number of offsets to pass.

    Returns:
        The last stable offset of each partition: reading ended there.

    Raises KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
    """
    async with Cluster(bootstrap_servers) as cluster:
        return await _read(cluster, await cluster.partitions(topics), on_records, start or {}, progress)


async def read_partition(
    bootstrap_servers: Bootstrap,
    topic: str,
    partition: int,
    on_records: Callable[[list[Record]], None],
    progress: OnProgress | None = None,
) -> int:
    """Read one partition as `read_topics` does; returns its last stable offset at call time.

    Raises KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
    """
    target = topic, partition
    async with Cluster(bootstrap_servers) as cluster:
        await cluster.partitions([topic])
        ends = await _read(
            cluster, [target], lambda _topic, _partition, records: on_records(records), {}, progress, PAGE_BYTES
        )
    return ends[target]


async def read_table(bootstrap_servers: Bootstrap, topic: str, decode: Callable[[bytes], V]) -> dict[str, V]:
    """Read the last value of each key of a compacted topic, in the keys' order; a tombstone removes its key.

    Args:
        topic: its name; its keys are text.
        decode: of a record's value.

    Raises KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
    """
    found: dict[str, V] = {}

    def take(_topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            key = (record.key or b"").decode()
            if record.value is None:
                found.pop(key, None)
            else:
                found[key] = decode(record.value)

    await read_topics(bootstrap_servers, [topic], take)
    return dict(sorted(found.items()))


async def partition_since(
    bootstrap_servers: Bootstrap, topic: str, partition: int, since_ms: int
) -> AsyncGenerator[list[Record], None]:
    """Read a partition's committed records from a time on, batch by batch, up to the last stable offset at the start.

    Close it when left early (`contextlib.aclosing`).

    Args:
        topic, partition: the partition to read.
        since_ms: milliseconds since 1970 UTC; older records may be among the first.

    Raises KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
    """
    target = topic, partition
    async with Cluster(bootstrap_servers) as cluster:
        await cluster.partitions([topic])
        end = (await cluster.offsets([target], LATEST, committed=True))[target]
        start = (await cluster.offsets([target], since_ms))[target]
        if start < 0:
            return
        try:
            async with aclosing(
                pages(cluster, {target: start}, ends={target: end}, committed=True, partition_bytes=PAGE_BYTES)
            ) as read:
                async for page in read:
                    # Decoded, a whole page takes several times its bytes, and several partitions are read at once
                    for batch in page.batches:
                        yield _records([batch], target, start, end)
        except KafkaError as error:
            raise unavailable(bootstrap_servers, f"records cannot be read: {error!r}") from error


async def record_at(cluster: Cluster, at: Coordinates, *, committed: bool = True) -> Record | None:
    """Read the one record at these coordinates; None when there is none, or when it is a marker.

    Args:
        cluster: an open connection.
        at: its coordinates; the topic must exist.
        committed: return it only when it is committed and below the last stable offset; else as soon as it is in the
            log.

    Raises KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
    """
    target = at.topic, at.partition
    if target not in await cluster.partitions([at.topic]):
        return None
    beginning = (await cluster.offsets([target], EARLIEST))[target]
    end = (await cluster.offsets([target], LATEST, committed=committed))[target]
    if not beginning <= at.offset < end:
        return None
    ends = {target: at.offset + 1}
    # A broker returns at least one batch of a partition, whatever the limit
    read = pages(cluster, {target: at.offset}, ends=ends, committed=committed, partition_bytes=1)
    async with aclosing(read):
        async for page in read:
            for batch in page.batches:
                if batch.is_control:
                    continue
                for record in batch.records(target):
                    if record.offset == at.offset:
                        return record
    return None


async def stable_offsets(bootstrap_servers: Bootstrap, topics: Iterable[str]) -> dict[Target, int]:
    """Return the last stable offset of each partition: below it, every transaction has ended.

    Raises KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
    """
    async with Cluster(bootstrap_servers) as cluster:
        return await cluster.offsets(await cluster.partitions(topics), LATEST, committed=True)


async def partition_count(bootstrap_servers: Bootstrap, topics: Sequence[str]) -> int:
    """Return the partition count of these topics.

    Raises:
        TopicMismatchError: they differ in it.
        KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
    """
    async with Cluster(bootstrap_servers) as cluster:
        return common_count(await cluster.partitions(topics))


def common_count(targets: Iterable[Target]) -> int:
    """Return the partition count that all topics of these partitions have. Pure.

    Raises TopicMismatchError: they differ in it.
    """
    by_topic = Counter(topic for topic, _ in targets)
    if len(set(by_topic.values())) != 1:
        shown = ", ".join(f"{topic} has {count}" for topic, count in sorted(by_topic.items()))
        raise TopicMismatchError(f"topics differ in their partition counts: {shown}. Use an empty cluster")
    return next(iter(by_topic.values()))


async def end_offsets(bootstrap_servers: Bootstrap, topics: Iterable[str]) -> dict[Target, int]:
    """Return the high watermark of each partition. Raises KafkaUnavailableError."""
    async with Cluster(bootstrap_servers) as cluster:
        return await cluster.offsets(await cluster.partitions(topics), LATEST)


async def beginning_offsets(bootstrap_servers: Bootstrap, topics: Iterable[str]) -> dict[Target, int]:
    """Return the first offset of each partition that is still in the log. Raises KafkaUnavailableError."""
    async with Cluster(bootstrap_servers) as cluster:
        return await cluster.offsets(await cluster.partitions(topics), EARLIEST)


async def group_offsets(bootstrap_servers: Bootstrap, group: str, topic: str) -> dict[int, int]:
    """Return the committed offsets of a consumer group, by partition; partitions without one are absent.

    Raises KafkaUnavailableError: the cluster does not answer.
    """
    async with Cluster(bootstrap_servers) as cluster:
        return await committed_offsets(cluster, group, topic)


async def committed_offsets(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    """Return `group_offsets` over an open connection."""
    rows = await _offset_rows(cluster, group, None)
    return {partition: offset for name, partition, offset, _ in rows if name == topic}


async def committed_at(cluster: Cluster, group: str, topic: str, partition: int) -> CommittedOffset | None:
    """Return the committed offset of one partition with its transaction; None when there is none.

    It waits for the end of a transaction that commits the offset (KIP-447).

    Raises KafkaUnavailableError: the cluster does not answer, or the transaction does not end.
    """
    rows = await _offset_rows(cluster, group, [(topic, [partition])], stable=True)
    return next((committed_offset(offset, metadata) for *_, offset, metadata in rows), None)


async def _offset_rows(
    cluster: Cluster, group: str, topics: list[tuple[str, list[int]]] | None, *, stable: bool = False
) -> list[tuple[str, int, int, str | None]]:
    """Return topic, partition, offset and metadata of a group's offsets; of all partitions if `topics` is None."""

    named = None if topics is None else [{"Name": name, "PartitionIndexes": numbers} for name, numbers in topics]
    asked = {"GroupId": group, "Topics": named, "RequireStable": stable}

    async def attempt() -> list[tuple[str, int, int, str | None]]:
        response = await cluster.send(await cluster.coordinator(group), Request("OffsetFetch", 7, asked))
        check(response["ErrorCode"], group)
        found: list[tuple[str, int, int, str | None]] = []
        for topic in response["Topics"]:
            for part in topic["Partitions"]:
                check(part["ErrorCode"], f"{group} {topic['Name']}:{part['PartitionIndex']}")
                if part["CommittedOffset"] >= 0:
                    found.append((topic["Name"], part["PartitionIndex"], part["CommittedOffset"], part["Metadata"]))
        return found

    return await cluster.retry(attempt, f"offsets of group {group} cannot be read")


async def _read(
    cluster: Cluster,
    targets: list[Target],
    on_records: OnRecords,
    start: Mapping[Target, int],
    progress: OnProgress | None,
    partition_bytes: int = PARTITION_BYTES,
) -> dict[Target, int]:
    beginnings = await cluster.offsets(targets, EARLIEST)
    ends = await cluster.offsets(targets, LATEST, committed=True)
    positions = {target: max(start.get(target, 0), beginning) for target, beginning in beginnings.items()}
    passed = dict(positions)
    total = sum(max(ends[target] - at, 0) for target, at in positions.items())
    try:
        async with aclosing(
            pages(cluster, positions, ends=ends, committed=True, partition_bytes=partition_bytes)
        ) as read:
            async for page in read:
                records = _records(page.batches, page.target, positions[page.target], ends[page.target])
                if records:
                    on_records(*page.target, records)
                if progress is not None:
                    passed[page.target] = min(max(page.next_offset, passed[page.target]), ends[page.target])
                    progress(sum(passed.values()) - sum(positions.values()), total)
    except KafkaError as error:
        raise unavailable(cluster.bootstrap_servers, f"records cannot be read: {error!r}") from error
    return ends


def _records(batches: list[Batch], target: Target, start: int, end: int) -> list[Record]:
    records: list[Record] = []
    for batch in batches:
        taken = batch.records(target)
        # A start within a batch; an end lies between batches unless the caller chose it
        if batch.base_offset < start or batch.last_offset >= end:
            taken = [record for record in taken if start <= record.offset < end]
        records += taken
    return records
