"""An upgrade in the documented order, under load: each service in turn is a version ahead and adds a field."""

import asyncio
from typing import Any
from unittest import mock

import msgspec
import pytest

from services.ingest.service import IngestHandler
from services.ledger.service import LedgerHandler
from services.transform.service import TransformHandler
from shared.eos.records import Output
from shared.events import catalogue
from tests.contract.helpers import since
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import send_raw
from tests.simulation import judge
from tests.simulation.instances import Instance
from tests.simulation.loop import PROCESS, VirtualLoop
from tests.simulation.world import SERVERS, World, history
from tests.tiers import mostly_full

ORDER = ("ledger", "transform", "ingest")
"""Of docs/deployment.md: who reads a record is replaced before who writes it."""
HANDLERS: dict[str, type[Any]] = {"ingest": IngestHandler, "transform": TransformHandler, "ledger": LedgerHandler}
REPLACED: set[str] = set()
"""Names of processes of the new version."""
FIELD = b',"channel":{"name":"branch"}}'
REACHES = {
    "ingest": (catalogue.PAYMENTS_ACCEPTED, catalogue.LEDGER_TRANSFERS),
    "transform": (catalogue.LEDGER_TRANSFERS,),
    "ledger": (catalogue.LEDGER_POSTINGS,),
}
"""Topics whose records have the field of a service that is ahead."""
BOOKED_S = 60
PAUSE_S = 1.0


def ahead(handler: type[Any]) -> Any:
    """Have replaced processes add a field to every event that they write."""
    process = handler.process

    def extended(self: Any, *records: Any) -> list[Output]:
        made: list[Output] = process(self, *records)
        who = PROCESS.get()
        if who is None or who.name not in REPLACED:
            return made
        return [
            one if one.topic == catalogue.PAYMENTS_DEAD_LETTER else one._replace(value=one.value[:-1] + FIELD)
            for one in made
            if one.value is not None
        ]

    return mock.patch.object(handler, "process", extended)


async def replace(instance: Instance) -> None:
    """Stop an instance, and start the new version."""
    instance.leave()
    while instance.process is not None:
        await asyncio.sleep(0.1)
    REPLACED.add(instance.name)
    instance.wanted = True
    instance.start()


async def load(done: asyncio.Event) -> None:
    number = 0
    while not done.is_set():
        await send_raw(SERVERS, payments(f"upgrade-{number}", 20))
        number += 1
        await asyncio.sleep(0.3)


async def extended_records(topic: str) -> tuple[int, int]:
    """How many of a topic's records have the field, and how many do not."""
    start = {(topic, partition): 0 for partition in range(PARTITIONS)}
    records = [record for found in (await since(SERVERS, start)).values() for record in found]
    having = sum("channel" in msgspec.json.decode(record.value or b"{}") for record in records)
    return having, len(records) - having


@pytest.mark.parametrize("service", mostly_full(ORDER, ["ingest"]))
def test_every_payment_is_booked_once_while_one_service_is_a_version_ahead(service: str) -> None:
    async def main(world: World) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        REPLACED.clear()
        instances = {
            name: [Instance(loop, name, at, f"{name}-{at}", SERVERS, PARTITIONS) for at in range(2)] for name in ORDER
        }
        for one in (one for found in instances.values() for one in found):
            one.start()
        done = asyncio.Event()
        loading = asyncio.create_task(load(done))
        await asyncio.sleep(5)
        for one in (one for name in ORDER for one in instances[name]):
            await asyncio.sleep(PAUSE_S)
            await replace(one)
        await asyncio.sleep(PAUSE_S)
        done.set()
        await loading
        async with asyncio.timeout(BOOKED_S):
            while list(judge.behind(world.cluster, ORDER)):
                await asyncio.sleep(0.5)
        verdict = judge.audit(world.cluster)
        assert (judge.findings(verdict), verdict.accepted > 0) == ({}, True)
        for topic in REACHES[service]:
            having, lacking = await extended_records(topic)
            assert min(having, lacking) > 20, topic

    with ahead(HANDLERS[service]):
        history(main)
