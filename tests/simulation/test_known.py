"""The known behaviours of the runtime, each in a history of its own: it fails when the behaviour is gone."""

import asyncio
from collections.abc import Sequence

import pytest

from shared.eos.errors import FencedError
from shared.events import catalogue
from shared.kafka.protocol.headers import api_key
from tests.payments import payments
from tests.proof import send_raw
from tests.simulation.faults import Lose, Orphan, Troubles
from tests.simulation.loop import Process
from tests.simulation.test_runtime import WRITER, write, writer
from tests.simulation.test_services import accepted, ingest
from tests.simulation.world import SERVERS, World, history

JOINED_S = 10.0
"""By then members have their partitions."""
SESSION_S = 6.0
WORKED_S = 2.0
MANY = 1000
ALL = catalogue.PARTITIONS


def initialised(world: World, client: str, since_s: float) -> int:
    """How many producers a process has initialised since then."""
    key = api_key("InitProducerId").to_bytes(2, "big")
    return sum(
        frame.client == client and frame.answer is None and frame.request[:2] == key and frame.at_s >= since_s
        for frame in world.network.frames
    )


def test_a_late_initialisation_of_an_earlier_session_fences() -> None:
    """The producer of this session has only requests that were answered."""

    async def main(world: World) -> None:
        troubles = world.network.trouble = Troubles()
        troubles.add(Orphan(0.0, WRITER, "InitProducerId", 1, 3.0))

        async def work() -> None:
            former, producer = writer(), writer()
            await former.init(30)
            await former.discard()
            await producer.init(30)
            await asyncio.sleep(5)
            await producer.begin()
            with pytest.raises(FencedError):
                await write(producer, b"first")
            await producer.discard()

        await Process(world.network.loop, WRITER).start(work())

    history(main)


async def working(world: World, *numbers: int) -> tuple[Sequence["asyncio.Task[int]"], Sequence[asyncio.Event]]:
    """Start instances of ingest, and wait until they work."""
    stops = [asyncio.Event() for _ in numbers]
    running = [
        Process(world.network.loop, f"ingest-{number}").start(ingest(number, stop))
        for number, stop in zip(numbers, stops, strict=True)
    ]
    await asyncio.sleep(JOINED_S)
    return running, stops


def test_a_member_that_joins_has_all_partitions_taken_over_again() -> None:
    """What stays with a member is given back, and restored, as well."""

    async def main(world: World) -> None:
        await working(world, 0)
        assert initialised(world, "ingest-0", 0.0) == ALL
        joined_s = world.network.loop.time()
        await working(world, 1)
        assert initialised(world, "ingest-1", joined_s) == ALL // 2
        assert initialised(world, "ingest-0", joined_s) == ALL // 2

    history(main)


def test_partitions_of_a_member_that_stops_wait_for_the_end_of_its_session() -> None:
    """A static member does not leave."""

    async def main(world: World) -> None:
        running, stops = await working(world, 0, 1)
        stops[1].set()
        assert await running[1] == 0
        await send_raw(SERVERS, payments("left", 60))
        await asyncio.sleep(WORKED_S)
        assert 0 < len(await accepted()) < 60
        await asyncio.sleep(SESSION_S + JOINED_S)
        assert len(await accepted()) == 60

    history(main)


def test_one_unknown_outcome_has_all_partitions_taken_over_again() -> None:
    """The instance leaves its group and joins again. EndTxn is repeated until the transaction's deadline."""

    async def main(world: World) -> None:
        await working(world, 0)
        troubles = world.network.trouble = Troubles()
        troubles.add(Lose(0.0, "ingest-0", "EndTxn", "answer", MANY))
        lost_s = world.network.loop.time()
        await send_raw(SERVERS, payments("unknown", 60))
        await asyncio.sleep(JOINED_S)
        world.network.trouble = Troubles()
        await asyncio.sleep(SESSION_S + JOINED_S)
        assert initialised(world, "ingest-0", lost_s) == ALL
        assert len(await accepted()) == 60

    history(main)
