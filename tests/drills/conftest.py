"""Fixtures of the drills' tests: one monitored stack, and the quick drills, run once."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from deploy.drills.alerts.monitored import monitored
from deploy.drills.alerts.registry import DRILLS
from deploy.drills.alerts.site import Site
from deploy.drills.drill import Drill, Result
from deploy.drills.run import run_on
from deploy.local.supervisor.stack import Stack

QUICK = [drill for drill in DRILLS if drill.quick]


@pytest.fixture(scope="package")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of the site."""
    with asyncio.Runner() as opened:
        yield opened


@pytest.fixture(scope="package")
def site(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Site]:
    """All services, with monitoring; with three brokers if a test kills one."""
    replicated = any(
        item.name == "test_a_killed_brokers_target_goes_down_and_comes_back" for item in request.session.items
    )
    context = monitored(tmp_path_factory.mktemp("monitored"), 3 if replicated else 1)
    opened = runner.run(context.__aenter__())
    try:
        yield opened
    finally:
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture(scope="package")
def monitored_stack(site: Site) -> Stack:
    """The site's stack."""
    return site.stack


@pytest.fixture(scope="package")
def results(runner: asyncio.Runner, site: Site, request: pytest.FixtureRequest) -> dict[str, Result]:
    """Results of the selected quick drills, by alert."""
    chosen = [drill for drill in QUICK if any(_is_of(item, drill) for item in request.session.items)]
    found = run_on(site, chosen or QUICK, seed=1, say=lambda line: print(line, file=sys.stderr))
    return {result.name: result for result in runner.run(found)}


def _is_of(item: pytest.Item, drill: Drill) -> bool:
    return (
        isinstance(item, pytest.Function) and hasattr(item, "callspec") and drill.name in item.callspec.params.values()
    )
