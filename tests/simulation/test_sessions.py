"""How a membership of a group ends, and when the runtime joins again: real clients on the simulated cluster."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Literal
from unittest import mock

import pytest

from services.ingest.__main__ import TOPICS, build
from services.ingest.service import IngestHandler
from shared.eos.errors import EXIT_FENCED
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.protocol.headers import api_key, decode_request
from shared.kafka.runtime.runtime import Runtime
from shared.settings import IngestSettings, SettingsError, load
from shared.telemetry.server import Health
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import send_raw
from tests.simulation.faults import Lose, Orphan, Troubles
from tests.simulation.loop import Process
from tests.simulation.test_services import accepted, ingest
from tests.simulation.world import SERVERS, World, history

NAME = "ingest-0"
ALL = PARTITIONS
HEARTBEAT = api_key("ConsumerGroupHeartbeat").to_bytes(2, "big")
WORKS_S = 10.0
"""By then an instance has its partitions."""
MANY = 1000
WORKED_S = 2.0
ENDED_S = 30.0
"""By then every deadline of an end is over."""


def start(world: World, stop: asyncio.Event) -> "asyncio.Task[int]":
    return Process(world.network.loop, NAME).start(ingest(0, stop))


def test_a_stop_does_not_need_the_cluster() -> None:
    async def main(world: World) -> None:
        stop = asyncio.Event()
        running = start(world, stop)
        await asyncio.sleep(WORKS_S)
        for broker in list(world.cluster.alive):
            world.kill(broker)
        stop.set()
        async with asyncio.timeout(ENDED_S):
            assert await running == 0

    history(main)


def test_a_defect_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: World) -> None:
        running = start(world, asyncio.Event())
        await asyncio.sleep(WORKS_S)
        with mock.patch.object(IngestHandler, "process", side_effect=RuntimeError("a defect")):
            await send_raw(SERVERS, payments("defect", 1))
            async with asyncio.timeout(ENDED_S):
                assert await running == EXIT_FENCED
        assert "a defect" in caplog.records[-1].__dict__["reason"]

    history(main)


async def working(world: World, *numbers: int) -> tuple[Sequence["asyncio.Task[int]"], Sequence[asyncio.Event]]:
    """Start instances of ingest, and wait until they work."""
    stops = [asyncio.Event() for _ in numbers]
    running = [
        Process(world.network.loop, f"ingest-{number}").start(ingest(number, stop))
        for number, stop in zip(numbers, stops, strict=True)
    ]
    await asyncio.sleep(WORKS_S)
    return running, stops


def reads_of_offsets(world: World, client: str, since_s: float) -> int:
    """How many partitions a process has taken over since then: each begins with a read of its offset."""
    key = api_key("OffsetFetch").to_bytes(2, "big")
    return sum(
        frame.client == client and frame.answer is None and frame.request[:2] == key and frame.at_s >= since_s
        for frame in world.network.frames
    )


def test_a_member_that_joins_interrupts_no_partition_that_stays() -> None:
    async def main(world: World) -> None:
        await working(world, 0)
        assert reads_of_offsets(world, "ingest-0", 0.0) == ALL
        joined_s = world.network.loop.time()
        await working(world, 1)
        assert reads_of_offsets(world, "ingest-1", joined_s) == ALL // 2
        assert reads_of_offsets(world, "ingest-0", joined_s) == 0

    history(main)


def test_partitions_of_a_member_that_stops_pass_to_others_at_once() -> None:
    async def main(world: World) -> None:
        running, stops = await working(world, 0, 1)
        stops[1].set()
        assert await running[1] == 0
        await send_raw(SERVERS, payments("left", 60))
        await asyncio.sleep(WORKED_S)
        assert len(await accepted()) == 60

    history(main)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_an_unknown_outcome_is_resolved_without_leaving_the_group(lost: Literal["request", "answer"]) -> None:
    """EndTxn is repeated until the transaction's deadline."""

    async def main(world: World) -> None:
        await working(world, 0)
        troubles = world.network.trouble = Troubles()
        troubles.add(Lose(0.0, NAME, "EndTxn", lost, MANY))
        lost_s = world.network.loop.time()
        await send_raw(SERVERS, payments("unknown", 60))
        await asyncio.sleep(WORKS_S)
        world.network.trouble = Troubles()
        await asyncio.sleep(WORKS_S)
        assert len(await accepted()) == 60
        joins = [
            values
            for frame in world.network.frames
            if frame.client == NAME and frame.answer is None and frame.at_s >= lost_s
            if frame.request[:2] == HEARTBEAT
            if (values := decode_request("ConsumerGroupHeartbeat", 1, frame.request))["MemberEpoch"] <= 0
        ]
        assert not joins

    history(main)


def test_a_late_initialisation_of_an_earlier_process_does_not_end_an_instance() -> None:
    """It fences the instance once, which rejoins."""

    async def main(world: World) -> None:
        troubles = world.network.trouble = Troubles()
        troubles.add(Orphan(0.0, NAME, "InitProducerId", 1, 8.0))
        running, _ = await working(world, 0)
        for number in range(4):
            await send_raw(SERVERS, payments(f"late-{number}", 10))
            await asyncio.sleep(WORKED_S)
        await asyncio.sleep(WORKS_S)
        assert not running[0].done()
        assert len(await accepted()) == 40

    history(main)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), SettingsError("ingest.pem cannot be read")])
def test_a_partition_that_cannot_be_begun_ends_the_process(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The first of all partitions is reported."""

    async def main(world: World) -> None:
        with mock.patch.object(IngestHandler, "__init__", side_effect=error):
            assert await start(world, asyncio.Event()) == EXIT_FENCED
        [line] = [line for line in caplog.records if line.message == "fatal"]
        assert str(error) in line.__dict__["reason"]

    history(main)


class Table:
    """A resource of a membership. The cluster is unavailable for its first start, and when `away` is set."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.away = asyncio.Event()

    async def start(self) -> None:
        self.calls.append("start")
        if len(self.calls) == 1:
            raise KafkaUnavailableError("away")

    async def failed(self) -> None:
        await self.away.wait()
        self.away.clear()
        raise KafkaUnavailableError("gone")

    async def stop(self) -> None:
        self.calls.append("stop")


def test_each_membership_starts_its_resources_and_ends_with_them() -> None:
    table, stop = Table(), asyncio.Event()

    async def work() -> int:
        settings = load(IngestSettings, {"ONCE_BOOTSTRAP_SERVERS": SERVERS, "ONCE_INSTANCE": "0"})
        async with AsyncExitStack() as stack:
            workload = replace(await build(settings, stack), resources=(table,))
            return await Runtime(workload, settings, TOPICS, Health()).run(stop)

    async def main(world: World) -> None:
        running = Process(world.network.loop, NAME).start(work())
        await asyncio.sleep(WORKS_S)
        assert table.calls == ["start", "stop", "start"]
        table.away.set()
        await asyncio.sleep(WORKS_S)
        assert table.calls == ["start", "stop"] * 2 + ["start"]
        await send_raw(SERVERS, payments("begun-again", 10))
        await asyncio.sleep(WORKS_S)
        assert len(await accepted()) == 10
        stop.set()
        assert await running == 0
        assert table.calls == ["start", "stop"] * 3

    history(main)
