"""Invalid internal input: the reader stops and leaves no open transaction."""

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from deploy.drills.admin import configure, unconfigure
from deploy.drills.clients.tools import PRODUCER_PERFORMANCE, kafka_tool
from deploy.local.kafka.cluster import LocalKafka
from shared.eos.errors import EXIT_FENCED
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.headers import ORIGIN, REASON, Coordinates, header
from shared.events.validation import key_of
from shared.kafka.client.cluster import Target
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, group_offsets, read_topics
from shared.kafka.runtime.worker import ABORT_BACKOFF_S, ABORTS_IN_A_ROW_MAX
from tests.harness import Service, cluster, eventually, services, settled
from tests.partitions import PARTITIONS
from tests.payments import payments, with_fields
from tests.proof import send_raw
from tests.tiers import full, mostly_full

pytestmark = pytest.mark.timeout(120)

PARTITION = 3


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for this module only: its records would stop other tests' services."""
    with cluster(tmp_path_factory.mktemp("own-kafka")) as running:
        yield running


@pytest.mark.parametrize(
    "topic", mostly_full([catalogue.PAYMENTS_ACCEPTED, catalogue.LEDGER_TRANSFERS], {catalogue.LEDGER_TRANSFERS})
)
async def test_undecodable_internal_input_stops_the_service_and_is_not_skipped(
    own_kafka: LocalKafka, tmp_path: Path, topic: str
) -> None:
    brokers = own_kafka.bootstrap_servers
    name = {catalogue.PAYMENTS_ACCEPTED: "transform", catalogue.LEDGER_TRANSFERS: "ledger"}[topic]
    async with IdempotentWriter(brokers) as writer:
        await writer.write(topic, PARTITION, b"key", b"no event", ((ORIGIN, b"payments.raw:3:0"),))
        for value in payments("behind", 5):
            await writer.write(topic, PARTITION, b"key", value, ((ORIGIN, b"payments.raw:3:1"),))
        await writer.flush()

    service = Service(name, brokers, tmp_path).start()
    assert service.wait_exit() == EXIT_FENCED
    [fatal] = [line for line in service.log() if line["event"] == "fatal"]
    assert f"{topic}:{PARTITION}:0" in str(fatal["reason"])

    assert await group_offsets(brokers, name, topic) == {}
    topics = [item.name for item in catalogue.TOPICS]
    await eventually(lambda: settled(brokers, topics), "no transaction open")


def aborts_of(service: Service) -> list[datetime]:
    """When the service aborted for the size of a batch."""
    return [
        datetime.fromisoformat(str(line["time"]))
        for line in service.log()
        if line["event_id"] == "transaction-aborted" and "MessageSizeTooLarge" in str(line["reason"])
    ]


async def of_topic(brokers: str, topic: str, start: dict[Target, int]) -> list[Record]:
    """The committed records of a topic since then."""
    found: list[Record] = []
    await read_topics(brokers, [topic], lambda _topic, _partition, records: found.extend(records), start=start)
    return found


async def test_a_record_that_no_topic_takes_is_dead_lettered_and_the_others_of_its_batch_are_accepted(
    own_kafka: LocalKafka, tmp_path: Path
) -> None:
    brokers = own_kafka.bootstrap_servers
    topics = [catalogue.PAYMENTS_ACCEPTED, catalogue.PAYMENTS_DEAD_LETTER]
    before = await end_offsets(brokers, topics)
    large = with_fields(next(payments("large", 1)), reference="r" * 120)
    [partition] = {key_of(large, PARTITIONS)[1]}
    same = [value for value in payments("small", 60, seed=7) if key_of(value, PARTITIONS)[1] == partition]
    await configure(own_kafka, "topics", catalogue.PAYMENTS_ACCEPTED, "max.message.bytes=420")
    try:
        await send_raw(brokers, [*same[:5], large, *same[5:]])
        with services(brokers, tmp_path, "ingest") as running:

            async def handled() -> bool:
                return len(await of_topic(brokers, catalogue.PAYMENTS_ACCEPTED, before)) == len(same)

            await eventually(handled, "the others accepted", 60)
            assert aborts_of(running["ingest"])
    finally:
        await unconfigure(own_kafka, "topics", catalogue.PAYMENTS_ACCEPTED, "max.message.bytes")
    [letter] = await of_topic(brokers, catalogue.PAYMENTS_DEAD_LETTER, before)
    assert letter.value == large
    assert header(letter.headers, REASON) == b"too_large"


