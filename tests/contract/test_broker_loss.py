"""Three brokers, of which one or all are lost or silent: what the idempotent writer and a look at transactions do."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import LOOPBACK
from shared.events import catalogue
from shared.kafka.admin.transactions import look
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.consumer import Tail
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import IdempotentWriter
from tests.contract.helpers import TRANSACTIONAL, here, since, whole, write_patiently

pytestmark = pytest.mark.timeout(180)

LETTERS = catalogue.PAYMENTS_DEAD_LETTER
ANSWER_S = 2.0
ASKED_S = 1.0
"""A silent broker costs this twice at most, so a look ends before the cluster fences that broker."""


@pytest_asyncio.fixture
async def asked(replicated: LocalKafka) -> AsyncIterator[Brokers]:
    """Connections to every broker."""
    async with Brokers(replicated.bootstrap_servers, answer_s=ANSWER_S) as opened:
        yield opened


def resent() -> float:
    """Return how many records this process has retried."""
    return REGISTRY.get_sample_value("kafka_producer_record_retry_total") or 0.0


async def test_batches_resent_after_the_loss_of_a_broker_keep_every_record_once_and_in_order(
    replicated: LocalKafka,
) -> None:
    retried = resent()
    brokers, topic, count = replicated.bootstrap_servers, catalogue.PAYMENTS_ACCEPTED, 60_000
    start = await here(brokers, topic)
    async with IdempotentWriter(brokers, request_timeout_s=60) as writer:
        for number in range(count):
            if number == count // 3:
                await asyncio.to_thread(replicated.processes[1].kill)
            await writer.write(topic, number % 6, b"k", b"%d" % number)
            if number % 1000 == 0:
                await asyncio.sleep(0.005)  # spreads the writes over the broker's failure
        await writer.flush()
        replicated.processes[1].start()
    assert resent() > retried, "no batch was retried"
    await asyncio.to_thread(replicated.wait_in_sync, 90)
    found = await since(brokers, start)
    for partition in range(6):
        expected = [b"%d" % number for number in range(partition, count, 6)]
        assert [record.value for record in found[partition]] == expected


@asynccontextmanager
async def silence(port: int) -> AsyncIterator[list[asyncio.StreamWriter]]:
    """Take connections at a port, which are returned, and answer nothing, as a machine does that hangs."""
    taken: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: taken.append(writer), LOOPBACK, port, reuse_address=True)
    try:
        yield taken
    finally:
        server.close()
        for writer in taken:
            writer.close()


async def test_a_silent_broker_holds_up_no_records_of_others(replicated: LocalKafka) -> None:
    attempt_s = 30.0  # of two that the writer has time for; the reader's have 40 s
    killed, brokers, found = replicated.processes[1], replicated.bootstrap_servers, list[bytes | None]()
    async with IdempotentWriter(brokers, request_timeout_s=2 * attempt_s) as writer, Tail(brokers, LETTERS) as tail:
        for partition in range(6):
            await writer.send(LETTERS, partition, b"k", b"before")
        await asyncio.to_thread(killed.kill)
        try:
            async with silence(replicated.nodes[1].port) as taken:
                begun_s = time.monotonic()
                await asyncio.gather(*(writer.send(LETTERS, partition, b"k", b"after") for partition in range(6)))
                while found.count(b"after") < 6:
                    found += [record.value for record in await tail.poll(1000)]
                took_s = time.monotonic() - begun_s
                await asked_of_others(brokers, taken)
        finally:
            killed.start()
            await asyncio.to_thread(replicated.wait_in_sync, 90)
    assert took_s < attempt_s / 2


async def asked_of_others(brokers: str, taken: list[asyncio.StreamWriter]) -> None:
    """Check that clients which are opened do not begin with a broker that one of the process has found silent."""
    before = len(taken)
    for _ in range(20):
        async with Cluster(brokers) as cluster:
            await cluster.partitions([LETTERS])
    assert len(taken) <= before + 1


async def test_a_dead_broker_is_named_and_the_other_brokers_answers_are_kept(
    replicated: LocalKafka, asked: Brokers
) -> None:
    before = await whole(asked)
    assert before.brokers == before.coordinators == {0, 1, 2}
    replicated.processes[2].kill()
    try:
        half = await look(asked, TRANSACTIONAL)
        assert half.brokers == {0, 1, 2}, "the cluster fenced the broker too early, so this proves nothing"
        assert [reason for reason in half.unanswered if reason.startswith("broker 2: ")]
        assert half.coordinators == {0, 1}
        assert half.offsets
        assert set(half.offsets) < set(before.offsets)
        with pytest.raises(BrokerSilentError, match="broker 2"):
            await asked.ask(2, None)
        after = await whole(asked)
        assert after.brokers == after.coordinators == {0, 1}
        assert set(after.offsets) == set(before.offsets)
    finally:
        replicated.processes[2].start()
        replicated.wait_in_sync()


async def test_a_silent_broker_delays_a_look_by_no_more_than_the_answer_timeout(
    replicated: LocalKafka,
) -> None:
    async with Brokers(replicated.bootstrap_servers, answer_s=ASKED_S) as asked:
        await whole(asked)
        replicated.processes[0].pause()
        try:
            begun = time.monotonic()
            half = await look(asked, TRANSACTIONAL)
            took_s = time.monotonic() - begun
            assert f"broker 0: no answer within {ASKED_S:g} s" in half.unanswered
            assert half.coordinators == {1, 2}
            assert took_s < 2 * ASKED_S + 1  # once more if that broker was asked for the metadata
            # A look has a gap until the cluster fences that broker
            assert (await whole(asked)).brokers == {1, 2}
        finally:
            replicated.processes[0].resume()
            replicated.wait_in_sync()


async def test_unacknowledged_bytes_are_bounded(replicated: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.kafka.client.idempotent.UNACKNOWLEDGED_BYTES_MAX", 1024 * 1024)
    written = 0
    await write_patiently(replicated.bootstrap_servers, LETTERS)
    async with IdempotentWriter(replicated.bootstrap_servers, request_timeout_s=2.0) as writer:
        replicated.pause()
        try:
            with pytest.raises(KafkaUnavailableError):  # noqa: PT012 # the test measures which write fails
                while True:
                    await writer.write(LETTERS, 0, b"k", b"x" * 10_000)
                    written += 10_000
        finally:
            replicated.resume()
        await asyncio.to_thread(replicated.wait_in_sync, 90)
        # A timeout is raised once; a record that was not refused may still arrive
        with pytest.raises(KafkaUnavailableError):
            await writer.flush()
    assert written < 3 * 1024 * 1024
