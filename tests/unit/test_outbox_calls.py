"""Calls through fake sinks: their number at once, their order, and when no further call may begin."""

import asyncio

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY

from services.outbox.domain import Done, Later
from services.outbox.flights import EARLIER
from services.outbox.lanes import NO_CALL
from services.outbox.marks import Status
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable
from shared.eos.crash import AFTER_CALL, BEFORE_CALL
from shared.events.effects import EffectState
from tests.effect_calls import (
    WEBHOOK,
    Clock,
    FakeSink,
    claimed,
    put_off,
    rig,
    states,
)
from tests.sinks.effects import effect


@pytest.mark.parametrize("calls_max", [1, 4, 16])
async def test_concurrent_calls_of_all_partitions_are_bounded(clock: Clock, calls_max: int) -> None:
    setup = rig(clock, FakeSink(), calls_max)
    places = [f"https://host-{number % 20}.example" for number in range(40)]
    items = [claimed(clock, number, destination=place) for number, place in enumerate(places)]
    first = setup.start(items[:20])
    assert states(await setup.run(items[20:])) == [EffectState.SENT] * 20
    assert all(isinstance(flight.decision, Done) for flight in first)
    assert setup.sink.running_max == calls_max
    assert len(setup.sink.called) == 40


async def test_a_call_that_takes_long_holds_up_no_call_of_another_lane(clock: Clock) -> None:
    setup, held = rig(clock, FakeSink(), calls_max=4), asyncio.Event()
    setup.sink.wait = {1: held, 2: held}
    slow = setup.start([claimed(clock, number) for number in range(1, 5)])
    others = [claimed(clock, number, destination="https://fine.example") for number in range(10, 30)]
    assert states(await setup.run(others)) == [EffectState.SENT] * 20
    assert [flight.decision for flight in slow] == [None] * 4
    held.set()
    await setup.ends(slow)
    assert all(isinstance(flight.decision, Done) for flight in slow)


async def test_a_call_to_a_destination_without_keys_is_begun_first(clock: Clock) -> None:
    setup = rig(clock, FakeSink(takes_keys=False))
    items = [claimed(clock, number) for number in range(3)]
    assert states(await setup.run(items)) == [EffectState.SENT] * 3
    assert setup.begun == setup.marked == [item.job.effect_id for item in items]
    keyed = rig(clock, FakeSink())
    await keyed.run(items)
    assert keyed.begun == keyed.marked == []


async def test_no_more_calls_are_begun_than_the_sink_may_make_at_once(clock: Clock) -> None:
    setup = rig(clock, FakeSink(takes_keys=False, calls_max=3), calls_max=64)
    under_way: list[int] = []
    setup.sink.during = lambda: under_way.append(len(setup.begun) - len(setup.marked))
    await setup.run([claimed(clock, number) for number in range(20)])
    assert max(under_way) == setup.sink.running_max == 3


async def test_a_call_that_may_not_be_begun_is_not_made(clock: Clock) -> None:
    setup = rig(clock, FakeSink(takes_keys=False))
    setup.overtaken = "another owner entered"
    decided = await setup.run([claimed(clock, 1), claimed(clock, 2)])
    assert put_off(decided, "another owner entered") == [1, 2]
    assert setup.sink.called == []
    assert setup.reached == []


async def test_calls_of_each_chain_are_in_order_and_one_at_a_time(clock: Clock) -> None:
    accounts = {number: f"client-{number % 3}" for number in range(30)}
    sink = FakeSink()

    def alone() -> None:
        running = [accounts[number] for number in sink.running]
        assert len(set(running)) == len(running)

    sink.during = alone
    setup = rig(clock, sink, calls_max=16)
    items = [claimed(clock, number, ordered=True, account=account) for number, account in accounts.items()]
    await setup.run(items)
    for account in set(accounts.values()):
        called = [number for number in sink.called if accounts[number] == account]
        assert called == sorted(called)
        assert len(called) == 10
    assert sink.running_max == 3


async def test_a_chain_waits_behind_an_effect_that_must_be_retried(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda number: Retriable("busy") if number == 2 else Delivered()), calls_max=8)
    decided = await setup.run([claimed(clock, number, ordered=True) for number in range(5)])
    assert setup.sink.called == [0, 1, 2]
    assert put_off(decided, EARLIER) == [3, 4]
    blocking, *behind = (decision for decision in decided if isinstance(decision, Later))
    assert blocking.not_before_ms > clock.now_ms
    assert all(later.not_before_ms == clock.now_ms for later in behind), "they are due when they are the first"
    assert all(later.release and later.job.attempts == 0 for later in behind)


async def test_a_chain_goes_on_after_an_effect_that_is_decided_even_if_it_failed(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda number: Refused("410") if number == 0 else Delivered()))
    decided = await setup.run([claimed(clock, number, ordered=True) for number in range(2)])
    assert states(decided) == [EffectState.FAILED, EffectState.SENT]


