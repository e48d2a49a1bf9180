"""How a membership of a group ends, and when the runtime joins again: real clients on the simulated cluster."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from services.ingest.__main__ import TOPICS, build
from services.ingest.service import IngestHandler
from shared.eos.errors import EXIT_FENCED
from shared.kafka.client.consumer import PatientConsumer
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.runtime.runtime import Runtime
from shared.settings import IngestSettings, SettingsError, load
from shared.telemetry.server import Health
from tests.payments import payments
from tests.proof import send_raw
from tests.simulation.faults import Lose, Troubles
from tests.simulation.loop import Process
from tests.simulation.test_services import accepted, ingest
from tests.simulation.world import SERVERS, World, history

NAME = "ingest-0"
WORKS_S = 10.0
MANY = 1000
"""By then an instance has its partitions."""
ENDED_S = 30.0
"""By then every deadline of an end is over."""


def start(world: World, stop: asyncio.Event) -> "asyncio.Task[int]":
    return Process(world.network.loop, NAME).start(ingest(0, stop))


@contextmanager
def endless() -> Iterator[None]:
    """The client's consumers do not end."""

    async def stop(_: Any) -> None:
        await asyncio.Event().wait()

    with mock.patch.object(PatientConsumer, "stop", stop):
        yield


def test_a_member_that_waits_for_its_partitions_stops() -> None:
    async def main(world: World) -> None:
        stop = asyncio.Event()
        running = start(world, stop)
        await asyncio.sleep(2)
        assert not running.done()
        stop.set()
        async with asyncio.timeout(ENDED_S):
            assert await running == 0

    history(main, first_wait_s=60.0)


def test_a_stop_does_not_need_the_client_to_end() -> None:
    async def main(world: World) -> None:
        stop = asyncio.Event()
        running = start(world, stop)
        await asyncio.sleep(WORKS_S)
        stop.set()
        with endless():
            async with asyncio.timeout(ENDED_S):
                assert await running == 0

    history(main)


def test_a_defect_ends_the_process_although_the_client_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        running = start(world, asyncio.Event())
        await asyncio.sleep(WORKS_S)
        defect = mock.patch.object(IngestHandler, "process", side_effect=RuntimeError("a defect"))
        with endless(), defect:
            await send_raw(SERVERS, payments("defect", 1))
            async with asyncio.timeout(ENDED_S):
                assert await running == EXIT_FENCED
        assert "a defect" in caplog.records[-1].__dict__["reason"]

    history(main)


def test_a_client_that_does_not_end_must_not_join_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        running = start(world, asyncio.Event())
        await asyncio.sleep(WORKS_S)
        troubles = world.network.trouble = Troubles()
        troubles.add(Lose(0.0, NAME, "EndTxn", "answer", MANY))
        with endless():
            await send_raw(SERVERS, payments("unknown", 1))
            async with asyncio.timeout(ENDED_S):
                assert await running == EXIT_FENCED
        assert "the client did not end" in caplog.records[-1].__dict__["reason"]

    history(main)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), SettingsError("ingest.pem cannot be read")])
def test_a_partition_that_cannot_be_begun_ends_the_process(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The first of all partitions is reported."""

    async def main(world: World) -> None:
        with mock.patch.object(IngestHandler, "__init__", side_effect=error):
            assert await start(world, asyncio.Event()) == EXIT_FENCED
        [line] = [line for line in caplog.records if line.message == "fatal"]
        assert line.__dict__["reason"] == str(error)

    history(main)


class Table:
    """A resource of a session. The cluster is unavailable for its first start, and while `failed` is set."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failed = False

    async def start(self) -> None:
        self.calls.append("start")
        if len(self.calls) == 1:
            raise KafkaUnavailableError("away")

    def check(self) -> None:
        if self.failed:
            self.failed = False
            raise KafkaUnavailableError("gone")

    async def stop(self) -> None:
        self.calls.append("stop")


def test_each_session_starts_its_resources_and_ends_with_them() -> None:
    table, stop = Table(), asyncio.Event()

    async def work() -> int:
        settings = load(IngestSettings, {"ONCE_BOOTSTRAP_SERVERS": SERVERS, "ONCE_INSTANCE": "0"})
        async with AsyncExitStack() as stack:
            workload = replace(await build(settings, stack), beside=(table,))
            return await Runtime(workload, settings, TOPICS, Health()).run(stop)

    async def main(world: World) -> None:
        running = Process(world.network.loop, NAME).start(work())
        await asyncio.sleep(WORKS_S)
        assert table.calls == ["start", "stop", "start"]
        table.failed = True
        await asyncio.sleep(WORKS_S)
        assert table.calls == ["start", "stop"] * 2 + ["start"]
        await send_raw(SERVERS, payments("begun-again", 10))
        await asyncio.sleep(WORKS_S)
        assert len(await accepted()) == 10
        stop.set()
        assert await running == 0
        assert table.calls == ["start", "stop"] * 3

    history(main)