async def produce_compressed(brokers: str, codec: str, lines: bytes, directory: Path, *, count: int) -> str:
    """Send some of these lines to payments.raw with the Java client, compressed, and return its output."""
    payload = directory / "lines"
    payload.write_bytes(lines)
    words = f"--topic {catalogue.PAYMENTS_RAW} --num-records {count} --throughput -1 --payload-file {payload}"
    properties = (
        f"bootstrap.servers={brokers}",
        f"compression.type={codec}",
        "linger.ms=100",
        "max.request.size=9000000",
    )
    ended = await kafka_tool(PRODUCER_PERFORMANCE, *words.split(), "--command-property", *properties)
    return ended.output


async def test_a_compressed_record_is_measured_by_its_size_when_decompressed(
    own_kafka: LocalKafka, tmp_path: Path
) -> None:
    brokers = own_kafka.bootstrap_servers
    before = await end_offsets(brokers, [catalogue.PAYMENTS_RAW])
    produced = await produce_compressed(brokers, "gzip", b"r" * 3_000_000, tmp_path, count=1)
    assert "RecordTooLargeException" in produced
    assert await of_topic(brokers, catalogue.PAYMENTS_RAW, before) == []


@pytest.mark.parametrize("codec", mostly_full(["gzip", "snappy", "lz4", "zstd"], {"lz4"}))
async def test_each_record_of_a_producer_that_compresses_gets_an_outcome(
    own_kafka: LocalKafka, tmp_path: Path, codec: str
) -> None:
    brokers = own_kafka.bootstrap_servers
    outcomes = [catalogue.PAYMENTS_ACCEPTED, catalogue.PAYMENTS_DEDUPLICATED, catalogue.PAYMENTS_DEAD_LETTER]
    before = await end_offsets(brokers, [catalogue.PAYMENTS_RAW, *outcomes])
    produced = await produce_compressed(brokers, codec, b"\n".join(payments(codec, 20)), tmp_path, count=20)
    assert "Exception" not in produced

    sent = await of_topic(brokers, catalogue.PAYMENTS_RAW, before)
    assert len(sent) == 20
    with services(brokers, tmp_path, "ingest"):

        async def decided() -> bool:
            found = [record for topic in outcomes for record in await of_topic(brokers, topic, before)]
            return {header(record.headers, ORIGIN) for record in found} == {
                Coordinates(record.topic, record.partition, record.offset).encode() for record in sent
            }

        await eventually(decided, "an outcome of each record", 30)


@full
async def test_a_dead_letter_that_is_refused_aborts_three_times_with_backoff_and_is_written_once_it_fits(
    own_kafka: LocalKafka, tmp_path: Path
) -> None:
    brokers = own_kafka.bootstrap_servers
    before = await end_offsets(brokers, [catalogue.PAYMENTS_DEAD_LETTER])
    await configure(own_kafka, "topics", catalogue.PAYMENTS_DEAD_LETTER, "max.message.bytes=200")
    try:
        async with IdempotentWriter(brokers) as writer:
            await writer.write(catalogue.PAYMENTS_RAW, PARTITION, b"key", b"no payment" * 20)
        service = Service("ingest", brokers, tmp_path).start()
        assert service.wait_exit() == EXIT_FENCED
    finally:
        await unconfigure(own_kafka, "topics", catalogue.PAYMENTS_DEAD_LETTER, "max.message.bytes")
    aborts = aborts_of(service)
    assert len(aborts) == ABORTS_IN_A_ROW_MAX
    assert all((later - earlier).total_seconds() > ABORT_BACKOFF_S / 2 for earlier, later in pairwise(aborts))
    [fatal] = [line for line in service.log() if line["event"] == "fatal"]
    assert f"aborted {ABORTS_IN_A_ROW_MAX} times" in str(fatal["reason"])

    async def written() -> bool:
        return len(await of_topic(brokers, catalogue.PAYMENTS_DEAD_LETTER, before)) == 1

    with services(brokers, tmp_path, "ingest"):
        await eventually(written, "the dead letter, once", 30)
