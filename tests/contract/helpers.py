"""Helpers of the Kafka clients' contract tests: a transactional producer and readers."""

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from shared.eos.crash import CrashPoints
from shared.eos.open_transactions import Look
from shared.eos.records import Record
from shared.events import catalogue
from shared.kafka.admin.transactions import look
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Target
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, read_partition, read_topics
from shared.kafka.runtime.producer import TransactionalProducer
from tests.harness import eventually, settled_at

TRANSACTIONAL = (catalogue.PAYMENTS_DEDUPLICATED, catalogue.PAYMENTS_IDENTITIES)
"""Topics for transactions that tests leave open."""


@asynccontextmanager
async def producing(
    brokers: str, transactional_id: str | None = None, *, version_max: int = 2
) -> AsyncIterator[TransactionalProducer]:
    """Initialise a transactional producer, with a unique transactional.id by default."""
    name = transactional_id or f"clients-{uuid.uuid4()}"
    points = CrashPoints("", lambda _: None)
    producer = TransactionalProducer(brokers, name, 10_000, points, version_max=version_max)
    try:
        await producer.init(30)
        yield producer
    finally:
        await producer.discard()


async def committed(brokers: str, topic: str, partition: int) -> list[bytes | None]:
    """Read the values committed to one partition once it has no open transaction."""
    await eventually(lambda: settled_at(brokers, (topic, partition)), "no transaction open")
    found: list[Record] = []
    await read_partition(brokers, topic, partition, found.extend)
    return [record.value for record in found]


async def here(brokers: str, topic: str) -> dict[Target, int]:
    """Return the topic's current end offsets: other tests have written to it."""
    return await end_offsets(brokers, [topic])


async def since(brokers: str, start: Mapping[Target, int]) -> dict[int, list[Record]]:
    """Read the records committed since these offsets, by partition."""
    [topic] = {topic for topic, _ in start}
    found: dict[int, list[Record]] = {number: [] for _, number in await end_offsets(brokers, [topic])}
    await read_topics(brokers, [topic], lambda _, number, records: found[number].extend(records), start=start)
    return found


async def values_since(brokers: str, start: Mapping[Target, int], partition: int = 0) -> list[bytes | None]:
    """Read the values committed to one partition since these offsets."""
    return [record.value for record in (await since(brokers, start))[partition]]


async def whole(asked: Brokers) -> Look:
    """Look at the open transactions of both topics until every broker answers."""
    looks: list[Look] = []

    async def answered() -> bool:
        looks.append(await look(asked, TRANSACTIONAL))
        return not looks[-1].unanswered

    await eventually(answered, "a look without gaps", 60)
    return looks[-1]


async def write_patiently(brokers: str, topic: str) -> None:
    """Write a record patiently: brokers that an earlier test stopped may still elect leaders."""
    async with IdempotentWriter(brokers) as writer:
        await writer.send(topic, 0, b"k", b"patient")
