"""Reading topics from their start to a fixed end, and asking for offsets. Committed records only, no group."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaConnectionError, KafkaError

from shared.eos.records import Record
from shared.events.partitions import PARTITIONS
from shared.kafka.errors import KafkaUnavailableError

FETCH_BYTES = 4 * 1024 * 1024
POLL_MS = 500

OnRecords = Callable[[str, int, list[Record]], None]


@asynccontextmanager
async def _consumer(bootstrap_servers: str, isolation_level: str = "read_committed") -> AsyncIterator[Any]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level=isolation_level,
        enable_auto_commit=False,
        auto_offset_reset="none",
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    try:
        await consumer.start()
        yield consumer
    except KafkaConnectionError as error:
        raise KafkaUnavailableError(f"no broker answers at {bootstrap_servers}: start the stack with `once up`") from error
    except KafkaError as error:
        raise KafkaUnavailableError(f"the cluster at {bootstrap_servers} did not answer: {error!r}") from error
    finally:
        await consumer.stop()


def _targets(topics: Iterable[str]) -> list[Any]:
    return [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]


async def stable_offsets(bootstrap_servers: str, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """The last stable offset of each partition: where read_committed readers end."""
    async with _consumer(bootstrap_servers) as consumer:
        return {tuple(target): offset for target, offset in (await consumer.end_offsets(_targets(topics))).items()}


async def end_offsets(bootstrap_servers: str, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """The high watermark of each partition, records of open transactions included."""
    async with _consumer(bootstrap_servers, "read_uncommitted") as consumer:
        return {tuple(target): offset for target, offset in (await consumer.end_offsets(_targets(topics))).items()}


async def group_offsets(bootstrap_servers: str, group: str, topic: str) -> dict[int, int]:
    """A group's committed offsets by partition; partitions without one are missing.

    Raises:
        KafkaUnavailableError: no broker answers.
    """
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await client.start()
        found = await client.list_consumer_group_offsets(group)
    except KafkaError as error:
        raise KafkaUnavailableError(f"offsets of group {group} are not to be had: {error!r}") from error
    finally:
        await client.close()
    return {target.partition: at.offset for target, at in found.items() if target.topic == topic and at.offset >= 0}


async def read_topics(
    bootstrap_servers: str,
    topics: Sequence[str],
    on_records: OnRecords,
    *,
    start: Mapping[tuple[str, int], int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[tuple[str, int], int]:
    """Read topics read_committed from their start up to the last stable offset at call time.

    Args:
        on_records: called with topic, partition and records, in order per partition.
        start: offsets to begin at instead, for the partitions that it names.
        progress: called with offsets read and offsets to read, in all.

    Returns:
        The last stable offsets, where reading ended.

    Raises:
        KafkaUnavailableError: no broker answers.
    """
    async with _consumer(bootstrap_servers) as consumer:
        return await _read(consumer, _targets(topics), on_records, start or {}, progress)


async def read_partition(
    bootstrap_servers: str, topic: str, partition: int, take: Callable[[list[Record]], None]
) -> None:
    """Read one partition read_committed from its start up to the last stable offset at call time.

    Raises:
        KafkaUnavailableError: no broker answers.
    """
    async with _consumer(bootstrap_servers) as consumer:
        await _read(consumer, [TopicPartition(topic, partition)], lambda _t, _p, records: take(records), {}, None)


async def _read(
    consumer: Any,
    targets: list[Any],
    on_records: OnRecords,
    start: Mapping[tuple[str, int], int],
    progress: Callable[[int, int], None] | None,
) -> dict[tuple[str, int], int]:
    """The end is a position, not a record: the tail may hold nothing but markers and aborted records."""
    consumer.assign(targets)
    ends = await consumer.end_offsets(targets)
    beginnings = await consumer.beginning_offsets(targets)
    begun = {target: max(start.get(tuple(target), 0), beginnings[target]) for target in targets}
    for target, offset in begun.items():
        consumer.seek(target, offset)
    positions = dict(begun)
    total = sum(max(ends[target] - begun[target], 0) for target in targets)
    left = {target for target in targets if begun[target] < ends[target]}
    consumer.pause(*(target for target in targets if target not in left))
    while left:
        for target, records in (await consumer.getmany(*left, timeout_ms=POLL_MS)).items():
            on_records(
                target.topic,
                target.partition,
                [
                    Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
                    for r in records
                    if r.offset < ends[target]
                ],
            )
        for target in list(left):
            positions[target] = await consumer.position(target)
            if positions[target] >= ends[target]:
                left.discard(target)
                consumer.pause(target)
        if progress is not None:
            progress(sum(min(positions[t], ends[t]) - begun[t] for t in targets), total)
    return {tuple(target): offset for target, offset in ends.items()}
