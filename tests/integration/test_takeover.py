"""Takeovers of partitions: zombies, rewinds, and restores longer than the session."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.drills.admin import free_restores, slow_restores
from deploy.local.kafka.cluster import LocalKafka
from shared.eos import crash
from shared.eos.errors import EXIT_FENCED
from shared.events import catalogue
from shared.kafka.admin.groups import wait_drained
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.client.cluster import DEADLINE_S
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets
from tests.harness import SESSION_TIMEOUT_MS, Service, services, wait_until
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import assert_exactly_once, send_raw, verdict
from tests.tiers import full

pytestmark = pytest.mark.timeout(180)

NAMES = ("ingest", "transform", "ledger")
REJOINING = "leaving the group to rejoin"


@pytest.fixture(scope="module")
def running(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    with services(kafka.bootstrap_servers, tmp_path_factory.mktemp("services"), *NAMES) as started:
        yield started


@full
@pytest.mark.parametrize("point", [crash.AFTER_OFFSETS, crash.END_TXN_SENT])
async def test_a_stopped_instance_that_resumes_commits_nothing_and_fences_no_owner(
    kafka: LocalKafka, running: dict[str, Service], tmp_path: Path, point: str
) -> None:
    await wait_drained(kafka.bootstrap_servers, deadline_s=60)  # or other tests' payments stop it before it is ready
    running["ledger"].process.terminate()
    zombie = Service("ledger", kafka.bootstrap_servers, tmp_path, CRASH_POINT=f"{point}=stop:1").start().wait_ready()
    successor = Service("ledger", kafka.bootstrap_servers, tmp_path, instance="successor")
    try:
        await send_raw(kafka.bootstrap_servers, payments(f"zombie-{point}", 500))
        wait_until(lambda: zombie.suspended, "the instance stopped inside its transaction")
        suspended_s = time.monotonic()
        # The successor gets the partitions only when the session times out
        successor.start().wait_ready()
        wait_until(
            lambda: successor.metric("kafka_consumer_assigned_partitions") == 6, "the successor owns all partitions"
        )
        await send_raw(kafka.bootstrap_servers, payments(f"successor-{point}", 500))
        before = verdict(kafka.bootstrap_servers)

        # No request of the zombie may be answered within its deadline
        wait_until(lambda: time.monotonic() - suspended_s > DEADLINE_S, "its deadlines passed")
        zombie.process.resume()
        # The resumed zombie is fenced, removed from the group, or unsure of its commit: it stops or rejoins
        wait_until(lambda: zombie.process.returncode == EXIT_FENCED or zombie.logged(REJOINING), "the zombie noticed")
        await send_raw(kafka.bootstrap_servers, payments(f"after-{point}", 500))
        after = verdict(kafka.bootstrap_servers)
        # A zombie that did not stop has rejoined and processes records
        wait_until(lambda: zombie.process.returncode == EXIT_FENCED or zombie.ready, "the zombie stopped or rejoined")

        assert_exactly_once(before)
        assert_exactly_once(after)
        assert after["accepted"] == before["accepted"] + 500
        assert successor.process.running
        assert successor.metric("kafka_producer_fenced_total") == 0
    finally:
        for service in (zombie, successor):
            service.process.terminate()
        running["ledger"].start().wait_ready()


@full
async def test_a_group_rewound_to_0_changes_nothing(kafka: LocalKafka, running: dict[str, Service]) -> None:
    await send_raw(kafka.bootstrap_servers, payments("rewind", 500))
    before = verdict(kafka.bootstrap_servers)
    outputs = [topic.name for topic in catalogue.TOPICS if topic.name != catalogue.PAYMENTS_RAW]
    ends = await end_offsets(kafka.bootstrap_servers, outputs)
    inputs = {
        "ingest": catalogue.PAYMENTS_RAW,
        "transform": catalogue.PAYMENTS_ACCEPTED,
        "ledger": catalogue.LEDGER_TRANSFERS,
    }
    for name, topic in inputs.items():
        running[name].process.terminate()
        # Offsets can be set only in an empty group
        await set_group_offsets(
            kafka.bootstrap_servers, name, topic, dict.fromkeys(range(PARTITIONS), 0), deadline_s=30
        )
        running[name].start().wait_ready()

    assert await end_offsets(kafka.bootstrap_servers, outputs) == ends
    await send_raw(kafka.bootstrap_servers, payments("rewound", 500))
    after = verdict(kafka.bootstrap_servers)
    assert_exactly_once(after)
    assert after["accepted"] == before["accepted"] + 500


@full
async def test_a_restore_longer_than_the_session_keeps_the_partitions(
    kafka: LocalKafka, running: dict[str, Service], tmp_path: Path
) -> None:
    running["transform"].process.terminate()
    running["ingest"].process.terminate()
    slow = Service("ingest", kafka.bootstrap_servers, tmp_path, instance="slow")
    try:
        # A small state with megabytes of superseded records, which take several sessions under a quota
        async with IdempotentWriter(kafka.bootstrap_servers) as writer:
            for _ in range(150_000):
                await writer.write(catalogue.PAYMENTS_IDENTITIES, 0, b"identity/0", None)
            await writer.flush()
        try:
            await slow_restores(kafka, bytes_per_s=200_000)
            slow.start().wait_ready(120)
            assert slow.metric("kafka_consumer_rebalance_total") == 1
            taken_over = [line for line in slow.log() if line["event"] == "partition taken over"]
            assert len(taken_over) == PARTITIONS
            assert slow.metric("once_restore_seconds_sum") * 1000 > 2 * SESSION_TIMEOUT_MS
            await send_raw(kafka.bootstrap_servers, payments("slow", 500))
        finally:
            await free_restores(kafka)
    finally:
        slow.process.terminate()
        running["ingest"].start().wait_ready()
        running["transform"].start().wait_ready()
    assert_exactly_once(verdict(kafka.bootstrap_servers))


@full
async def test_of_two_processes_of_one_instance_one_ends(
    kafka: LocalKafka, running: dict[str, Service], tmp_path: Path
) -> None:
    """Each fences the other when it rejoins, and the one that is fenced again ends."""
    running["ingest"].process.terminate()
    both = [Service("ingest", kafka.bootstrap_servers, tmp_path).start().wait_ready() for _ in range(2)]
    try:
        for number in itertools.count():
            await send_raw(kafka.bootstrap_servers, payments(f"same-id-{number}", 10))
            ended = [one for one in both if not one.process.running]
            if ended:
                break
            assert number < 600
            await asyncio.sleep(0.1)
        assert [one.process.returncode for one in ended] == [EXIT_FENCED]
        assert any(line["event"] == "fenced" for line in ended[0].log())
        assert_exactly_once(verdict(kafka.bootstrap_servers))
    finally:
        for one in both:
            one.process.terminate()
        running["ingest"].start().wait_ready()


@full
async def test_a_member_that_waits_for_partitions_stops_on_request(
    kafka: LocalKafka, running: dict[str, Service], tmp_path: Path
) -> None:
    running["transform"].process.terminate()
    sleeper = Service("transform", kafka.bootstrap_servers, tmp_path, instance="sleeper")
    late = Service("transform", kafka.bootstrap_servers, tmp_path, instance="late")
    try:
        sleeper.start().wait_ready()
        sleeper.process.pause()
        # The sleeper does not give partitions back until its session ends
        late.start().wait_ready()
        late.process.request_stop()
        assert late.wait_exit() == 0
    finally:
        late.process.terminate()
        sleeper.process.resume()
        sleeper.process.terminate()
        running["transform"].start().wait_ready()
