"""Kills, pauses and rebalances of the view at the worst moments: no posting is lost or counted twice."""

import asyncio
import random
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import URL

from shared.eos.crash import AFTER_DATABASE_COMMIT, BEFORE_DATABASE_COMMIT, TAKING_OVER, VIEW_POINTS
from shared.eos.errors import EXIT_FENCED
from tests.harness import Service, cluster, wait_until
from tests.integration.test_balances import view as made_view
from tests.postgres import Postgres
from tests.tiers import full
from tests.view_flow import Flow, assert_view_is_the_topic, flowing, held, wait_caught_up

pytestmark = pytest.mark.timeout(300)

KILLS_AT_RANDOM = 4


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster for this module only: its records are not a ledger's."""
    with cluster(tmp_path_factory.mktemp("crash-kafka")) as running:
        yield running.bootstrap_servers


@pytest.fixture
def view() -> Iterator[Callable[..., Service]]:
    """Make views and kill them at the end of the test, because they share one group."""
    made: list[Service] = []

    def make(*words: object, **settings: object) -> Service:
        made.append(made_view(*words, **settings))  # type: ignore[arg-type] # typed by made_view
        return made[-1]

    yield make
    for one in made:
        one.process.kill()


async def pouring(flow: Flow, stop: asyncio.Event) -> None:
    """Write postings until `stop` is set, at a rate that leaves the view some of the machine."""
    while not stop.is_set():
        await flow.pour(1, payments=15)
        await asyncio.sleep(0.1)


def reached(url: URL) -> int:
    """Return the sum of the database's positions."""
    return sum(held(url)[1].values())


def moved(url: URL, since: int) -> bool:
    """Return whether the database has made progress."""
    return reached(url) > since


@full
async def test_kill_9_at_any_point_loses_and_duplicates_nothing(
    view: Callable[..., Service], brokers: str, tmp_path: Path, view_url: URL
) -> None:
    """Scenario C4: kill at each crash point, more than once, then at random moments under load."""
    chance = random.Random(4)
    stop = asyncio.Event()
    async with flowing(brokers, seed=4) as flow:
        poured = asyncio.create_task(pouring(flow, stop))
        for point in VIEW_POINTS:
            for count in (1, 3) if point != TAKING_OVER else (1, 1):
                doomed = view(brokers, tmp_path, view_url, CRASH_POINT=f"{point}=kill:{count}").start()
                assert await asyncio.to_thread(doomed.wait_exit) == -signal.SIGKILL, (point, count)
        for _ in range(KILLS_AT_RANDOM):
            service = view(brokers, tmp_path, view_url).start()
            await asyncio.to_thread(wait_until, partial(moved, view_url, reached(view_url)), "progress")
            await asyncio.sleep(chance.random())  # a random moment
            service.process.kill()
        last = view(brokers, tmp_path, view_url).start()
        try:
            await asyncio.to_thread(last.wait_ready)
            stop.set()
            await poured
            await wait_caught_up(brokers, view_url)
            await assert_view_is_the_topic(brokers, view_url)
            assert flow.aborted > 0
        finally:
            assert last.process.terminate() == 0


@full
async def test_instances_share_the_partitions_and_replace_a_dead_one(
    view: Callable[..., Service], brokers: str, tmp_path: Path, postgres: Postgres
) -> None:
    url = postgres.create(f"shared-{tmp_path.name}")
    stop = asyncio.Event()
    instances = [view(brokers, tmp_path, url, instance=f"i{number}") for number in range(3)]

    def owned() -> list[int]:
        return sorted(int(one.metric("kafka_consumer_assigned_partitions")) for one in running)

    async with flowing(brokers, seed=5) as flow:
        poured = asyncio.create_task(pouring(flow, stop))
        running: list[Service] = []
        try:
            for instance in instances:
                running.append(instance.start())
                await asyncio.to_thread(instance.wait_ready)
            await asyncio.to_thread(wait_until, lambda: owned() == [2, 2, 2], "shared by three")
            running.remove(instances[0])
            instances[0].process.kill()
            await asyncio.to_thread(wait_until, lambda: owned() == [3, 3], "shared by two")
            await asyncio.to_thread(wait_until, lambda: all(one.ready for one in running), "ready")
            running.append(instances[0].start())
            await asyncio.to_thread(instances[0].wait_ready)
            await asyncio.to_thread(wait_until, lambda: owned() == [2, 2, 2], "shared by three again")
        finally:
            stop.set()
            await poured
        await wait_caught_up(brokers, url)
        await assert_view_is_the_topic(brokers, url)
        assert [one.process.terminate() for one in instances] == [0, 0, 0]


