"""Fixtures of the drills' tests: one monitored stack, and the quick drills, run once."""

import sys
from collections.abc import Iterator

import pytest

from deploy.local.supervisor.stack import Stack
from tests.drills.alerts.fault import Drill
from tests.drills.alerts.registry import QUICK
from tests.drills.campaign import Result, run
from tests.drills.monitored import monitored
from tests.drills.site import Site
from tests.drills.timeline import Watch


@pytest.fixture(scope="package")
def monitored_stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """All services, with monitoring; with three brokers if a test kills one."""
    replicated = any(
        item.name == "test_a_killed_brokers_target_goes_down_and_comes_back" for item in request.session.items
    )
    with monitored(tmp_path_factory.mktemp("monitored"), 3 if replicated else 1) as stack:
        yield stack


@pytest.fixture(scope="package")
def site(monitored_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The stack as a site for faults."""
    return Site(monitored_stack, tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="package")
def watch(site: Site) -> Iterator[Watch]:
    """A watch of its alerts."""
    with Watch(site.prometheus) as watching:
        yield watching


@pytest.fixture(scope="package")
def results(site: Site, watch: Watch, request: pytest.FixtureRequest) -> dict[str, Result]:
    """Results of the selected quick drills, by alert."""
    site.warm_up()
    chosen = [drill for drill in QUICK if any(_is_of(item, drill) for item in request.session.items)]
    return run(site, watch, chosen or QUICK, lambda line: print(line, file=sys.stderr))


def _is_of(item: pytest.Item, drill: Drill) -> bool:
    return (
        isinstance(item, pytest.Function) and hasattr(item, "callspec") and drill.alert in item.callspec.params.values()
    )
