"""A broker for this package only.

Its tests look at whole topics, stop the broker and write other records than payments, which must not reach other tests.
"""

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
    """A broker for this package only, with the catalogue's topics."""
    with cluster(tmp_path_factory.mktemp("own-kafka")) as running:
        yield running


@pytest.fixture(scope="package")
def scratch(own_kafka: LocalKafka) -> LocalKafka:
    """A cluster for producers of records that are not payments."""
    return own_kafka


@pytest.fixture
def brokers(own_kafka: LocalKafka) -> str:
    """The bootstrap servers of this package's cluster."""
    return own_kafka.bootstrap_servers


@pytest_asyncio.fixture
async def producer(brokers: str) -> AsyncIterator[TransactionalProducer]:
    """A transactional producer that replaces a service."""
    async with producing(brokers) as made:
        yield made


@pytest.fixture
def pipeline(brokers: str, producer: TransactionalProducer) -> Pipeline:
    """A writer of the services' records."""
    return Pipeline(brokers, producer)
