"""Partitions change hands: zombies, rewinds, restores that outlast the session."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from shared.eos import crash
from shared.eos.errors import EXIT_FENCED
from shared.events import catalogue
from shared.kafka.admin.groups import wait_drained
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.client.cluster import DEADLINE_S
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets
from shared.kafka.runtime.session import ASSIGNMENT
from tests.drills.admin import free_restores, slow_restores
from tests.harness import SESSION_TIMEOUT_MS, Service, services, wait_until
from tests.payments import payments
from tests.proof import assert_exactly_once, send_raw, verdict
from tests.tiers import full, mostly_full

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

NAMES = ("ingest", "transform", "ledger")
REJOINING = "leaving the group to rejoin"


@pytest.fixture(scope="module")
def running(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    with services(kafka.bootstrap_servers, tmp_path_factory.mktemp("services"), *NAMES) as started:
        yield started


@pytest.mark.parametrize("point", mostly_full([crash.AFTER_OFFSETS, crash.END_TXN_SENT], [crash.END_TXN_SENT]))
async def test_a_stopped_instance_that_wakes_up_commits_nothing_and_fences_nobody(
    kafka: LocalKafka, running: dict[str, Service], tmp_path: Path, point: str
) -> None:
    await wait_drained(kafka.bootstrap_servers, deadline_s=60)  # or what other tests left stops it before it is ready
    running["ledger"].process.terminate()
    zombie = Service("ledger", kafka.bootstrap_servers, tmp_path, CRASH_POINT=f"{point}=stop:2").start().wait_ready()
    heir = Service("ledger", kafka.bootstrap_servers, tmp_path, instance="heir")
    try:
        await send_raw(kafka.bootstrap_servers, payments(f"zombie-{point}", 500))
        wait_until(lambda: zombie.suspended, "the instance stopped inside its transaction")
        suspended_s = time.monotonic()
        # The heir gets the partitions when the session times out, and no sooner
        heir.start().wait_ready()
        wait_until(lambda: heir.metric("kafka_consumer_assigned_partitions") == 6, "the heir took over all partitions")
        await send_raw(kafka.bootstrap_servers, payments(f"heir-{point}", 500))
        before = verdict(kafka.bootstrap_servers)

        # Nothing that it had under way may count as answered in time, whatever its deadline
        wait_until(lambda: time.monotonic() - suspended_s > DEADLINE_S, "its deadlines passed")
        zombie.process.resume()
        # Awake, it finds out: fenced, told by the group that it was removed, or in doubt of its commit, so it rejoins
        wait_until(lambda: zombie.process.returncode == EXIT_FENCED or zombie.logged(REJOINING), "the zombie noticed")
        await send_raw(kafka.bootstrap_servers, payments(f"after-{point}", 500))
        after = verdict(kafka.bootstrap_servers)
        # Whoever did not end to be started anew has joined anew, and works
        wait_until(lambda: zombie.process.returncode == EXIT_FENCED or zombie.ready, "the zombie is one no more")

        assert_exactly_once(before)
        assert_exactly_once(after)
        assert after["accepted"] == before["accepted"] + 500
        assert heir.process.running
        assert heir.metric("kafka_producer_fenced_total") == 0
    finally:
        for service in (zombie, heir):
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
        # A static member leaves by its session's end; the group's offsets can be set only when it is empty
        await set_group_offsets(
            kafka.bootstrap_servers, name, topic, dict.fromkeys(range(catalogue.PARTITIONS), 0), deadline_s=30
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
        # Some megabytes of superseded records leave a small state, and a quota makes them take several sessions
        async with IdempotentWriter(kafka.bootstrap_servers) as writer:
            for _ in range(150_000):
                await writer.write(catalogue.PAYMENTS_IDENTITIES, 0, b"identity/0", None)
            await writer.flush()
        try:
            slow_restores(kafka, bytes_per_s=200_000)
            slow.start().wait_ready(120)
            assert slow.metric("kafka_consumer_rebalance_total") == 1
            seconds = [float(str(line["seconds"])) for line in slow.log() if line["event"] == "partition taken over"]
            assert len(seconds) == catalogue.PARTITIONS
            assert max(seconds) * 1000 > 2 * SESSION_TIMEOUT_MS
            await send_raw(kafka.bootstrap_servers, payments("slow", 500))
        finally:
            free_restores(kafka)
    finally:
        slow.process.terminate()
        running["ingest"].start().wait_ready()
        running["transform"].start().wait_ready()
    assert_exactly_once(verdict(kafka.bootstrap_servers))


@full
async def test_an_instance_whose_id_joins_anew_stops_and_is_to_be_started_again(
    kafka: LocalKafka, running: dict[str, Service], tmp_path: Path
) -> None:
    running["transform"].process.terminate()
    first = Service("transform", kafka.bootstrap_servers, tmp_path).start().wait_ready()
    # The same instance once more: the group gives it the partitions and refuses the first one
    second = Service("transform", kafka.bootstrap_servers, tmp_path).start()
    try:
        second.wait_ready()
        assert first.wait_exit() == EXIT_FENCED
        assert any(line["event"] == "fenced" for line in first.log())
    finally:
        first.process.terminate()
        second.process.terminate()
        running["transform"].start().wait_ready()
    assert first.process.returncode != -signal.SIGKILL


@full
async def test_a_member_that_waits_for_the_others_stops_when_it_is_told(
    kafka: LocalKafka, running: dict[str, Service], tmp_path: Path
) -> None:
    session_s = 60.0
    running["transform"].process.terminate()
    settings = {"SESSION_TIMEOUT_MS": str(int(session_s * 1000))}
    sleeper = Service("transform", kafka.bootstrap_servers, tmp_path, instance="sleeper", **settings)
    late = Service("transform", kafka.bootstrap_servers, tmp_path, instance="late", **settings)
    try:
        sleeper.start().wait_ready()
        sleeper.process.pause()
        # The group waits for the sleeper to join again, for as long as its session lasts
        late.start()
        wait_until(lambda: set(late.not_ready_reasons()) == {ASSIGNMENT}, "it waits for partitions")
        late.process.request_stop()
        assert late.wait_exit(session_s / 2) == 0
    finally:
        late.process.terminate()
        sleeper.process.terminate()
    # The last test here: for half a minute the group would keep others waiting as well
