"""How long empty fetches wait: long when they cover all of a broker's partitions, briefly when they leave one out."""

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from aiokafka import TopicPartition
from aiokafka.protocol.fetch import FetchRequest

from deploy.local.kafka import LocalKafka
from shared.events.catalogue import PARTITIONS, PAYMENTS_RAW
from shared.kafka.idempotent import IdempotentWriter
from shared.kafka.patience import AT_REST_MS, PatientConsumer
from tests.harness import eventually

pytestmark = pytest.mark.stack

BRIEF_MS = 50


class Fetched(NamedTuple):
    """A fetch that was answered."""

    partitions: frozenset[int]
    seconds: float


class Watched:
    """A consumer of all partitions from their ends on, and its fetches."""

    def __init__(self, brokers: str) -> None:
        self.partitions = [TopicPartition(PAYMENTS_RAW, number) for number in range(PARTITIONS)]
        self.consumer = PatientConsumer(bootstrap_servers=brokers, fetch_max_wait_ms=BRIEF_MS)
        self.fetches: list[Fetched] = []

    async def start(self) -> None:
        await self.consumer.start()
        client = self.consumer._client
        send = client.send

        async def watched(node_id: int, request: Any, **options: Any) -> Any:
            begun_s = time.monotonic()
            response = await send(node_id, request, **options)
            if isinstance(request, FetchRequest):
                asked = frozenset(partition for _, rows in request.topics for partition, *_ in rows)
                self.fetches.append(Fetched(asked, time.monotonic() - begun_s))
            return response

        client.send = watched
        self.consumer.assign(self.partitions)
        await self.consumer.seek_to_end(*self.partitions)

    def neighbours(self) -> list[int]:
        """Partitions that one broker leads."""
        cluster = self.consumer._client.cluster
        leader = cluster.leader_for_partition(self.partitions[0])
        return [target.partition for target in self.partitions if cluster.leader_for_partition(target) == leader]


@pytest_asyncio.fixture
async def watched(scratch: LocalKafka) -> AsyncIterator[Watched]:
    made = Watched(scratch.bootstrap_servers)
    await made.start()
    yield made
    await made.consumer.stop()


async def write(kafka: LocalKafka, partition: int) -> None:
    async with IdempotentWriter(kafka.bootstrap_servers) as writer:
        await writer.write(PAYMENTS_RAW, partition, b"key", b"value")


async def test_at_rest_a_fetch_waits_long_and_a_record_ends_it_at_once(scratch: LocalKafka, watched: Watched) -> None:
    together = frozenset(watched.neighbours())

    async def rests() -> bool:
        await watched.consumer.getmany(timeout_ms=20)
        return any(fetch.partitions == together and fetch.seconds > AT_REST_MS * 0.8e-3 for fetch in watched.fetches)

    await eventually(rests, "a fetch waits long")
    watched.fetches.clear()
    for _ in range(5):
        await write(scratch, min(together))
        polled = await watched.consumer.getmany(timeout_ms=10_000)
        assert [record.value for records in polled.values() for record in records] == [b"value"]
    woken = [fetch.seconds for fetch in watched.fetches if fetch.partitions == together]
    assert min(woken) < AT_REST_MS * 0.5e-3


async def test_a_fetch_that_leaves_a_partition_out_waits_briefly(scratch: LocalKafka, watched: Watched) -> None:
    one, other = watched.neighbours()[:2]
    held, read = TopicPartition(PAYMENTS_RAW, one), TopicPartition(PAYMENTS_RAW, other)
    watched.consumer.pause(held)  # like one whose records are being processed: it is in no fetch

    async def alone() -> bool:
        await watched.consumer.getmany(timeout_ms=20)
        return sum(fetch.partitions == frozenset(watched.neighbours()) - {one} for fetch in watched.fetches) > 5

    await eventually(alone, "the others are asked for alone")
    waits = sorted(fetch.seconds for fetch in watched.fetches if fetch.partitions == {other})
    assert waits[len(waits) // 2] < AT_REST_MS * 0.8e-3
    # So whoever comes back waits for no more than that
    watched.consumer.resume(held)
    await write(scratch, one)
    assert list(await watched.consumer.getmany(timeout_ms=10_000)) == [held]
    assert read in watched.consumer.assignment()