@pytest.mark.parametrize("point", [BEFORE_DATABASE_COMMIT, AFTER_DATABASE_COMMIT])
@full
async def test_a_stopped_instance_that_resumes_writes_nothing_twice(
    view: Callable[..., Service], brokers: str, tmp_path: Path, postgres: Postgres, point: str
) -> None:
    url = postgres.create(f"zombie-{tmp_path.name}")
    zombie = view(brokers, tmp_path, url, instance="zombie", CRASH_POINT=f"{point}=stop:2").start()
    successor = view(brokers, tmp_path, url, instance="successor")
    async with flowing(brokers, seed=6) as flow:
        await flow.pour(5)
        try:
            await asyncio.to_thread(wait_until, lambda: zombie.suspended, "stopped in its transaction")
            successor.start()
            await flow.pour(5)
            await asyncio.to_thread(successor.wait_ready)
            await wait_caught_up(brokers, url)
            zombie.process.resume()
            await flow.pour(10)
            # After it resumes, it writes nothing more, finds that it was removed from the group, and stops
            assert await asyncio.to_thread(zombie.wait_exit) == EXIT_FENCED
            zombie = view(brokers, tmp_path, url, instance="zombie").start()
            await asyncio.to_thread(zombie.wait_ready)
            await flow.pour(5)
            await wait_caught_up(brokers, url)
            await assert_view_is_the_topic(brokers, url)
        finally:
            zombie.process.kill()
            assert successor.process.terminate() == 0


@full
async def test_an_instance_that_the_group_removes_while_it_joins_stops_too(
    view: Callable[..., Service], brokers: str, tmp_path: Path, postgres: Postgres
) -> None:
    """It has no partitions by then, and would rejoin under another member id without an error."""
    url = postgres.create(f"joining-{tmp_path.name}")
    joining, successor = (view(brokers, tmp_path, url, instance=name) for name in ("joining", "successor"))
    dead = view(brokers, tmp_path, url, instance="dead", SESSION_TIMEOUT_MS="25000")
    async with flowing(brokers, seed=8) as flow:
        try:
            for one in (joining.start(), dead.start()):
                await asyncio.to_thread(one.wait_ready)
            dead.process.pause()  # the group and its joining members wait until its session ends
            successor.start()
            await asyncio.to_thread(wait_until, lambda: not joining.ready, "its partitions are revoked")
            joining.process.pause()
            await flow.pour(5)
            await asyncio.to_thread(successor.wait_ready, 120)
            await wait_caught_up(brokers, url)
            joining.process.resume()
            assert await asyncio.to_thread(joining.wait_exit) == EXIT_FENCED
            await flow.pour(5)
            await wait_caught_up(brokers, url)
            await assert_view_is_the_topic(brokers, url)
        finally:
            dead.process.kill()
            joining.process.kill()
            assert successor.process.terminate() == 0


@full
async def test_a_view_that_is_stopped_under_load_exits_with_0_and_continues_later(
    view: Callable[..., Service], brokers: str, tmp_path: Path, view_url: URL
) -> None:
    stop = asyncio.Event()
    async with flowing(brokers, seed=7) as flow:
        poured = asyncio.create_task(pouring(flow, stop))
        for _ in range(3):
            service = view(brokers, tmp_path, view_url).start()
            await asyncio.to_thread(service.wait_ready)
            service.process.request_stop()
            assert await asyncio.to_thread(service.wait_exit, 15) == 0
        stop.set()
        await poured
        service = view(brokers, tmp_path, view_url).start()
        try:
            await asyncio.to_thread(service.wait_ready)
            await wait_caught_up(brokers, view_url)
            await assert_view_is_the_topic(brokers, view_url)
        finally:
            assert service.process.terminate() == 0
