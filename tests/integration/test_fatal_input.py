"""Invalid internal input: the reader stops and leaves no open transaction."""

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from shared.eos.errors import EXIT_FENCED
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.headers import ORIGIN
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, group_offsets, read_topics
from shared.kafka.runtime.partition import ABORT_BACKOFF_S, ABORTS_IN_A_ROW_MAX
from tests.drills.admin import configure, unconfigure
from tests.harness import Service, cluster, eventually, services, settled
from tests.payments import payments
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


@full
async def test_a_refused_batch_aborts_three_times_with_backoff_and_is_processed_once_it_fits(
    own_kafka: LocalKafka, tmp_path: Path
) -> None:
    brokers = own_kafka.bootstrap_servers
    configure(own_kafka, "topics", catalogue.PAYMENTS_ACCEPTED, "max.message.bytes=200")
    try:
        before = await end_offsets(brokers, [catalogue.PAYMENTS_ACCEPTED])
        await send_raw(brokers, payments("refused", 1))
        service = Service("ingest", brokers, tmp_path).start()
        assert service.wait_exit() == EXIT_FENCED
    finally:
        unconfigure(own_kafka, "topics", catalogue.PAYMENTS_ACCEPTED, "max.message.bytes")
    aborts = [
        datetime.fromisoformat(str(line["time"]))
        for line in service.log()
        if line["event_id"] == "transaction-aborted" and "MessageSizeTooLarge" in str(line["reason"])
    ]
    assert len(aborts) == ABORTS_IN_A_ROW_MAX
    assert all((later - earlier).total_seconds() > ABORT_BACKOFF_S / 2 for earlier, later in pairwise(aborts))
    [fatal] = [line for line in service.log() if line["event"] == "fatal"]
    assert f"aborted {ABORTS_IN_A_ROW_MAX} times" in str(fatal["reason"])

    async def accepted() -> bool:
        found: list[Record] = []
        await read_topics(
            brokers,
            [catalogue.PAYMENTS_ACCEPTED],
            lambda _topic, _partition, records: found.extend(records),
            start=before,
        )
        return len(found) == 1

    with services(brokers, tmp_path, "ingest"):
        await eventually(accepted, "the payment accepted, once", 30)
