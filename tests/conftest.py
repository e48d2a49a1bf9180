"""What tests share: one real cluster for each process that runs them, with the catalogue's topics."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # type: ignore[import-untyped] # it has types, and no py.typed to say so
from xdist.scheduler import LoadScopeScheduling, Scheduling  # type: ignore[import-untyped] # likewise

from deploy.local.kafka.cluster import LocalKafka
from tests.harness import cluster
from tests.postgres import postgres, view_url

__all__ = ["kafka", "postgres", "view_url"]

# How fast examples are made and run is the machine's matter, and no property of what is tested
settings.register_profile("once", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("once")

_TOGETHER = ("tests/contract/", "tests/drills/", "tests/integration/page/")
"""Packages whose modules share what is costly to start."""


_SPARK = (
    "tests/integration/test_demo.py",
    "tests/integration/test_readme.py",
    "tests/integration/test_reconcile.py",
    "tests/integration/test_repair.py",
    "tests/integration/secure/",
    "tests/pipeline/",
)
"""Those that run Spark go to one process as well, and first: two at once take more than twice the time of one."""


class _ByModule(LoadScopeScheduling):  # type: ignore[misc] # likewise
    """Where several processes run the tests: those of a module, or of such a package, go to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_SPARK):
            return "spark"
        return next((package for package in _TOGETHER if nodeid.startswith(package)), nodeid.partition("::")[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which tests are dealt out."""
    items.sort(key=lambda item: not item.nodeid.startswith(_SPARK))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """How tests are dealt out."""
    return _ByModule(config, log)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """One broker, where replication is not the subject. A test that pauses it brings it back before it ends."""
    with cluster(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """Three brokers of the module's own. A test that kills or pauses one brings it back before it ends."""
    with cluster(tmp_path_factory.mktemp("replicated"), 3) as running:
        yield running
