"""Shared fixtures: one real cluster for each test process, with the catalogue's topics."""

import gc
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # type: ignore[import-untyped] # it has types, and no py.typed to say so
from xdist.scheduler import LoadScopeScheduling, Scheduling  # type: ignore[import-untyped] # likewise

from deploy.local.kafka.cluster import LocalKafka
from tests.harness import cluster
from tests.postgres import postgres, view_url
from tests.preforked import preforking
from tests.tiers import without_full

__all__ = ["kafka", "postgres", "view_url"]

# The speed of a machine is not a property of what is tested
settings.register_profile("once", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", settings.get_profile("once"), max_examples=20)
settings.register_profile("thorough", settings.get_profile("once"), max_examples=300)
settings.load_profile("once")

_TOGETHER = ("tests/contract/", "tests/drills/", "tests/integration/page/", "tests/integration/secure/")
"""Packages whose modules share costly fixtures."""


_LONG = {
    "pipeline": ("tests/pipeline/",),
    "traffic": ("tests/pipeline/test_traffic.py",),
    "histories": ("tests/simulation/test_histories.py",),
    "stacks": ("tests/integration/test_demo.py", "tests/integration/test_readme.py"),
    "further histories": ("tests/simulation/test_further_histories.py",),
    "nights": ("tests/integration/test_reconcile.py", "tests/integration/test_repair.py"),
    "checks": ("tests/pipeline/test_balances.py", "tests/pipeline/test_checks_", "tests/pipeline/test_decisions"),
    "sequences": ("tests/simulation/test_differential.py",),
    "kills": ("tests/upgrade/test_kills.py",),
}
"""The longest, each for one process, and first. In this order a simulation, which has one thread and no time limits,
runs together with whole stacks and one Spark. Next to two of Spark, a stack is not ready in time. The nights under
load take the longer, the less of a core is theirs, and load the brokers meanwhile: they end before the first stack."""


class _ByModule(LoadScopeScheduling):  # type: ignore[misc] # likewise
    """With several processes, one of them runs all tests of a module, or of such a package."""

    def _split_scope(self, nodeid: str) -> str:
        package = next((package for package in _TOGETHER if nodeid.startswith(package)), nodeid.partition("::")[0])
        return _long(nodeid, self.config) or package


def _long(nodeid: str, config: pytest.Config) -> str | None:
    places = ((len(place), name) for name, places in _LONG.items() for place in places if nodeid.startswith(place))
    name = max(places, default=(0, None))[1]
    # Without what is full they are short, and a second Spark would take longer to warm up than they do
    return "pipeline" if name == "checks" and without_full(config) else name


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: there is none, and looking for it takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests for distribution."""
    order = {name: place for place, name in enumerate((*_LONG, None))}
    items.sort(key=lambda item: order[_long(item.nodeid, config)])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Distribute tests by module."""
    return _ByModule(config, log)


@pytest.fixture(scope="session", autouse=True)
def _preforked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Services start without importing anything."""
    with preforking(tmp_path_factory.mktemp("forkers")):
        yield


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """One broker, for tests without replication. A test that pauses it brings it back before it ends."""
    with cluster(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Three brokers of the module's own. A test that kills or pauses one brings it back before it ends."""
    with cluster(tmp_path_factory.mktemp("replicated"), 3) as running:
        yield running
