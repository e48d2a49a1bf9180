"""The admin and reading clients' guarantees, against real brokers."""

import dataclasses
import uuid

import pytest

from deploy.local.ports import free_ports
from shared.eos.records import Output, Record
from shared.events import catalogue
from shared.kafka.admin.configs import (
    TOPIC,
    Difference,
    alter_configs,
    broker_config,
    configure_topics,
    topic_config,
)
from shared.kafka.admin.topics import check_topics, ensure_topics, replicas_of, set_group_offsets
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import KafkaUnavailableError, TopicMismatchError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, group_offsets, partition_count, read_topics, stable_offsets
from shared.kafka.runtime.producer import TransactionalProducer
from tests.contract.helpers import here, producing, since, values_since
from tests.harness import eventually, settled
from tests.partitions import PARTITIONS

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]

RAW = catalogue.PAYMENTS_RAW
LETTERS = catalogue.PAYMENTS_DEAD_LETTER
TABLE = catalogue.REFERENCE_FEES


async def transact(producer: TransactionalProducer, topic: str, values: list[bytes], *, commit: bool) -> None:
    await producer.begin()
    producer.append([Output(topic, 0, b"k", value, ()) for value in values], 1_700_000_000_000)
    await producer.flush()
    await (producer.commit() if commit else producer.abort())


def unused_address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


async def test_topics_are_created_once_as_the_catalogue_says(brokers: str) -> None:
    assert await ensure_topics(brokers, PARTITIONS) == []
    await check_topics(brokers, [topic.name for topic in catalogue.TOPICS], PARTITIONS)


async def test_a_missing_topic_is_named(brokers: str) -> None:
    with pytest.raises(TopicMismatchError, match=r"payments\.rwa is missing"):
        await check_topics(brokers, [RAW, "payments.rwa"], PARTITIONS)


@pytest.mark.usefixtures("own_kafka")
async def test_topics_of_ones_own_are_created_as_the_installations_are(brokers: str) -> None:
    output, changelog = f"own-{uuid.uuid4()}", f"own-{uuid.uuid4()}"
    with pytest.raises(TopicMismatchError, match=rf"{output} is missing: create topics with `once topics create`"):
        await check_topics(brokers, [RAW, output], PARTITIONS)
    replicas = await replicas_of(brokers, RAW)
    wanted = [catalogue.own_topic(output), catalogue.own_topic(changelog, changelog=True)]
    assert sorted(await ensure_topics(brokers, PARTITIONS, replicas, topics=wanted)) == sorted([output, changelog])
    assert await ensure_topics(brokers, PARTITIONS, replicas, topics=wanted) == []
    await check_topics(brokers, [RAW, output, changelog], PARTITIONS)
    assert await replicas_of(brokers, output) == replicas
    assert [await topic_config(brokers, name, "cleanup.policy") for name in (output, changelog)] == [
        "delete",
        "compact",
    ]
    kept_ms = await topic_config(brokers, changelog, "min.compaction.lag.ms")
    assert int(kept_ms) == catalogue.TORN_KEPT_MS


@pytest.mark.usefixtures("own_kafka")
async def test_a_topic_that_exists_gets_the_settings_of_the_catalogue(brokers: str) -> None:
    name = f"own-{uuid.uuid4()}"
    topics = [catalogue.own_topic(name, changelog=True)]
    await ensure_topics(brokers, PARTITIONS, await replicas_of(brokers, RAW), topics=topics)
    assert await configure_topics(brokers, topics) == []
    kept_ms = "min.compaction.lag.ms"
    async with Cluster(brokers) as cluster:
        await alter_configs(cluster, TOPIC, {name: {kept_ms: None, "segment.ms": "86400000"}})
    await eventually(lambda: _has(brokers, name, kept_ms, "0"), "the default is in force")
    differs = [Difference(name, kept_ms, "0", str(catalogue.TORN_KEPT_MS))]
    missing = catalogue.own_topic(f"own-{uuid.uuid4()}")
    assert await configure_topics(brokers, [*topics, missing], change=False) == differs
    assert await _has(brokers, name, kept_ms, "0")
    assert await configure_topics(brokers, topics) == differs
    await eventually(lambda: _has(brokers, name, kept_ms, str(catalogue.TORN_KEPT_MS)), "it is set")
    assert await topic_config(brokers, name, "segment.ms") == "86400000"
    assert await configure_topics(brokers, topics) == []


async def _has(brokers: str, topic: str, setting: str, value: str) -> bool:
    return await topic_config(brokers, topic, setting) == value


async def test_the_replicas_of_a_topic_that_is_missing_are_refused(brokers: str) -> None:
    with pytest.raises(TopicMismatchError, match=r"payments\.rwa is missing: create topics with `once up`"):
        await replicas_of(brokers, "payments.rwa")


async def test_another_partition_count_is_refused(brokers: str) -> None:
    other = PARTITIONS + 6
    refused = rf"ONCE_PARTITIONS is {other}, and payments\.raw has {PARTITIONS} partitions.*: set ONCE_PARTITIONS to 6"
    with pytest.raises(TopicMismatchError, match=refused):
        await check_topics(brokers, [RAW], other)
    with pytest.raises(TopicMismatchError, match=refused):
        await ensure_topics(brokers, other)


