"""The idempotent writer's guarantees, against real brokers that stop and restart."""

import asyncio
import contextlib
import gc

import pytest

from deploy.local.kafka.cluster import LocalKafka
from shared.eos.records import Record
from shared.events import catalogue
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import KafkaUnavailableError, RecordTooLargeError
from shared.kafka.client.idempotent import TURN_RECORDS, IdempotentWriter
from shared.kafka.client.reader import read_partition
from tests.contract.helpers import here, values_since, write_patiently
from tests.harness import eventually

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]

RAW = catalogue.PAYMENTS_RAW
LETTERS = catalogue.PAYMENTS_DEAD_LETTER
TABLE = catalogue.REFERENCE_FEES


async def test_concurrent_sends_share_batches_and_get_their_own_offsets(brokers: str) -> None:
    topic = catalogue.TRANSFORM_PROGRESS
    start = await here(brokers, topic)
    async with IdempotentWriter(brokers) as writer:
        sent = await asyncio.gather(*(writer.send(topic, n % 6, b"k", b"%d" % n) for n in range(600)))
    assert [(at.topic, at.partition) for at in sent] == [(topic, n % 6) for n in range(600)]
    for partition in range(6):
        found: list[Record] = []
        await read_partition(brokers, topic, partition, found.extend)
        by_offset = {record.offset: (record.value, record.timestamp_ms) for record in found}
        for n in range(partition, 600, 6):
            assert by_offset[sent[n].offset] == (b"%d" % n, sent[n].timestamp_ms)
    async with Cluster(brokers) as cluster:
        fetched = await cluster.fetch(
            {target: start[target] for target in await cluster.partitions([topic])}, committed=False
        )
        assert sum(len(part.data) for part in fetched) < 600 * 61  # fewer bytes than one batch header each


async def test_a_batch_that_waits_for_metadata_is_not_overtaken(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values, calls, overtaken = [b"%05d" % number + b"x" * 9_995 for number in range(80)], 0, asyncio.Event()

    async def wait_on_metadata(_topic: str) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            overtaken.set()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await overtaken.wait()

    start = await here(brokers, RAW)
    async with IdempotentWriter(brokers) as writer:
        await writer.send(RAW, 0, b"k", b"first")
        monkeypatch.setattr(writer._producer.client, "_wait_on_metadata", wait_on_metadata)
        await writer.write(RAW, 0, b"k", values[0])

        async def is_waiting() -> bool:
            return calls == 1

        await eventually(is_waiting, "a batch that waits")
        for value in values[1:]:
            await writer.write(RAW, 0, b"k", value)
        await writer.flush()
        assert calls > 1
    assert await values_since(brokers, start) == [b"first", *values]


async def test_a_record_that_is_too_large_is_refused_and_the_others_are_sent(brokers: str) -> None:
    topic = catalogue.LEDGER_TRANSFERS
    start = await here(brokers, topic)
    async with IdempotentWriter(brokers) as writer:
        await writer.write(topic, 0, b"k", b"before")
        with pytest.raises(RecordTooLargeError):
            await writer.write(topic, 0, b"k", b"x" * (1024 * 1024))
        with pytest.raises(RecordTooLargeError):
            await writer.send(topic, 0, b"k", b"x" * (1024 * 1024))
        await writer.write(topic, 0, b"k", b"y" * (1000 * 1024))  # larger than a batch, within the limit
        await writer.write(topic, 0, b"k", b"after")
    assert [len(value or b"") for value in await values_since(brokers, start)] == [6, 1000 * 1024, 5]


async def test_a_refused_record_raises_and_the_writer_continues_with_a_new_producer_id(brokers: str) -> None:
    # The brokers refuse a record without a key on a compacted topic
    topic = catalogue.REFERENCE_BALANCES
    start = await here(brokers, topic)
    async with IdempotentWriter(brokers) as writer:
        await writer.write(topic, 0, None, b"no key")
        with pytest.raises(KafkaUnavailableError, match="refused a batch"):
            await writer.flush()
        with pytest.raises(KafkaUnavailableError, match="refused a batch"):
            await writer.send(topic, 0, None, b"no key")
        for number in range(3):
            assert (await writer.send(topic, 0, b"k", b"%d" % number)).offset == start[topic, 0] + number
    assert await values_since(brokers, start) == [b"0", b"1", b"2"]


async def test_a_failure_surfaces_on_the_next_write_and_when_leaving(brokers: str) -> None:
    topic = catalogue.REFERENCE_RATES
    async with IdempotentWriter(brokers) as writer:
        await writer.write(topic, 1, None, b"no key")

        async def refused() -> bool:
            try:
                await writer.write(topic, 2, b"k", b"v")
            except KafkaUnavailableError:
                return True
            return False

        await eventually(refused, "the failure surfaced")
    with pytest.raises(KafkaUnavailableError, match="refused a batch"):
        async with IdempotentWriter(brokers) as writer:
            await writer.write(topic, 1, None, b"no key")


async def test_a_silent_cluster_fails_a_send_in_time_and_is_used_again_after_it_resumes(own_kafka: LocalKafka) -> None:
    brokers, topic = own_kafka.bootstrap_servers, RAW
    await write_patiently(brokers, topic)
    start = await here(brokers, topic)
    async with IdempotentWriter(brokers, request_timeout_s=2.0) as writer:
        await writer.send(topic, 0, b"k", b"first")
        own_kafka.pause()
        try:
            begun = asyncio.get_running_loop().time()
            with pytest.raises(KafkaUnavailableError, match="did not acknowledge"):
                await writer.send(topic, 0, b"k", b"silent")
            assert asyncio.get_running_loop().time() - begun < 4
        finally:
            own_kafka.resume()

        async def taken() -> bool:
            try:
                await writer.send(topic, 0, b"k", b"back")
            except KafkaUnavailableError:
                return False
            return True

        await eventually(taken, "the writer accepts records again")
    await asyncio.to_thread(own_kafka.wait_in_sync, 90)
    values = await values_since(brokers, start)
    assert values[0] == b"first"
    assert values[-1] == b"back"
    assert values.count(b"silent") <= 1


async def leave_with_an_error(kafka: LocalKafka) -> None:
    """Enter a writer's context and leave it with an error after its sends timed out."""
    async with IdempotentWriter(kafka.bootstrap_servers, request_timeout_s=5.0) as writer:
        kafka.pause()
        sent = [asyncio.create_task(writer.send(RAW, n % 6, b"k", b"x" * 100_000)) for n in range(60)]
        failed = await asyncio.gather(*sent, return_exceptions=True)
        assert {type(one) for one in failed} == {KafkaUnavailableError}
        raise FileNotFoundError


async def test_a_send_that_is_given_up_raises_and_logs_nothing(
    own_kafka: LocalKafka, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # objects that earlier tests left log their errors now
    caplog.clear()
    try:
        with pytest.raises(FileNotFoundError):
            await leave_with_an_error(own_kafka)
    finally:
        own_kafka.resume()
    await asyncio.to_thread(own_kafka.wait_in_sync, 90)
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_writer_without_a_pause_yields_to_other_tasks(brokers: str) -> None:
    async with IdempotentWriter(brokers) as writer:
        turns: list[bool] = []
        asyncio.get_running_loop().call_soon(turns.append, True)
        for _ in range(TURN_RECORDS):
            await writer.write(LETTERS, 0, b"k", b"v")
        assert turns