async def test_nothing_is_called_without_enough_lease(clock: Clock) -> None:
    setup = rig(clock, FakeSink())
    decided = await setup.run([claimed(clock, number) for number in range(3)], lease_s=0)
    assert put_off(decided, "its claim's lease ran out") == [0, 1, 2]
    assert not setup.sink.called
    assert not setup.reached


async def test_the_lease_may_run_out_in_mid_batch(clock: Clock) -> None:
    setup = rig(clock, FakeSink())
    setup.sink.during = lambda: setattr(clock, "now_s", clock.now_s + 3)
    decided = await setup.run([claimed(clock, number) for number in range(5)], lease_s=5)
    assert states(decided) == [EffectState.SENT, EffectState.SENT, None, None, None]
    assert put_off(decided, "its claim's lease ran out") == [2, 3, 4]


@pytest.mark.parametrize("called", [0, 1, 2])
async def test_no_call_begins_once_the_partition_is_being_revoked(clock: Clock, called: int) -> None:
    setup = rig(clock, FakeSink())
    if called == 0:
        setup.closing.set()
    setup.sink.during = lambda: setup.closing.set() if len(setup.sink.called) == called else None
    decided = await setup.run([claimed(clock, number) for number in range(4)])
    assert setup.sink.called == list(range(called))
    assert put_off(decided, "the partition was let go") == list(range(called, 4))


async def test_a_call_that_may_have_been_made_keeps_its_claim_when_it_is_put_off(clock: Clock) -> None:
    setup = rig(clock, FakeSink())
    setup.closing.set()
    new, retaken = await setup.run([claimed(clock, 1), claimed(clock, 2, Status.RETAKEN)])
    assert isinstance(new, Later)
    assert isinstance(retaken, Later)
    assert (new.release, retaken.release) == (True, False)


@pytest.mark.parametrize(
    ("destination", "why"),
    [("mailto:bob@example.org", "the outbox has no settings for email"), ("ftp://example.org", "begins with https:")],
)
async def test_an_effect_without_a_sink_is_refused_with_what_to_do(clock: Clock, destination: str, why: str) -> None:
    setup = rig(clock, FakeSink(takes_keys=False))
    item = claimed(clock, 1, destination=destination)
    [done] = await setup.run([item])
    assert isinstance(done, Done)
    assert (done.result.state, setup.sink.called) == (EffectState.FAILED, [])
    assert why in done.result.detail
    # Without settings, a channel keeps its semantics: a doubt about a mail stays a doubt
    assert setup.calls.takes_keys(item.job.request) == (not destination.startswith("mailto:"))
    assert not setup.calls.takes_keys(effect(1, WEBHOOK))
    assert setup.calls.admit(item.job.request, 0) == NO_CALL


async def test_each_call_is_between_its_crash_points_and_resends_are_counted(clock: Clock) -> None:
    setup = rig(clock, FakeSink())
    names: list[tuple[str, dict[str, str]]] = [
        ("once_effects_resent_total", {}),
        ("once_effect_calls_total", {"channel": "webhook", "outcome": "refused"}),
    ]
    setup.sink.answer = lambda _: Refused("404")
    resent, refused = (REGISTRY.get_sample_value(name, labels) or 0 for name, labels in names)
    once, again = claimed(clock, 1), claimed(clock, 2)
    await setup.run([once, replace(again, call=replace(again.call, resend=True))])
    assert setup.reached == [BEFORE_CALL, AFTER_CALL] * 2
    found = [REGISTRY.get_sample_value(name, labels) for name, labels in names]
    assert found == [resent + 1, refused + 2]


async def test_a_call_that_is_cancelled_frees_its_slot_even_before_it_began(clock: Clock) -> None:
    setup = rig(clock, FakeSink(), calls_max=2)
    setup.sink.wait = {1: asyncio.Event()}
    begun = setup.start([claimed(clock, 1, destination="https://a.example")])
    await asyncio.sleep(0)
    fresh = setup.start([claimed(clock, 2, destination="https://b.example"), claimed(clock, 3)])
    await setup.calls.cancel([*begun, *fresh])
    assert [flight.decision for flight in (*begun, fresh[0])] == [None, None]
    assert setup.sink.called == [1]
    assert states(await setup.run([claimed(clock, number) for number in range(10, 14)])) == [EffectState.SENT] * 4


async def test_a_defect_of_a_sink_ends_the_outbox(clock: Clock) -> None:
    def fail(_: int) -> Outcome:
        raise KeyError("a defect")

    setup = rig(clock, FakeSink(fail))
    [flight] = setup.start([claimed(clock, 1)])
    while flight.task is None or not flight.task.done():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(KeyError, match="a defect"):
        setup.calls.raise_if_failed()
