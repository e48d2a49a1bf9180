"""The transaction protocol follows the feature that the cluster has finalised."""

import uuid

import pytest

from deploy.drills.clients.tools import admin_tool
from deploy.local.kafka.cluster import LocalKafka
from shared.eos.records import Output
from shared.events import catalogue
from shared.kafka.runtime.producer import TransactionalProducer
from tests.contract.helpers import committed, producing

FEATURES = "org.apache.kafka.tools.FeatureCommand"
TOPIC = catalogue.PAYMENTS_DEDUPLICATED

pytestmark = pytest.mark.timeout(120)


async def write(producer: TransactionalProducer, *values: bytes) -> None:
    """Commit each value in a transaction of its own."""
    for value in values:
        await producer.begin()
        producer.append([Output(TOPIC, 1, b"key", value, ())], 0)
        await producer.flush()
        await producer.commit()


async def test_a_producer_speaks_the_version_that_the_cluster_has_when_it_is_initialised(own_kafka: LocalKafka) -> None:
    values = [uuid.uuid4().bytes for _ in range(4)]
    await admin_tool(own_kafka, FEATURES, "downgrade", "--feature", "transaction.version=1")
    try:
        async with producing(own_kafka.bootstrap_servers) as producer:
            given = producer.epoch
            await write(producer, *values[:2])
            assert producer.epoch == given
    finally:
        await admin_tool(own_kafka, FEATURES, "upgrade", "--feature", "transaction.version=2")
    async with producing(own_kafka.bootstrap_servers) as producer:
        given = producer.epoch
        await write(producer, *values[2:])
        assert producer.epoch == (given[0], given[1] + 2)
    found = await committed(own_kafka.bootstrap_servers, TOPIC, 1)
    assert [found.count(value) for value in values] == [1, 1, 1, 1]
