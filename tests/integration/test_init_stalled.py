"""A stalled InitProducerId: the wait names the transactional.id, its state, its coordinator and missing markers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.drills.admin import move_leader
from deploy.drills.hanging import refuse_markers
from deploy.local.kafka.cluster import LocalKafka
from shared.eos import crash
from shared.eos.crash import CrashPoints
from shared.events import catalogue
from shared.kafka.admin.coordinator_state import Wait, explained_wait
from shared.kafka.admin.transaction_state import STATE_TOPIC, partition_of
from shared.kafka.runtime.instance import ASSIGNMENT
from shared.kafka.runtime.producer import TransactionalProducer
from tests.harness import Service, eventually, wait_until
from tests.open_transaction import abandon
from tests.payments import payments, with_fields
from tests.proof import send_raw
from tests.tiers import full

pytestmark = pytest.mark.timeout(240)

PARTITION = 2
ID = "ingest-0"
WAITS = "kafka_producer_init_wait_seconds"


@pytest.fixture(scope="module")
def kafka(replicated: LocalKafka) -> LocalKafka:
    """A cluster whose brokers the tests stop."""
    return replicated


@pytest.fixture(autouse=True)
async def state_topic(kafka: LocalKafka) -> None:
    """Create __transaction_state by a first InitProducerId."""
    producer = TransactionalProducer(kafka.bootstrap_servers, "first", 10_000, CrashPoints("", lambda _: None))
    await producer.init(60)
    await producer.discard()


def coordinators(kafka: LocalKafka) -> dict[int, int]:
    """Return the leader of each partition of __transaction_state."""
    partitions = kafka.view(kafka.nodes[0].node_id).partitions
    return {part.partition: part.leader for part in partitions if part.topic == STATE_TOPIC}


@asynccontextmanager
async def initialising(
    kafka: LocalKafka, transactional_id: str
) -> AsyncIterator[tuple["asyncio.Task[None]", list[str]]]:
    """Initialise the transactional.id in a task; yield it with the reasons reported so far."""
    reasons: list[str] = []
    producer = TransactionalProducer(kafka.bootstrap_servers, transactional_id, 10_000, CrashPoints("", lambda _: None))

    async def init() -> None:
        def report(wait: Wait) -> None:
            reasons.append(wait.reason)

        async with explained_wait(kafka.bootstrap_servers, transactional_id, report, wait_s=1.0, refresh_s=0.5):
            await producer.init(120)

    task = asyncio.create_task(init())
    try:
        yield task, reasons
    finally:
        task.cancel()
        await asyncio.wait([task])
        await producer.discard()


async def said(reasons: list[str], *parts: str) -> None:
    """Wait for a reason that has all of these parts."""

    async def reached() -> bool:
        return any(all(part in reason for part in parts) for reason in reasons)

    try:
        await eventually(reached, f"a reason with {parts}", 40)
    except TimeoutError:
        raise AssertionError(f"no reason with {parts} in {sorted(set(reasons))}") from None


@full
async def test_a_service_names_the_stalled_coordinator_and_moving_its_leadership_helps(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    brokers = kafka.bootstrap_servers
    stopped = Service("ingest", brokers, tmp_path, CRASH_POINT=f"{crash.AFTER_SEND}=stop:1").start().wait_ready()
    successor = Service("ingest", brokers, tmp_path)
    try:
        values = [with_fields(value, debtor=f"cash@{PARTITION}") for value in payments("stalled", 20)]
        await send_raw(brokers, values)
        wait_until(lambda: stopped.suspended, "the instance stopped inside its transaction")
        target = (catalogue.PAYMENTS_ACCEPTED, PARTITION)
        state = await refuse_markers(brokers, ID, target)
        stopped.process.kill()

        successor.start()
        wait_until(lambda: ID in successor.not_ready_reasons().get(ASSIGNMENT, ""), "readiness names the wait")
        reason = successor.not_ready_reasons()[ASSIGNMENT]
        coordinator = coordinators(kafka)[state[1]]
        assert f"InitProducerId of {ID} waits: its coordinator, broker {coordinator}," in reason
        assert f"leads {STATE_TOPIC}:{state[1]}, has it in PrepareAbort" in reason
        assert f"markers are missing on {target[0]}:{target[1]}, all of which have leaders" in reason
        assert successor.logged(reason)
        wait_until(lambda: successor.metric(WAITS) > 5, "the gauge shows the wait")
        labels = f'coordinator="{coordinator}",state="PrepareAbort",transactional_id="{ID}"'
        wait_until(lambda: labels in successor.metrics_text(), "the gauge names the coordinator and the state")

        replicas = [node.node_id for node in kafka.nodes]
        await move_leader(kafka, state, sorted(replicas, key=lambda node_id: node_id == coordinator))
        successor.wait_ready()
        assert successor.metric(WAITS) == 0
    finally:
        stopped.process.kill()
        successor.process.terminate()


@full
async def test_a_coordinator_without_followers_is_named_until_they_are_back(
    kafka: LocalKafka,
) -> None:
    transactional_id = "not-replicated"
    leads = coordinators(kafka)
    coordinator = leads[partition_of(transactional_id, len(leads))]
    followers = [node.node_id for node in kafka.nodes if node.node_id != coordinator]
    target = (catalogue.PAYMENTS_RAW, 0)
    abandon(kafka.bootstrap_servers, kafka.directory, transactional_id, [target])
    try:
        for follower in followers:
            kafka.processes[follower].kill()
        async with initialising(kafka, transactional_id) as (task, reasons):
            await said(reasons, f"broker {coordinator}", "has it in Ongoing, with no marker missing")
            assert not task.done()
            for follower in followers:
                kafka.processes[follower].start()
            await asyncio.wait_for(task, 90)
        assert reasons[-1] == ""
    finally:
        for follower in followers:
            kafka.processes[follower].start()
        await asyncio.to_thread(kafka.wait_in_sync, 120)


@full
async def test_a_coordinator_that_does_not_answer_is_named(kafka: LocalKafka) -> None:
    leads = coordinators(kafka)
    transactional_id = "silent-coordinator"
    coordinator = leads[partition_of(transactional_id, len(leads))]
    kafka.processes[coordinator].pause()
    try:
        async with initialising(kafka, transactional_id) as (task, reasons):
            await said(reasons, transactional_id, f"{STATE_TOPIC}:{partition_of(transactional_id, len(leads))}")
            kafka.processes[coordinator].resume()
            await asyncio.wait_for(task, 60)
    finally:
        kafka.processes[coordinator].resume()
    assert all("waits: " in reason for reason in reasons[:-1])
