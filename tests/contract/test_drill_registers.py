"""The workload on registers: its history on a real broker has no anomaly, and one of a wrong reader has."""

import asyncio
import time
import uuid

from deploy.drills.checker import Fate, check, fates
from deploy.drills.drill import Anomaly
from deploy.drills.history import Function, Type
from deploy.drills.recording import STALL_S
from deploy.drills.registers import PARTITIONS, Registers
from deploy.local.kafka.cluster import LocalKafka
from shared.kafka.admin.scratch import create_topic
from shared.kafka.client.cluster import Cluster
from tests.harness import eventually
from tests.tiers import full


async def recorded(kafka: LocalKafka, *, committed: bool = True) -> Registers:
    """Run the workload until each kind of end was seen."""
    name = f"registers-{uuid.uuid4()}"
    begun_s = time.monotonic()
    async with Cluster(kafka.bootstrap_servers) as cluster:
        await create_topic(cluster, name, PARTITIONS, replicas=1)
    registers = Registers(
        kafka.bootstrap_servers, name, name, 1, lambda: time.monotonic() - begun_s, pause_s=0.001, committed=committed
    )

    async def enough() -> bool:
        await asyncio.sleep(0.1)
        fenced = any(one.type is Type.FAIL and one.function is Function.COMMIT for one in registers.history.events)
        aborted = any(one.type is Type.OK and one.function is Function.ABORT for one in registers.history.events)
        return fenced and aborted and registers.committed() >= 30

    async with registers.run():
        await eventually(enough, "transactions of every end", 60)
    return registers


async def test_the_projects_clients_show_no_anomaly(kafka: LocalKafka) -> None:
    registers = await recorded(kafka)
    history = registers.history
    assert registers.settled
    assert check(history, stall_s=STALL_S) == {}
    assert len(history.log) >= 30
    polled = {value for one in history.events if one.function is Function.POLL for value in one.values}
    assert polled == set(history.log)
    assert {look.partition for look in history.looks} == set(range(PARTITIONS))
    assert fates(history)[Fate.ABORTED] > 0


@full
async def test_a_reader_that_is_not_read_committed_is_found(kafka: LocalKafka) -> None:
    registers = await recorded(kafka, committed=False)
    assert set(check(registers.history, stall_s=STALL_S)) >= {Anomaly.ABORTED_READ, Anomaly.PRECOMMITTED_READ}
