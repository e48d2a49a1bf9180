"""Fixtures of the page's tests: one stack with the view, the verdict on its payments, and one browser."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from deploy.checkers.verdict import Verdict
from deploy.local.supervisor.stack import Stack
from deploy.verification import verify_cluster
from services.balances.dashboard.observed import MONITOR, SERVICES
from tests.chromium import chromium
from tests.page_site import Site, load, subscribe

FIRST = "test_page_agreement"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the comparisons with the verdict first: the tests of faults send payments and kill services."""
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    ordered = sorted((items[place] for place in places), key=lambda item: item.path.stem != FIRST)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The pipeline."""
    made = Stack(
        tmp_path_factory.mktemp("page-stack"),
        services=(*SERVICES, MONITOR),
        brokers=1,
        heap_mb=256,
        environment={"ONCE_SESSION_TIMEOUT_MS": "3000", "ONCE_MONITOR_INTERVAL_S": "0.5"},
        prepare=lambda brokers: asyncio.run(subscribe(str(brokers))),
    )
    try:
        made.start()
        made.wait_ready(120)
        yield made
    finally:
        made.kill()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def site(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """The stack's view, ready."""
    made = Site(stack, tmp_path_factory.mktemp("page-view"))
    made.view.start()
    try:
        await load(made.brokers)
        await asyncio.to_thread(made.view.wait_ready)
        yield made
    finally:
        await asyncio.to_thread(made.view.process.terminate)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def verdict(site: Site) -> Verdict:
    """The verdict on the loaded payments while the stack is idle."""
    found = await verify_cluster(site.brokers, file_sinks=site.stack.effects_directory)
    assert found.verdict == "pass", found
    return found


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def browser() -> AsyncIterator[Browser]:
    """One browser for all tests; each test has its own context."""
    async with chromium() as running:
        yield running
