"""Three brokers of this package's own: for tests that look at whole topics or kill brokers, and for what is no payment.
What they leave must not reach other tests."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from deploy.local.kafka.cluster import LocalKafka
from shared.kafka.runtime.producer import TransactionalProducer
from tests.contract.helpers import producing
from tests.contract.steps import Pipeline
from tests.harness import cluster


@pytest.fixture(scope="package")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Three brokers of this package's own, with the catalogue's topics."""
    with cluster(tmp_path_factory.mktemp("own-kafka"), 3) as running:
        yield running


@pytest.fixture(scope="package")
def scratch(own_kafka: LocalKafka) -> LocalKafka:
    """A cluster for producers that write what is no payment."""
    return own_kafka


@pytest.fixture
def brokers(own_kafka: LocalKafka) -> str:
    """Where that cluster listens."""
    return own_kafka.bootstrap_servers


@pytest_asyncio.fixture
async def producer(brokers: str) -> AsyncIterator[TransactionalProducer]:
    """A transactional producer in a service's place."""
    async with producing(brokers) as made:
        yield made


@pytest.fixture
def pipeline(brokers: str, producer: TransactionalProducer) -> Pipeline:
    """Writes what the services would."""
    return Pipeline(brokers, producer)
