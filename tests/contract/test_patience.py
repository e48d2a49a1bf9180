"""The wait of empty fetches: long if they cover all of a broker's partitions, short if they omit one."""

import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest_asyncio

from deploy.local.kafka.cluster import LocalKafka
from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.client.consumer import IDLE_WAIT_MS, Tail
from shared.kafka.client.idempotent import IdempotentWriter
from tests.harness import eventually


class Fetched(NamedTuple):
    """An answered fetch."""

    partitions: frozenset[int]
    seconds: float


class Watched:
    """A reader of all partitions from their ends, and its fetches."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.consumer = tail._consumer
        self.fetches: list[Fetched] = []
        client = self.consumer._client
        send = client.send

        async def watched(node_id: int, request: Any, **options: Any) -> Any:
            begun_s = time.monotonic()
            response = await send(node_id, request, **options)
            if type(request).__name__ == "FetchRequest":
                asked = frozenset(partition for _, rows in request.topics for partition, *_ in rows)
                self.fetches.append(Fetched(asked, time.monotonic() - begun_s))
            return response

        client.send = watched

    def neighbours(self) -> list[Any]:
        """Return the partitions that one broker leads."""
        cluster = self.consumer._client.cluster
        of_leader: dict[int, list[Any]] = {}
        for target in self.consumer.assignment():
            of_leader.setdefault(cluster.leader_for_partition(target), []).append(target)
        return next(led for led in of_leader.values() if len(led) > 1)


@pytest_asyncio.fixture
async def watched(scratch: LocalKafka) -> AsyncIterator[Watched]:
    async with Tail(scratch.bootstrap_servers, PAYMENTS_RAW) as tail:
        yield Watched(tail)


async def write(kafka: LocalKafka, partition: int) -> None:
    async with IdempotentWriter(kafka.bootstrap_servers) as writer:
        await writer.write(PAYMENTS_RAW, partition, b"key", b"value")


async def test_an_idle_fetch_waits_long_and_a_record_ends_it_at_once(scratch: LocalKafka, watched: Watched) -> None:
    together = frozenset(target.partition for target in watched.neighbours())

    async def idles() -> bool:
        await watched.tail.poll(20)
        return any(fetch.partitions == together and fetch.seconds > IDLE_WAIT_MS * 0.8e-3 for fetch in watched.fetches)

    await eventually(idles, "a fetch waits long")
    async with IdempotentWriter(scratch.bootstrap_servers) as writer:  # connected before the measurement
        watched.fetches.clear()
        for _ in range(5):
            await writer.write(PAYMENTS_RAW, min(together), b"key", b"value")
            await writer.flush()
            assert [record.value for record in await watched.tail.poll(10_000)] == [b"value"]
    woken = [fetch.seconds for fetch in watched.fetches if fetch.partitions == together]
    assert min(woken) < IDLE_WAIT_MS * 0.8e-3


async def test_a_fetch_that_omits_a_partition_waits_briefly(scratch: LocalKafka, watched: Watched) -> None:
    held, *others = watched.neighbours()
    alone = frozenset(target.partition for target in others)
    watched.consumer.pause(held)  # omitted from fetches, like a partition whose records are being processed

    def waits() -> list[float]:
        return sorted(fetch.seconds for fetch in watched.fetches if fetch.partitions == alone)

    async def often() -> bool:
        await watched.tail.poll(20)
        return len(waits()) > 5

    await eventually(often, "the other partitions are fetched alone")
    assert waits()[0] < IDLE_WAIT_MS * 0.5e-3
    watched.consumer.resume(held)
    await write(scratch, held.partition)
    assert [record.partition for record in await watched.tail.poll(10_000)] == [held.partition]
