"""Takeovers of the outbox's partitions: two instances, a zombie, a replay from offset 0, an aborted transaction."""

import itertools
import json
import signal
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from deploy.drills.clients.tools import kafka_tool
from deploy.drills.outbox import BRIEF, BRIEF_LEASE_S
from services.outbox.sinks.channels import SMTP_CONNECTIONS_MAX
from shared.eos import crash
from shared.eos.errors import EXIT_FENCED
from shared.events.catalogue import (
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    EFFECTS_WAITING,
    REFERENCE_SUBSCRIPTIONS,
)
from shared.events.effects import (
    EVERY_ACCOUNT,
    EffectRequest,
    EffectState,
    Subscription,
    Subscriptions,
    decode_request,
    encode_subscriptions,
)
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.client.batches import pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, group_offsets
from tests.harness import Service, eventually, services, settled, wait_until
from tests.outbox import World, assert_i11, world
from tests.partitions import PARTITIONS
from tests.payments import payments, with_fields
from tests.proof import send_raw
from tests.tiers import full, mostly_full

pytestmark = pytest.mark.timeout(180)

EFFECTS = 120
MAILTO = "mailto:alice@example.org"
POINTS = (crash.AFTER_CLAIM, crash.BEFORE_CALL, crash.AFTER_CALL, crash.AFTER_MARK)
QUICK = {(crash.AFTER_CALL, False)}
REJOINING = "leaving the group to rejoin"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("outbox")) as made:
        yield made


def noticed(zombie: Service) -> bool:
    """Return whether the zombie has noticed the loss of its partitions."""
    return zombie.process.returncode == EXIT_FENCED or zombie.logged(REJOINING)


@pytest.mark.parametrize(("point", "keyed"), mostly_full(itertools.product(POINTS, [True, False]), QUICK))
async def test_a_stopped_instance_that_resumes_makes_nothing_twice(running: World, point: str, *, keyed: bool) -> None:
    destination = running.receiver.url if keyed else MAILTO
    zombie = running.outbox(**{"CRASH_POINT": f"{point}=stop:2"} | BRIEF).start().wait_ready()
    successor = running.outbox("successor")
    requests = await running.request(EFFECTS, destination)
    wait_until(lambda: zombie.suspended, "the instance stopped with effects in hand")
    suspended_s = time.monotonic()
    successor.start().wait_ready()
    wait_until(
        lambda: successor.metric("kafka_consumer_assigned_partitions") == PARTITIONS,
        "the successor took over all partitions",
    )
    results = await running.settled(requests)
    wait_until(lambda: time.monotonic() - suspended_s > BRIEF_LEASE_S, "its leases ran out")
    made_before = running.mail_effects()

    zombie.process.resume()
    wait_until(lambda: noticed(zombie), "the zombie noticed")
    # All its late calls have ended when later requests have passed through the same partitions
    later = await running.request(EFFECTS, destination)
    later_results = await running.settled(later)

    effects = running.webhook_effects() if keyed else running.mail_effects()
    states = assert_i11(requests, results, effects)
    assert assert_i11(later, later_results, effects) == {EffectState.SENT: EFFECTS}
    if keyed:
        assert states == {EffectState.SENT: EFFECTS}
    elif point == crash.AFTER_CLAIM:
        # Its lease has expired, so it begins no call. A call of another partition that it had begun may still end: the
        # successor holds such an effect in doubt, and its other decisions remain
        late = effects - made_before
        ended = {request.effect_id for request in requests if late[request.effect_id]}
        assert {results[effect_id].state for effect_id in ended} <= {EffectState.IN_DOUBT}
    # Only calls in flight are in doubt, one for each connection
    assert states[EffectState.IN_DOUBT] <= SMTP_CONNECTIONS_MAX
    for service in (zombie, successor):
        service.process.terminate()


async def test_two_instances_share_the_work_and_make_each_effect_once(running: World) -> None:
    pair = [running.outbox(name).start() for name in ("left", "right")]
    for service in pair:
        service.wait_ready()
    wait_until(
        lambda: [s.metric("kafka_consumer_assigned_partitions") for s in pair] == [3, 3], "each has three partitions"
    )
    first = await running.request(EFFECTS, running.receiver.url)
    # One instance stops gracefully with work left, then restarts
    pair[0].process.request_stop()
    assert pair[0].wait_exit(20) == 0
    second = await running.request(EFFECTS, running.receiver.url)
    pair[0].start().wait_ready()
    third = await running.request(EFFECTS, running.receiver.url)
    requests = [*first, *second, *third]
    states = assert_i11(requests, await running.settled(requests), running.webhook_effects())
    assert states == {EffectState.SENT: 3 * EFFECTS}
    for service in pair:
        service.process.terminate()


