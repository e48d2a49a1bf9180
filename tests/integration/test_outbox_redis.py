"""Redis is flushed, killed, emptied, failed over or silent: calls stop, Redis is rebuilt, no effect is made twice."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.drills.faults.redis import ReplicatedRedis, wait_synced, wipe
from deploy.drills.outbox import BRIEF
from deploy.drills.relay import Relay
from deploy.drills.sinks.receiver import Faults, Mode
from deploy.local.redis.server import LocalRedis
from shared.eos import crash
from shared.events.effects import EffectState
from tests.harness import Service, wait_until
from tests.outbox import World, assert_i11, world
from tests.partitions import PARTITIONS
from tests.tiers import full

pytestmark = pytest.mark.timeout(180)

EFFECTS = 400
MAILTO = "mailto:alice@example.org"
SLOW_S = 0.02


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("outbox")) as made:
        yield made


@pytest.fixture
def outbox(running: World) -> Iterator[Service]:
    """An instance under load, with a receiver slow enough for a fault to hit calls in flight."""
    running.receiver.fail(Faults(Mode.SLOW, delay_s=SLOW_S))
    service = running.outbox(OUTBOX_CALLS_MAX="8").start().wait_ready()
    yield service
    service.process.resume()
    service.process.terminate()
    running.receiver.fail(Faults())


def in_the_middle(running: World, before: int, share: float = 0.2) -> None:
    """Wait until a share of the effects has been made."""
    wait_until(lambda: running.receiver.counts().distinct >= before + EFFECTS * share, "effects are being made")


def flush(redis: LocalRedis) -> None:
    redis.flush()


def kill(redis: LocalRedis) -> None:
    redis.kill()
    redis.process.wait(10)
    redis.start()
    redis.wait_ready()


def kill_and_wipe(redis: LocalRedis) -> None:
    redis.kill()
    redis.process.wait(10)
    wipe(redis)
    redis.start()
    redis.wait_ready()


@full
@pytest.mark.parametrize("lose", [flush, kill, kill_and_wipe])
async def test_redis_is_lost_while_calls_are_in_flight(running: World, outbox: Service, lose: object) -> None:
    assert callable(lose)
    before = running.receiver.counts().distinct
    rebuilt = outbox.metric("once_redis_rebuilt_total")
    requests = [
        *(await running.request(EFFECTS, running.receiver.url)),
        *(await running.request(40, MAILTO)),
    ]
    in_the_middle(running, before)
    lose(running.redis)

    results = await running.settled(requests)
    states = assert_i11(requests, results, running.webhook_effects() + running.mail_effects())
    # The instance survived and knows every call that it made, so no effect is in doubt
    assert states == {EffectState.SENT: EFFECTS + 40}
    # An instance without pending calls notices within a second
    wait_until(lambda: outbox.metric("once_redis_distrusted_total") >= 1, "the loss is noticed")
    wait_until(lambda: outbox.metric("once_redis_rebuilt_total") >= rebuilt + 6, "Redis is rebuilt")
    wait_until(lambda: outbox.metric("once_redis_trusted") == 1 and outbox.ready, "Redis is trusted again")
    # The rebuilt Redis absorbs a replay
    called = running.receiver.counts().calls
    await running.write(requests)
    wait_until(lambda: outbox.metric("once_effects_repeated_total") >= EFFECTS + 40, "the replay was recognised")
    assert running.receiver.counts().calls == called
    assert running.mail_effects().total() == len(running.mail_effects())


async def test_a_flush_between_calls_is_noticed_before_the_next_call(running: World, outbox: Service) -> None:
    requests = [*(await running.request(40, running.receiver.url)), *(await running.request(40, MAILTO))]
    await running.settled(requests)
    calls, mails = running.receiver.counts().calls, running.mail_effects()
    flush(running.redis)
    # Replay at once, with every effect absent from Redis: only the outbox's trust can show the flush
    await running.write(requests)
    wait_until(lambda: outbox.metric("once_effects_repeated_total") >= 80, "the replay was recognised")
    assert outbox.metric("once_redis_distrusted_total") >= 1
    assert running.receiver.counts().calls == calls
    assert running.mail_effects() == mails


@full
async def test_an_idle_instance_notices_by_itself(running: World, outbox: Service) -> None:
    rebuilt = outbox.metric("once_redis_rebuilt_total")
    flush(running.redis)
    wait_until(lambda: outbox.metric("once_redis_rebuilt_total") >= rebuilt + 6, "an idle instance rebuilt Redis")
    wait_until(lambda: outbox.ready and outbox.metric("once_redis_trusted") == 1, "it continues")


async def test_without_redis_nothing_is_sent_and_the_instance_is_not_ready(running: World, outbox: Service) -> None:
    running.redis.kill()
    requests = []
    try:
        wait_until(lambda: not outbox.ready, "the instance is not ready")
        assert outbox.metric("once_redis_trusted") == 0
        called = running.receiver.counts().calls
        requests = await running.request(20, running.receiver.url)
        wait_until(lambda: "Redis" in " ".join(outbox.not_ready_reasons().values()), "the reason is reported")
        assert running.receiver.counts().calls == called
    finally:
        running.redis.process.wait(10)
        running.redis.start()
        running.redis.wait_ready()
    assert_i11(requests, await running.settled(requests), running.webhook_effects())


async def test_a_silent_redis_stops_calls(running: World, outbox: Service) -> None:
    before = running.receiver.counts().distinct
    requests = [*(await running.request(EFFECTS, running.receiver.url)), *(await running.request(40, MAILTO))]
    in_the_middle(running, before)
    running.redis.pause()
    try:
        wait_until(lambda: outbox.metric("once_redis_trusted") == 0, "Redis is not trusted")
    finally:
        running.redis.resume()
    results = await running.settled(requests)
    states = assert_i11(requests, results, running.webhook_effects() + running.mail_effects())
    assert states == {EffectState.SENT: EFFECTS + 40}


@full
async def test_marks_that_did_not_reach_redis_are_rebuilt(running: World) -> None:
    running.receiver.fail(Faults(Mode.SLOW, delay_s=SLOW_S))
    async with Relay(running.redis.port) as relay:
        url = f"redis://127.0.0.1:{relay.port}/0"
        outbox = running.outbox("relayed", REDIS_URL=url, OUTBOX_CALLS_MAX="8").start()
        await asyncio.to_thread(outbox.wait_ready)
        before = running.receiver.counts().distinct
        requests = await running.request(EFFECTS, running.receiver.url)
        await asyncio.to_thread(in_the_middle, running, before)
        # Marks of calls in flight will not reach Redis, which keeps all its claims
        relay.switch(0)
        await asyncio.to_thread(wait_until, lambda: outbox.metric("once_redis_trusted") == 0, "Redis is not trusted")
        relay.switch(running.redis.port)
        states = assert_i11(requests, await running.settled(requests), running.webhook_effects())
        assert states == {EffectState.SENT: EFFECTS}
        calls = running.receiver.counts().calls
        await running.write(requests)
        known = "once_effects_repeated_total"
        await asyncio.to_thread(wait_until, lambda: outbox.metric(known) >= EFFECTS, "the replay was recognised")
        assert running.receiver.counts().calls == calls
        outbox.process.terminate()
    running.receiver.fail(Faults())


async def test_a_failover_to_a_lagging_replica_is_noticed(running: World, tmp_path: Path) -> None:
    replica = ReplicatedRedis(tmp_path / "replica", running.redis)
    replica.start()
    replica.wait_ready()
    wait_synced(running.redis, replica)
    running.receiver.fail(Faults(Mode.SLOW, delay_s=SLOW_S))
    try:
        async with Relay(running.redis.port) as relay:
            outbox = running.outbox(
                "failover", REDIS_URL=f"redis://127.0.0.1:{relay.port}/0", OUTBOX_CALLS_MAX="8"
            ).start()
            await asyncio.to_thread(outbox.wait_ready)
            wait_synced(running.redis, replica)
            replica.pause()  # it misses all later claims and marks
            before = running.receiver.counts().distinct
            requests = await running.request(EFFECTS, running.receiver.url)
            await asyncio.to_thread(in_the_middle, running, before)
            running.redis.kill()
            replica.resume()
            replica.promote()
            relay.switch(replica.port)

            results = await running.settled(requests)
            states = assert_i11(requests, results, running.webhook_effects())
            assert states == {EffectState.SENT: EFFECTS}
            distrusted = "once_redis_distrusted_total"
            await asyncio.to_thread(wait_until, lambda: outbox.metric(distrusted) >= 1, "the failover is noticed")
            outbox.process.terminate()
    finally:
        replica.kill()
        running.receiver.fail(Faults())
        running.redis.process.wait(10)
        running.redis.start()
        running.redis.wait_ready()


@full
async def test_calls_that_a_kill_and_a_flush_hide_are_in_doubt_for_a_sink_without_keys(running: World) -> None:
    running.outbox().start().wait_ready().process.terminate()
    doomed = running.outbox(CRASH_POINT=f"{crash.AFTER_CALL}=kill:10").start().wait_ready()
    requests = await running.request(60, MAILTO)
    assert doomed.wait_exit() == -signal.SIGKILL
    # Neither the instance nor Redis knows any more which calls were made
    flush(running.redis)
    successor = running.outbox().start().wait_ready()
    results = await running.settled(requests)
    states = assert_i11(requests, results, running.mail_effects())
    assert states[EffectState.IN_DOUBT] > 0
    successor.process.terminate()


@full
async def test_a_flush_before_a_successor_has_processed_its_input_leaves_doubts(running: World) -> None:
    running.outbox().start().wait_ready().process.terminate()
    killed = {"CRASH_POINT": f"{crash.AFTER_CALL}=kill:60"} | BRIEF
    doomed = running.outbox(**killed).start().wait_ready()
    requests = await running.request(120, MAILTO)
    assert doomed.wait_exit() == -signal.SIGKILL
    # Stopped as soon as the last partition is taken over: the flush removes the claims of calls that were made
    successor = running.outbox(CRASH_POINT=f"{crash.END_TXN_ACKNOWLEDGED}=stop:{PARTITIONS}").start()
    wait_until(lambda: successor.process.running and successor.suspended, "the successor has taken over all partitions")
    flush(running.redis)
    successor.process.resume()

    results = await running.settled(requests)
    states = assert_i11(requests, results, running.mail_effects())
    assert states[EffectState.IN_DOUBT] > 0
    successor.process.terminate()
