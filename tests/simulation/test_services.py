"""A real service, its runtime and its client, on the simulated cluster: instances that are killed and succeeded."""

import asyncio
from contextlib import AsyncExitStack

import msgspec
import pytest

from services.ingest.__main__ import TOPICS, build
from shared.events import catalogue
from shared.kafka.client.errors import TopicMismatchError
from shared.kafka.runtime.runtime import Runtime
from shared.settings import IngestSettings, load
from shared.telemetry.server import Health
from tests.contract.helpers import since
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import send_raw
from tests.simulation.loop import Process
from tests.simulation.world import SERVERS, World, history

COUNT = 60
TAKEN_OVER_S = 60
"""By then the killed member's session is over and its partitions have caught up."""


async def ingest(instance: int, stop: asyncio.Event, partitions: int = PARTITIONS) -> int:
    """Run an instance of ingest until it is stopped; returns its exit code."""
    environment = {
        "ONCE_BOOTSTRAP_SERVERS": SERVERS,
        "ONCE_INSTANCE": str(instance),
        "ONCE_METRICS_PORT": "9000",
        "ONCE_PARTITIONS": str(partitions),
    }
    settings = load(IngestSettings, environment)
    async with AsyncExitStack() as stack:
        workload = await build(settings, stack)
        return await Runtime(workload, settings, TOPICS, Health()).run(stop)


async def accepted(partitions: int = PARTITIONS) -> list[str]:
    """Return the ids of the payments that are accepted, as often as they are."""
    start = {(catalogue.PAYMENTS_ACCEPTED, partition): 0 for partition in range(partitions)}
    records = [record for found in (await since(SERVERS, start)).values() for record in found]
    return sorted(msgspec.json.decode(record.value or b"")["payment_id"] for record in records)


@pytest.mark.parametrize(("seed", "partitions"), [(0, PARTITIONS), (1, PARTITIONS), (2, PARTITIONS), (0, 1), (0, 12)])
def test_a_killed_instance_is_succeeded_and_every_payment_is_accepted_once(seed: int, partitions: int) -> None:
    async def main(world: World) -> None:
        stop = asyncio.Event()
        first, second = (Process(world.network.loop, f"ingest-{instance}") for instance in range(2))
        first.start(ingest(0, stop, partitions))
        survivor = second.start(ingest(1, stop, partitions))
        await asyncio.sleep(world.chance.uniform(1, 5))
        for number in range(3):
            await send_raw(SERVERS, payments(f"simulated-{number}", COUNT, partitions=partitions), partitions)
            await asyncio.sleep(world.chance.uniform(0, 0.3))
            if number == 1:
                first.kill()

        await asyncio.sleep(TAKEN_OVER_S)
        ids = await accepted(partitions)
        assert len(set(ids)) == len(ids) == 3 * COUNT
        stop.set()
        assert await survivor == 0

    history(main, seed, partitions=partitions)


def test_a_service_with_another_number_of_partitions_than_the_topics_refuses_to_start() -> None:
    async def main(_: World) -> None:
        with pytest.raises(TopicMismatchError, match=r"ONCE_PARTITIONS is 6, .*: set ONCE_PARTITIONS to 3, or use an"):
            await ingest(0, asyncio.Event(), 6)

    history(main, partitions=3)
