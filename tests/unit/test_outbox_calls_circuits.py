"""Calls through fake sinks whose destinations fail: calls that the circuit breaker prevents or permits."""

import pytest
from msgspec.structs import replace

from services.outbox.domain import Call, Done, Later
from services.outbox.flights import LEFT_ALONE, Claimed, Flight
from services.outbox.lanes import NO_CALL, lane_name
from services.outbox.marks import Status
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown
from shared.events.effects import EffectState
from shared.events.endpoints import Endpoint
from tests.effect_calls import OPEN_S, POLICY, WEBHOOK, Clock, FakeSink, claimed, put_off, rig, states


@pytest.mark.parametrize("failure", [Retriable("503"), Unknown("no answer")])
async def test_a_circuit_that_opens_in_mid_batch_prevents_the_remaining_calls(clock: Clock, failure: Outcome) -> None:
    setup = rig(clock, FakeSink(lambda _: failure))
    others = [claimed(clock, 7, destination=WEBHOOK + "?other"), claimed(clock, 8, destination="https://fine.example")]
    decided = await setup.run([*(claimed(clock, number) for number in range(6)), *others])
    assert sorted(setup.sink.called) == [0, 1, 2, 8]
    assert put_off(decided, LEFT_ALONE) == [3, 4, 5, 7]
    assert setup.calls.admit(claimed(clock, 9).job.request, clock.now_ms).wait_s == OPEN_S
    assert setup.lanes.open_count(clock.now_s) == 1


async def test_one_call_tests_a_circuit_after_its_open_time(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda _: Retriable("503")))
    await setup.run([claimed(clock, number) for number in range(3)])
    clock.now_s += OPEN_S
    decided = await setup.run([claimed(clock, number) for number in range(10, 13)])
    assert setup.sink.called == [0, 1, 2, 10]
    assert put_off(decided, LEFT_ALONE) == [11, 12]


async def test_a_delivery_between_failures_keeps_the_circuit_closed(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda number: Delivered() if number == 2 else Retriable("503")))
    await setup.run([claimed(clock, number) for number in range(5)])
    assert setup.sink.called == [0, 1, 2, 3, 4]
    assert setup.calls.admit(claimed(clock, 9).job.request, clock.now_ms).wait_s == 0


async def test_refusals_are_answers_and_open_no_circuit(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda _: Refused("404")))
    decided = await setup.run([claimed(clock, number) for number in range(8)])
    assert states(decided) == [EffectState.FAILED] * 8
    assert setup.calls.admit(claimed(clock, 9).job.request, clock.now_ms).wait_s == 0


async def test_retry_after_delays_all_effects_of_the_endpoint_and_no_other_path(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda _: Retriable("429", retry_after_s=1)))
    decided = await setup.run([claimed(clock, number) for number in range(2)])
    assert setup.sink.called == [0]
    assert [each.not_before_ms - clock.now_ms for each in decided if isinstance(each, Later)] == [1000, 0]
    assert setup.calls.admit(claimed(clock, 9).job.request, clock.now_ms).wait_s == 1
    other = claimed(clock, 9, destination=WEBHOOK + "/other").job.request
    assert setup.calls.admit(other, clock.now_ms).wait_s == 0


async def test_an_effect_past_its_deadline_is_given_up_without_a_call_at_an_open_circuit(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda _: Retriable("503")))
    await setup.run([claimed(clock, number) for number in range(3)])
    late = claimed(clock, 9)
    old = replace(late.job, first_ms=clock.now_ms - POLICY.retry_deadline_ms)
    assert setup.calls.admit(old.request, old.first_ms) == NO_CALL
    flight = Flight(old, setup.until(), claimed=Claimed(old, Call(replace(old, attempts=4)), Status.NEW))
    setup.calls.start(flight)
    assert isinstance(flight.decision, Done)
    assert (flight.decision.result.state, flight.decision.result.reason) == ("failed", "retries_exhausted")
    assert flight.decision.result.attempts == 3
    assert 9 not in setup.sink.called


@pytest.mark.parametrize(("doubtful", "state"), [(False, "failed"), (True, "in_doubt")])
async def test_an_effect_of_a_disabled_endpoint_is_decided_without_a_call(
    clock: Clock, doubtful: bool, state: str
) -> None:
    setup = rig(clock, FakeSink())
    setup.endpoints[lane_name(WEBHOOK)] = Endpoint("disabled", 1)
    item = claimed(clock, 1)
    assert setup.calls.admit(item.job.request, clock.now_ms) == NO_CALL
    job = replace(item.job, doubtful=doubtful)
    flight = Flight(job, setup.until(), claimed=Claimed(job, Call(replace(job, attempts=1)), Status.NEW))
    setup.calls.start(flight)
    assert isinstance(flight.decision, Done)
    assert flight.decision.result.state == state
    assert "disabled" in flight.decision.result.detail
    assert setup.sink.called == []


async def test_an_effect_whose_endpoint_is_enabled_while_it_is_claimed_waits_for_its_call(clock: Clock) -> None:
    setup = rig(clock, FakeSink())
    setup.endpoints[lane_name(WEBHOOK)] = Endpoint("disabled", 1)
    item = claimed(clock, 1)
    assert setup.calls.admit(item.job.request, clock.now_ms) == NO_CALL
    setup.endpoints[lane_name(WEBHOOK)] = Endpoint("enabled", 2)
    flight = Flight(item.job, setup.until(), claimed=item)
    setup.calls.start(flight)
    assert flight.decision == item.put_off(clock.now_ms, LEFT_ALONE)