@full
async def test_a_replay_from_offset_0_makes_no_effect_a_second_time(running: World) -> None:
    outbox = running.outbox().start().wait_ready()
    requests = [*(await running.request(EFFECTS, running.receiver.url)), *(await running.request(EFFECTS, MAILTO))]
    before = await running.settled(requests)
    outbox.process.terminate()
    calls, mails = running.receiver.counts().calls, running.mail_effects()
    await set_group_offsets(
        running.bootstrap_servers, "outbox", EFFECTS_REQUESTS, dict.fromkeys(range(PARTITIONS), 0), deadline_s=30
    )
    outbox.start().wait_ready()
    wait_until(lambda: outbox.metric("once_effects_repeated_total") >= 2 * EFFECTS, "the replay was recognised")
    marker = await running.request(PARTITIONS * 4, running.receiver.url)
    await running.settled(marker)

    assert running.receiver.counts().calls == calls + len(marker)
    assert running.mail_effects() == mails
    after = await running.settled(requests)
    assert {i: (r.state, r.revision) for i, r in after.items()} == {i: (r.state, r.revision) for i, r in before.items()}
    outbox.process.terminate()


@full
async def test_a_graceful_stop_leaves_nothing_in_doubt(running: World) -> None:
    outbox = running.outbox().start().wait_ready()
    before = running.mail_effects().total()
    requests = await running.request(EFFECTS, MAILTO)
    wait_until(lambda: running.mail_effects().total() > before, "mails are being sent")
    outbox.process.request_stop()
    assert outbox.wait_exit(20) == 0
    await eventually(lambda: settled(running.bootstrap_servers, [EFFECTS_WAITING]), "no transaction open", within_s=2)
    # Even if Redis is lost: the outbox recorded that no call was in flight
    running.redis.flush()
    outbox.start().wait_ready()
    states = assert_i11(requests, await running.settled(requests), running.mail_effects())
    assert states == {EffectState.SENT: EFFECTS}
    outbox.process.terminate()


async def administer(running: World, main_class: str, *words: str) -> None:
    """Run one of Kafka's tools against the world's brokers."""
    ended = await kafka_tool(main_class, "--bootstrap-server", running.bootstrap_servers, *words)
    assert ended.exit_code == 0, ended.output


