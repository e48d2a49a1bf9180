"""What the plain clients promise, against real brokers: administration, reading, idempotent writing."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from deploy.local.kafka import LocalKafka
from deploy.local.ports import free_ports
from shared.eos.crash import CrashPoints
from shared.eos.records import Output, Record
from shared.events import catalogue
from shared.kafka.admin import broker_config, check_topics, ensure_topics, set_group_offsets
from shared.kafka.cluster import Cluster
from shared.kafka.errors import KafkaUnavailableError, RecordTooLargeError, TopicMismatchError
from shared.kafka.global_table import GlobalTable
from shared.kafka.idempotent import IdempotentWriter
from shared.kafka.producer import TransactionalProducer
from shared.kafka.reader import end_offsets, group_offsets, read_partition, read_topics, stable_offsets
from tests.harness import eventually

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

RAW = catalogue.PAYMENTS_RAW
LETTERS = catalogue.PAYMENTS_DEAD_LETTER
TABLE = catalogue.REFERENCE_FEES


@asynccontextmanager
async def producing(brokers: str) -> AsyncIterator[TransactionalProducer]:
    producer = TransactionalProducer(brokers, f"clients-{uuid.uuid4()}", 10_000, CrashPoints("", lambda _: None))
    try:
        await producer.init(30)
        yield producer
    finally:
        await producer.discard()


async def transact(producer: TransactionalProducer, topic: str, values: list[bytes], *, commit: bool) -> None:
    await producer.begin()
    producer.append([Output(topic, 0, b"k", value, ()) for value in values], 1_700_000_000_000)
    await producer.flush()
    await (producer.commit() if commit else producer.abort())


async def settled(brokers: str, topic: str) -> bool:
    """Whether no transaction is open: markers are written after EndTxn was answered."""
    return await stable_offsets(brokers, [topic]) == await end_offsets(brokers, [topic])


async def values_of(brokers: str, topic: str, partition: int = 0) -> list[bytes | None]:
    found: list[Record] = []
    await read_partition(brokers, topic, partition, found.extend)
    return [record.value for record in found]


def nowhere() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


# Administration


async def test_topics_are_made_once_and_as_the_catalogue_says(brokers: str) -> None:
    assert await ensure_topics(brokers) == []
    await check_topics(brokers, [topic.name for topic in catalogue.TOPICS])


async def test_a_missing_topic_is_named(brokers: str) -> None:
    with pytest.raises(TopicMismatchError, match=r"payments\.rwa is missing"):
        await check_topics(brokers, [RAW, "payments.rwa"])


async def test_another_partition_count_is_refused(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.kafka.admin.PARTITIONS", 12)
    with pytest.raises(TopicMismatchError, match=r"payments\.raw has 6 partitions"):
        await check_topics(brokers, [RAW])
    with pytest.raises(TopicMismatchError, match="has 6 partitions"):
        await ensure_topics(brokers)


async def test_a_brokers_setting_can_be_asked_for(brokers: str) -> None:
    assert int(await broker_config(brokers, "transaction.max.timeout.ms")) > 0
    with pytest.raises(LookupError, match=r"no\.such\.setting"):
        await broker_config(brokers, "no.such.setting")


async def test_group_offsets_are_those_that_were_set(brokers: str) -> None:
    group = f"group-{uuid.uuid4()}"
    assert await group_offsets(brokers, group, RAW) == {}
    await set_group_offsets(brokers, group, RAW, {0: 5, 3: 7})
    assert await group_offsets(brokers, group, RAW) == {0: 5, 3: 7}
    assert await group_offsets(brokers, group, LETTERS) == {}


async def test_a_cluster_that_is_not_there_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(KafkaUnavailableError, match="once up"):
        async with Cluster(nowhere(), deadline_s=0.5):
            pass
    with pytest.raises(KafkaUnavailableError, match="once up"):
        async with IdempotentWriter(nowhere(), request_timeout_s=0.5):
            pass


# Reading


async def test_only_committed_records_are_read_and_a_tail_of_markers_ends_it(brokers: str) -> None:
    topic = catalogue.PAYMENTS_DEDUPLICATED
    async with producing(brokers) as producer:
        await transact(producer, topic, [b"a", b"b"], commit=True)
        await transact(producer, topic, [b"dropped"] * 50, commit=False)
        await transact(producer, topic, [b"c"], commit=True)
        await transact(producer, topic, [b"dropped too"], commit=False)
        await eventually(lambda: settled(brokers, topic), "no transaction open")
        assert await values_of(brokers, topic) == [b"a", b"b", b"c"]

        await producer.begin()
        producer.append([Output(topic, 0, b"k", b"open", ())], 1_700_000_000_000)
        await producer.flush()
        assert await values_of(brokers, topic) == [b"a", b"b", b"c"]
        stable = (await stable_offsets(brokers, [topic]))[topic, 0]
        assert stable == (await end_offsets(brokers, [topic]))[topic, 0] - 1
        await producer.abort()


async def test_reading_gives_every_record_once_in_order_with_progress(brokers: str) -> None:
    topic, count = catalogue.LEDGER_POSTINGS, 30_000
    async with IdempotentWriter(brokers) as writer:
        for number in range(count):
            await writer.write(topic, number % 6, b"%d" % number, b"x" * 300, (("n", b"%d" % number),), 1000 + number)
    found: dict[int, list[Record]] = {partition: [] for partition in range(6)}
    seen: list[tuple[int, int]] = []
    ends = await read_topics(
        brokers,
        [topic],
        lambda _, partition, records: found[partition].extend(records),
        progress=lambda done, total: seen.append((done, total)),
    )
    for partition, records in found.items():
        assert [record.offset for record in records] == list(range(count // 6)) == list(range(ends[topic, partition]))
        numbers = [int(record.key or b"") for record in records]
        assert numbers == list(range(partition, count, 6))
        assert [record.timestamp_ms for record in records] == [1000 + number for number in numbers]
        assert [record.headers for record in records] == [(("n", b"%d" % number),) for number in numbers]
    assert seen[-1] == (count, count)
    assert sorted(seen) == seen


async def test_reading_may_start_within_a_batch(brokers: str) -> None:
    topic = catalogue.LEDGER_BALANCES
    async with IdempotentWriter(brokers) as writer:
        for number in range(100):
            await writer.write(topic, 2, b"%d" % number, b"v")
    found: list[Record] = []
    await read_topics(brokers, [topic], lambda _, __, records: found.extend(records), start={(topic, 2): 37})
    assert [record.offset for record in found] == list(range(37, 100))


async def test_a_topic_that_does_not_exist_is_an_error(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KafkaUnavailableError, match=r"payments\.rwa does not exist"):
        async with Cluster(brokers, deadline_s=1) as cluster:
            await cluster.partitions([RAW, "payments.rwa"])


# Writing


async def test_concurrent_sends_share_batches_and_get_their_own_offsets(brokers: str) -> None:
    topic = catalogue.TRANSFORM_PROGRESS
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
        fetched = await cluster.fetch(dict.fromkeys(await cluster.partitions([topic]), 0), committed=False)
        assert sum(len(part.data) for part in fetched) < 600 * 61  # fewer bytes than one batch header each


async def test_a_record_that_is_too_large_is_refused_and_the_others_go(brokers: str) -> None:
    topic = catalogue.LEDGER_TRANSFERS
    async with IdempotentWriter(brokers) as writer:
        await writer.write(topic, 0, b"k", b"before")
        with pytest.raises(RecordTooLargeError):
            await writer.write(topic, 0, b"k", b"x" * (1024 * 1024))
        with pytest.raises(RecordTooLargeError):
            await writer.send(topic, 0, b"k", b"x" * (1024 * 1024))
        await writer.write(topic, 0, b"k", b"y" * (1000 * 1024))  # larger than a batch, within the limit
        await writer.write(topic, 0, b"k", b"after")
    assert [len(value or b"") for value in await values_of(brokers, topic)] == [6, 1000 * 1024, 5]


async def test_a_refused_record_is_told_and_the_writer_goes_on_under_a_new_producer_id(brokers: str) -> None:
    # The brokers refuse a record without a key on a compacted topic
    topic = catalogue.REFERENCE_BALANCES
    async with IdempotentWriter(brokers) as writer:
        await writer.write(topic, 0, None, b"no key")
        with pytest.raises(KafkaUnavailableError, match="refused a batch"):
            await writer.flush()
        with pytest.raises(KafkaUnavailableError, match="refused a batch"):
            await writer.send(topic, 0, None, b"no key")
        for number in range(3):
            assert (await writer.send(topic, 0, b"k", b"%d" % number)).offset == number
    assert await values_of(brokers, topic) == [b"0", b"1", b"2"]


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


async def test_writing_over_the_loss_of_a_broker_keeps_every_record_once_and_in_order(own_kafka: LocalKafka) -> None:
    brokers, topic, count = own_kafka.bootstrap_servers, catalogue.PAYMENTS_ACCEPTED, 60_000
    async with IdempotentWriter(brokers, request_timeout_s=60) as writer:
        for number in range(count):
            if number == count // 3:
                await asyncio.to_thread(own_kafka.kill_broker, 1)
            await writer.write(topic, number % 6, b"k", b"%d" % number)
            if number % 1000 == 0:
                await asyncio.sleep(0.005)  # spreads the writing over the broker's death
        await writer.flush()
        own_kafka.start_broker(1)
    await asyncio.to_thread(own_kafka.wait_in_sync, 90)
    for partition in range(6):
        expected = [b"%d" % number for number in range(partition, count, 6)]
        assert await values_of(brokers, topic, partition) == expected


async def test_a_silent_cluster_fails_a_send_in_time_and_is_used_again_when_it_is_back(own_kafka: LocalKafka) -> None:
    brokers, topic = own_kafka.bootstrap_servers, RAW
    async with IdempotentWriter(brokers, request_timeout_s=2.0) as writer:
        await writer.send(topic, 0, b"k", b"first")
        for node in range(3):
            own_kafka.pause_broker(node)
        try:
            begun = asyncio.get_running_loop().time()
            with pytest.raises(KafkaUnavailableError, match="did not acknowledge"):
                await writer.send(topic, 0, b"k", b"silent")
            assert asyncio.get_running_loop().time() - begun < 4
        finally:
            for node in range(3):
                own_kafka.resume_broker(node)

        async def taken() -> bool:
            try:
                await writer.send(topic, 0, b"k", b"back")
            except KafkaUnavailableError:
                return False
            return True

        await eventually(taken, "the writer takes records again")
    await asyncio.to_thread(own_kafka.wait_in_sync, 90)
    values = await values_of(brokers, topic)
    assert values[0] == b"first"
    assert values[-1] == b"back"
    assert values.count(b"silent") <= 1


async def test_unacknowledged_bytes_are_bounded(own_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.kafka.idempotent.UNACKNOWLEDGED_BYTES_MAX", 1024 * 1024)
    written = 0
    async with IdempotentWriter(own_kafka.bootstrap_servers, request_timeout_s=2.0) as writer:
        for node in range(3):
            own_kafka.pause_broker(node)
        try:
            with pytest.raises(KafkaUnavailableError):  # noqa: PT012 # which write it is, is what is measured
                while True:
                    await writer.write(LETTERS, 0, b"k", b"x" * 10_000)
                    written += 10_000
        finally:
            for node in range(3):
                own_kafka.resume_broker(node)
        await asyncio.to_thread(own_kafka.wait_in_sync, 90)
        # What timed out is told once; what was not refused may still arrive
        with pytest.raises(KafkaUnavailableError):
            await writer.flush()
    assert written < 3 * 1024 * 1024


# Tables


async def test_a_global_table_has_what_is_there_and_follows(brokers: str) -> None:
    async with IdempotentWriter(brokers) as writer:
        for number in range(12):
            await writer.send(TABLE, number % 6, b"K%d" % number, b"old")
        await writer.send(TABLE, 0, b"K0", b"1")
        await writer.send(TABLE, 1, b"K1", None)
        table = GlobalTable(brokers, TABLE, bytes.decode, bytes.decode)
        try:
            await table.start()
            values = table.values
            assert values == {"K0": "1", **{f"K{n}": "old" for n in range(2, 12)}}
            await writer.send(TABLE, 5, b"K5", b"new")
            await writer.send(TABLE, 4, b"K4", None)

            async def followed() -> bool:
                return values["K5"] == "new" and "K4" not in values

            await eventually(followed, "the table followed")
            assert table.failed is None
        finally:
            await table.stop()
        assert table.failed is None


async def test_a_global_table_that_cannot_follow_says_so(brokers: str) -> None:
    topic = catalogue.PAYMENTS_IDENTITIES
    table = GlobalTable(brokers, topic, bytes.decode, int)
    try:
        await table.start()
        supervised = asyncio.create_task(table.supervise())
        async with IdempotentWriter(brokers) as writer:
            await writer.send(topic, 0, b"k", b"no number")
        with pytest.raises(ValueError, match="no number"):
            await asyncio.wait_for(supervised, 30)
        assert isinstance(table.failed, ValueError)
    finally:
        await table.stop()
