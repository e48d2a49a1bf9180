"""A broker for this package only, and a simulated cluster in its place.

Its tests look at whole topics, stop the broker and write other records than payments, which must not reach other tests.
Modules marked `simulated` run against both: what holds for the brokers holds for their model, or the model is wrong.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import pytest
import pytest_asyncio

from deploy.local.kafka.cluster import LocalKafka
from shared.kafka.runtime.producer import TransactionalProducer
from tests.contract.helpers import producing
from tests.contract.steps import Pipeline
from tests.harness import cluster
from tests.simulation.loop import VirtualLoop, clocks
from tests.simulation.network import Network
from tests.simulation.world import Brokers, started


@pytest.fixture(scope="package")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker for this package only, with the catalogue's topics."""
    with cluster(tmp_path_factory.mktemp("own-kafka")) as running:
        yield running


@pytest.fixture(scope="package")
def scratch(own_kafka: LocalKafka) -> LocalKafka:
    """A cluster for producers of records that are not payments."""
    return own_kafka


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests of marked modules a second time, in virtual time, unless they ask for the broker itself."""
    names: list[str] = getattr(item, "fixturenames", [])
    both = item.get_closest_marker("simulated") is not None and "own_kafka" not in names
    return {"kafka": asyncio.new_event_loop, **({"simulated": VirtualLoop} if both else {})}


@pytest_asyncio.fixture
async def simulated() -> AsyncIterator[Brokers]:
    """A simulated cluster of the test's own, in whose time it runs."""
    loop, chance = asyncio.get_running_loop(), random.Random(1)
    assert isinstance(loop, VirtualLoop)
    with clocks(loop):
        yield Brokers(await started(Network(loop, chance), chance))


@pytest.fixture
def cluster_under_test(request: pytest.FixtureRequest) -> LocalKafka | Brokers:
    """This package's broker, or a simulated cluster."""
    callspec = getattr(request.node, "callspec", None)  # of a test with parameters
    in_virtual_time = callspec is not None and VirtualLoop in callspec.params.values()
    found: LocalKafka | Brokers = request.getfixturevalue("simulated" if in_virtual_time else "own_kafka")
    return found


@pytest.fixture
def brokers(cluster_under_test: LocalKafka | Brokers) -> str:
    """The bootstrap servers of the cluster under test."""
    return cluster_under_test.bootstrap_servers


@pytest_asyncio.fixture
async def producer(brokers: str) -> AsyncIterator[TransactionalProducer]:
    """A transactional producer that replaces a service."""
    async with producing(brokers) as made:
        yield made


@pytest.fixture
def pipeline(brokers: str, producer: TransactionalProducer) -> Pipeline:
    """A writer of the services' records."""
    return Pipeline(brokers, producer)