async def expire(running: World, offsets: dict[int, int]) -> None:
    """Delete the requests below these offsets, as retention does after a week."""
    partitions = [{"topic": EFFECTS_REQUESTS, "partition": p, "offset": offset} for p, offset in offsets.items()]
    chosen = running.directory / "expire.json"
    chosen.write_text(json.dumps({"partitions": partitions, "version": 1}))
    await administer(running, "org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(chosen))


async def limit_results(running: World, setting: str) -> None:
    """Change the maximum batch size of effects.results."""
    of_topic = ("--entity-type", "topics", "--entity-name", EFFECTS_RESULTS, "--alter")
    await administer(running, "kafka.admin.ConfigCommand", *of_topic, *setting.split(" ", 1))


@pytest.mark.parametrize("flushed", [False, True], ids=["redis kept", "redis flushed"])
@full
async def test_calls_whose_transaction_aborts_are_not_repeated_without_a_doubt(
    running: World, *, flushed: bool
) -> None:
    outbox = running.outbox().start().wait_ready()
    await limit_results(running, "--add-config max.message.bytes=80")
    requests = [*(await running.request(24, running.receiver.url)), *(await running.request(24, MAILTO))]
    # The results are refused three times in a row, which the outbox treats as a defect of the cluster
    assert outbox.wait_exit() == EXIT_FENCED
    assert outbox.logged("transaction aborted")
    mails = running.mail_effects()
    assert sum(mails[request.effect_id] for request in requests) > 0
    if flushed:
        running.redis.flush()
    await limit_results(running, "--delete-config max.message.bytes")

    outbox.start().wait_ready()
    states = assert_i11(requests, await running.settled(requests), running.webhook_effects() + running.mail_effects())
    if flushed:
        assert states[EffectState.IN_DOUBT] > 0
    outbox.process.terminate()


@full
async def test_requests_that_expired_unprocessed_stop_the_outbox(running: World) -> None:
    outbox = running.outbox().start().wait_ready()
    outbox.process.terminate()
    lost = await running.request(40, running.receiver.url)
    ends = await end_offsets(running.bootstrap_servers, [EFFECTS_REQUESTS])
    await expire(running, {partition: offset for (_, partition), offset in ends.items()})

    outbox.start()
    assert outbox.wait_exit() == EXIT_FENCED
    assert "expired unprocessed" in outbox.process.log_tail()
    assert not {request.effect_id for request in lost} & running.webhook_effects().keys()
    # Follow the message's instruction
    offsets = {partition: offset for (_, partition), offset in ends.items()}
    await set_group_offsets(running.bootstrap_servers, "outbox", EFFECTS_REQUESTS, offsets, deadline_s=30)
    outbox.start().wait_ready()
    requests = await running.request(40, running.receiver.url)
    assert_i11(requests, await running.settled(requests), running.webhook_effects())
    outbox.process.terminate()


async def intents(brokers: str, prefix: str, *, committed: bool) -> dict[str, EffectRequest]:
    """Return the payments' requests by effect_id; unless `committed`, also of aborted and open transactions."""
    found: dict[str, EffectRequest] = {}
    async with Cluster(brokers) as cluster:
        targets = await cluster.partitions([EFFECTS_REQUESTS])
        beginnings = await cluster.offsets(targets, EARLIEST)
        ends = await cluster.offsets(targets, LATEST, committed=committed)
        async with aclosing(pages(cluster, beginnings, ends=ends, committed=committed)) as read:
            async for page in read:
                for batch in page.batches:
                    for record in () if batch.is_control else batch.records(page.target):
                        request = decode_request(record.value or b"")
                        if isinstance(request, EffectRequest) and request.payment_id.startswith(prefix):
                            found[request.effect_id] = request
    return found


@full
async def test_an_aborted_transaction_of_the_ledger_requests_no_effect(running: World, tmp_path: Path) -> None:
    brokers, prefix = running.bootstrap_servers, "aborted"
    subscriptions = Subscriptions((Subscription("decline_notice", running.receiver.url),))
    async with IdempotentWriter(brokers) as writer:
        await writer.send(REFERENCE_SUBSCRIPTIONS, 0, EVERY_ACCOUNT.encode(), encode_subscriptions(subscriptions))
        outbox = running.outbox().start().wait_ready()
        with services(brokers, tmp_path, "ingest", "transform"):
            # The log has the whole transaction with its intents, without its end
            doomed = Service("ledger", brokers, tmp_path, CRASH_POINT=f"{crash.AFTER_SEND}=kill:1").start().wait_ready()
            poor = (
                with_fields(p, debtor=f"poor-{n % 50}", creditor="rich") for n, p in enumerate(payments(prefix, 300))
            )
            await send_raw(brokers, poor)
            assert doomed.wait_exit() == -signal.SIGKILL
            committed = await intents(brokers, prefix, committed=True)
            pending = (await intents(brokers, prefix, committed=False)).keys() - committed.keys()
            assert pending
            await running.settled([*committed.values()])
            assert not pending & running.webhook_effects().keys()

            ledger = Service("ledger", brokers, tmp_path).start().wait_ready()

            async def all_requested() -> bool:
                return len(await intents(brokers, prefix, committed=True)) == 300

            await eventually(all_requested, "every decline requests its effect", 60)
            ledger.process.terminate()
        requests = [*(await intents(brokers, prefix, committed=True)).values()]
        states = assert_i11(requests, await running.settled(requests), running.webhook_effects())
        assert states == {EffectState.SENT: 300}

        async def markers_passed() -> bool:
            ends = await end_offsets(brokers, [EFFECTS_REQUESTS])
            offsets = await group_offsets(brokers, "outbox", EFFECTS_REQUESTS)
            return {(EFFECTS_REQUESTS, partition): offset for partition, offset in offsets.items()} == ends

        # Markers expire like records: an offset before an expired marker would look like lost requests
        await eventually(markers_passed, "the committed offsets are after the last markers", 40)
        await writer.send(REFERENCE_SUBSCRIPTIONS, 0, EVERY_ACCOUNT.encode(), None)
        outbox.process.terminate()