async def test_no_topic_is_created_where_others_have_another_partition_count(
    brokers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = dataclasses.replace(catalogue.BY_NAME[RAW], name=f"counted-{uuid.uuid4()}")
    monkeypatch.setattr("shared.kafka.admin.topics.TOPICS", (catalogue.BY_NAME[RAW], new))
    with pytest.raises(TopicMismatchError, match="set ONCE_PARTITIONS to 6"):
        await ensure_topics(brokers, PARTITIONS + 6)
    with pytest.raises(TopicMismatchError, match=f"{new.name} is missing"):
        await check_topics(brokers, [new.name], PARTITIONS)


@pytest.mark.usefixtures("own_kafka")
async def test_topics_whose_partition_counts_differ_are_refused(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new = dataclasses.replace(catalogue.BY_NAME[RAW], name=f"counted-{uuid.uuid4()}")
    monkeypatch.setattr("shared.kafka.admin.topics.TOPICS", (new,))
    await ensure_topics(brokers, 12, 1)
    assert await partition_count(brokers, [RAW]) == PARTITIONS
    assert await partition_count(brokers, [new.name]) == 12
    with pytest.raises(TopicMismatchError, match=f"{new.name} has 12, payments.raw has 6"):
        await partition_count(brokers, [RAW, new.name])
    with pytest.raises(TopicMismatchError, match=r"payments\.raw has 6 partitions: use an empty cluster"):
        await check_topics(brokers, [RAW, new.name], 12)


@pytest.mark.usefixtures("own_kafka")
async def test_too_few_brokers_for_the_replicas_raise(brokers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"replicated-{uuid.uuid4()}"
    new = dataclasses.replace(catalogue.BY_NAME[RAW], name=name)
    monkeypatch.setattr("shared.kafka.admin.topics.TOPICS", (new,))
    with pytest.raises(KafkaUnavailableError, match="each topic has 2 replicas, and of the brokers for them 1 answer"):
        await ensure_topics(brokers, PARTITIONS, 2, deadline_s=5)


async def test_a_brokers_setting_can_be_read(brokers: str) -> None:
    assert int(await broker_config(brokers, "transaction.max.timeout.ms")) > 0
    with pytest.raises(LookupError, match=r"no\.such\.setting"):
        await broker_config(brokers, "no.such.setting")


async def test_group_offsets_are_those_that_were_set(brokers: str) -> None:
    group = f"group-{uuid.uuid4()}"
    assert await group_offsets(brokers, group, RAW) == {}
    await set_group_offsets(brokers, group, RAW, {0: 5, 3: 7})
    assert await group_offsets(brokers, group, RAW) == {0: 5, 3: 7}
    assert await group_offsets(brokers, group, LETTERS) == {}


async def test_a_missing_cluster_raises_an_error_that_says_what_to_do() -> None:
    with pytest.raises(KafkaUnavailableError, match="once up"):
        async with Cluster(unused_address(), deadline_s=0.5):
            pass
    with pytest.raises(KafkaUnavailableError, match="once up"):
        async with IdempotentWriter(unused_address(), request_timeout_s=0.5):
            pass


async def test_only_committed_records_are_read_up_to_a_tail_of_markers(brokers: str) -> None:
    topic = catalogue.PAYMENTS_DEDUPLICATED
    start = await here(brokers, topic)
    async with producing(brokers) as producer:
        await transact(producer, topic, [b"a", b"b"], commit=True)
        await transact(producer, topic, [b"dropped"] * 50, commit=False)
        await transact(producer, topic, [b"c"], commit=True)
        await transact(producer, topic, [b"dropped too"], commit=False)
        await eventually(lambda: settled(brokers, [topic]), "no transaction open")
        assert await values_since(brokers, start) == [b"a", b"b", b"c"]

        await producer.begin()
        producer.append([Output(topic, 0, b"k", b"open", ())], 1_700_000_000_000)
        await producer.flush()
        assert await values_since(brokers, start) == [b"a", b"b", b"c"]
        stable = (await stable_offsets(brokers, [topic]))[topic, 0]
        assert stable == (await end_offsets(brokers, [topic]))[topic, 0] - 1
        await producer.abort()


async def test_reading_gives_every_record_once_in_order_with_progress(brokers: str) -> None:
    topic, count = catalogue.LEDGER_POSTINGS, 30_000
    start = await here(brokers, topic)
    async with IdempotentWriter(brokers) as writer:
        for number in range(count):
            await writer.write(topic, number % 6, b"%d" % number, b"x" * 300, (("n", b"%d" % number),), 1000 + number)
    found: dict[int, list[Record]] = {partition: [] for partition in range(6)}
    seen: list[tuple[int, int]] = []
    ends = await read_topics(
        brokers,
        [topic],
        lambda _, partition, records: found[partition].extend(records),
        start=start,
        progress=lambda done, total: seen.append((done, total)),
    )
    for partition, records in found.items():
        assert [record.offset for record in records] == list(range(start[topic, partition], ends[topic, partition]))
        numbers = [int(record.key or b"") for record in records]
        assert numbers == list(range(partition, count, 6))
        assert [record.timestamp_ms for record in records] == [1000 + number for number in numbers]
        assert [record.headers for record in records] == [(("n", b"%d" % number),) for number in numbers]
    assert seen[-1] == (count, count)
    assert sorted(seen) == seen


async def test_reading_may_start_within_a_batch(brokers: str) -> None:
    topic = catalogue.LEDGER_BALANCES
    begin = await here(brokers, topic)
    async with IdempotentWriter(brokers) as writer:
        for number in range(100):
            await writer.write(topic, 2, b"%d" % number, b"v")
    found = await since(brokers, {**begin, (topic, 2): begin[topic, 2] + 37})
    assert [record.key for record in found[2]] == [b"%d" % number for number in range(37, 100)]


async def test_a_topic_that_does_not_exist_is_an_error(brokers: str) -> None:
    with pytest.raises(KafkaUnavailableError, match=r"payments\.rwa does not exist"):
        async with Cluster(brokers, deadline_s=1) as cluster:
            await cluster.partitions([RAW, "payments.rwa"])
