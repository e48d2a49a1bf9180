"""Rounds of the outbox in virtual time: a slow and a dead destination harm no other, and waiting costs little."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from statistics import quantiles

import pytest

from services.outbox.lanes import QUICK_S
from services.outbox.outcomes import Delivered, Outcome, Refused
from services.outbox.service import BACKLOG_S
from shared.eos import crash
from shared.events.effects import (
    EffectRequest,
    EffectResult,
    EffectState,
    Resolution,
    ResolutionAction,
    decode_result,
)
from tests.outbox_rounds import CALL_TIMEOUT_S, Rounds, accepting, assert_i11, dead, rounds
from tests.sinks.effects import effect

SLOW, DEAD = "https://slow.example/hook", "https://dead.example/hook"
HEALTHY = [f"https://fine-{number}.example/hook" for number in range(18)]
MAIL = "mailto:bob@example.org"


def requests_to(destinations: Iterable[str], each: int, first: int = 0) -> list[EffectRequest]:
    """So many requests to each destination, in turn."""
    found = list(destinations)
    return [
        effect(first + number * len(found) + place, destination, account=f"client-{number % 40}")
        for number in range(each)
        for place, destination in enumerate(found)
    ]


def destinations(requests: Iterable[EffectRequest], wanted: str) -> list[EffectRequest]:
    return [request for request in requests if request.destination == wanted]


async def offered(world: Rounds, requests: list[EffectRequest], per_s: float) -> dict[str, float]:
    """Write requests at a rate, and return when each was written, in the loop's time."""
    begun_s, written = world.loop.time(), dict[str, float]()
    for number, request in enumerate(requests):
        wait_s = begun_s + number / per_s - world.loop.time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        written[request.effect_id] = world.loop.time()
        world.kafka.write([request])
    return written


def latencies(world: Rounds, written: dict[str, float], wanted: set[str]) -> list[float]:
    """Seconds from request to receipt, of effects for these destinations that were received."""
    return [at_s - written[identity] for at_s, place, identity in world.webhook.journal if place in wanted]


def run(world: Rounds, per_s: float, seconds: float, others: Iterable[str]) -> tuple[int, float]:
    """How many effects healthy destinations received, and the 99th percentile of their latency."""

    async def history() -> tuple[int, float]:
        world.start()
        requests = requests_to([*HEALTHY, *others], int(per_s * seconds / (len(HEALTHY) + len(list(others)))))
        written = await offered(world, requests, per_s)
        found = latencies(world, written, set(HEALTHY))
        return len(found), quantiles(found, n=100)[98]

    return world.loop.run_until_complete(history())


def test_a_dead_and_a_slow_destination_take_nothing_from_the_others() -> None:
    rate, seconds = 90.0, 15.0
    with rounds() as world:
        alone, alone_p99 = run(world, rate, seconds, {})
    with rounds() as world:
        world.webhook.answers |= {SLOW: accepting(4.9), DEAD: dead()}
        among, among_p99 = run(world, rate / 18 * 20, seconds, world.webhook.answers)
        assert world.kafka.puts().total() < 3 * len(world.kafka.requests) / 10, "only what waits is written"
    assert among >= 0.99 * alone
    assert among_p99 <= 1.5 * alone_p99


def work_off(world: Rounds, call_s: float) -> None:
    """Have 2,000 effects of one quick destination sent, none of which is written to effects.waiting."""
    world.webhook.answers[HEALTHY[0]] = accepting(call_s)
    requests = requests_to([HEALTHY[0]], 2000)
    world.kafka.write(requests)
    world.start()
    results = world.loop.run_until_complete(world.settled(requests))
    assert assert_i11(world, requests, results) == {EffectState.SENT: 2000}
    assert world.kafka.puts().total() == 0


@pytest.mark.parametrize(("call_s", "settled_s"), [(0.002, 1), (0.008, 1.5), (QUICK_S * 0.9, 3)])
def test_one_quick_destination_with_a_backlog_is_not_written_to_effects_waiting(
    call_s: float, settled_s: float
) -> None:
    with rounds() as world:
        work_off(world, call_s)
        assert world.loop.time() < settled_s
        assert world.kafka.commits <= 2000 / world.settings.batch_max + 8, "a full inbox is committed at once"


def test_a_backlog_shares_transactions_though_little_is_claimed_at_once() -> None:
    with rounds(lane_calls_max=2) as world:
        work_off(world, QUICK_S * 0.9)
        assert world.loop.time() < 2000 / 2 * QUICK_S * 1.2
        assert world.kafka.commits <= world.loop.time() / BACKLOG_S + 8


def test_after_a_stall_no_request_is_written_to_effects_waiting() -> None:
    with rounds() as world:
        quick, slow = accepting(QUICK_S * 0.9), accepting(0.4)

        async def answer(request: EffectRequest) -> Outcome:
            return await (slow if 0.5 < world.loop.time() < 0.6 else quick)(request)

        async def history() -> dict[str, EffectResult]:
            world.kafka.write(requests)
            world.start()
            await asyncio.sleep(1.2)
            aside = world.kafka.puts()
            assert 0 < aside.total() < 1000, "the lane was late for 0.2 s"
            results = await world.settled(requests)
            assert world.kafka.puts() == aside
            return results

        world.webhook.answers[HEALTHY[0]] = answer
        requests = requests_to([HEALTHY[0]], 4000)
        results = world.loop.run_until_complete(history())
        assert assert_i11(world, requests, results) == {EffectState.SENT: 4000}


def test_no_more_is_claimed_of_a_lane_than_is_called_while_a_request_waits() -> None:
    with rounds(batch_max=800) as world:
        work_off(world, QUICK_S * 0.9)


def test_a_copy_of_a_request_gets_no_call_and_no_result_though_redis_has_forgotten_the_effect() -> None:
    with rounds() as world:
        requests = requests_to([HEALTHY[0]], 3)

        async def history() -> None:
            world.start()
            world.kafka.write(requests)
            await world.settled(requests)
            world.redis.entries.clear()
            last = world.kafka.requests[-1]
            world.kafka.requests.append(last._replace(offset=len(world.kafka.requests)))
            world.kafka.arrived()
            async with asyncio.timeout(60):
                while world.kafka.committed < len(world.kafka.requests):
                    await asyncio.sleep(0.1)

        world.loop.run_until_complete(history())
        assert len(world.kafka.results) == 3
        assert set(world.webhook.made.values()) == {1}


def results_of_two_decisions(world: Rounds, crash_point: str = "") -> list[EffectResult]:
    """All results of an effect that was refused, and that two persons have sent again."""

    async def refuse(_: EffectRequest) -> Outcome:
        return Refused("410 Gone")

    async def history() -> None:
        world.webhook.answers[HEALTHY[0]] = refuse
        world.kafka.write([request])
        world.start()
        await world.settled([request])
        await world.stop()
        world.start(crash_point)
        await asyncio.sleep(1)
        decision = Resolution(request.effect_id, 1, ResolutionAction.RESEND, request, settles_doubt=False)
        world.kafka.write([decision, decision])
        async with asyncio.timeout(60):
            while world.kafka.committed < len(world.kafka.requests):
                await asyncio.sleep(0.1)
                if not world.is_running:
                    world.start()

    [request] = requests_to([HEALTHY[0]], 1)
    world.loop.run_until_complete(history())
    return [decode_result(record.value or b"") for record in world.kafka.results]


def test_a_second_decision_on_a_result_is_void() -> None:
    with rounds() as world:
        results = results_of_two_decisions(world)
        assert [(result.revision, len(result.tried)) for result in results] == [(1, 1), (2, 1)]


def test_a_decision_whose_owner_dies_before_it_is_committed_has_its_result() -> None:
    with rounds() as world:
        results = results_of_two_decisions(world, f"{crash.AFTER_MARK}=kill:1")
        assert {(result.revision, result.state) for result in results} == {(1, "failed"), (2, "failed")}
        assert set(world.webhook.calls.values()) == {2}


def test_what_waits_is_written_once_for_each_call() -> None:
    with rounds(retry_deadline_s=7200.0) as world:
        world.webhook.answers[DEAD] = dead(0.01)
        requests = requests_to([DEAD, HEALTHY[0]], 500)
        world.kafka.write(requests)
        world.start()
        world.loop.run_until_complete(asyncio.sleep(1800))
        puts, calls = world.kafka.puts(), world.webhook.calls
        hopeless = destinations(requests, DEAD)
        assert len(world.kafka.last_results()) == 500
        for request in hopeless:
            assert puts[request.effect_id] <= 1 + calls[request.effect_id]
        assert sum(calls[request.effect_id] for request in hopeless) <= 1800 / 10 + 20, "the circuit is open"


def test_a_destination_that_recovers_gets_its_effects_in_order_after_one_trial() -> None:
    with rounds() as world:
        world.webhook.answers[DEAD] = dead(0.01)
        requests = requests_to([DEAD], 300)

        async def history() -> None:
            await offered(world, requests, 20)
            world.webhook.answers[DEAD] = accepting(0.05)
            del world.webhook.journal[:]
            await world.settled(requests)

        world.start()
        world.loop.run_until_complete(history())
        times = [at_s for at_s, *_ in world.webhook.journal]
        assert times[1] - times[0] >= 0.05, "one call tries first"
        order = [int(identity, 16) for *_, identity in world.webhook.journal]
        untried = [number for number in order if world.webhook.calls[f"{number:032x}"] == 1]
        late = sum(number < before for before, number in pairwise(untried))
        assert late <= world.settings.lane_calls_max
        assert world.webhook.under_way_max[DEAD] <= world.settings.lane_calls_max


def test_effects_past_their_deadline_are_given_up_without_a_call_while_their_lane_is_open() -> None:
    with rounds(retry_deadline_s=60.0) as world:
        world.webhook.answers[DEAD] = dead()
        requests = requests_to([DEAD], 1000)
        world.kafka.write(requests)
        world.start()
        results = world.loop.run_until_complete(world.settled(requests, 200))
        assert assert_i11(world, requests, results) == {EffectState.FAILED: 1000}
        assert {result.reason for result in results.values()} == {"retries_exhausted"}
        assert world.webhook.calls.total() < 60


@pytest.mark.parametrize("hangs_s", [4.9, 2 * CALL_TIMEOUT_S])
def test_a_quick_destination_that_begins_to_hang_holds_up_no_other(hangs_s: float) -> None:
    rate, seconds = 400.0, 4.0
    with rounds() as world:

        async def turning(request: EffectRequest) -> Outcome:
            return await accepting(0.002 if world.loop.time() < seconds / 4 else hangs_s)(request)

        async def history() -> float:
            world.start()
            world.webhook.answers[SLOW] = turning
            fine = requests_to(HEALTHY[:2], 50)
            busy = requests_to([SLOW], int(rate * seconds), first=10_000)
            written, _ = await asyncio.gather(offered(world, fine, 100 / seconds), offered(world, busy, rate))
            await world.settled(fine, 30)
            return max(latencies(world, written, set(HEALTHY)))

        assert world.loop.run_until_complete(history()) < 0.5


def test_a_slow_lane_leaves_slots_for_many_others() -> None:
    slow = [f"https://slow-{number}.example/hook" for number in range(6)]
    with rounds(calls_max=16, lane_calls_max=16) as world:
        world.webhook.answers |= dict.fromkeys(slow, accepting(4.9))

        async def history() -> float:
            world.kafka.write(requests_to(slow, 50))
            await asyncio.sleep(1)
            requests = requests_to(HEALTHY[:1], 100, first=10_000)
            begun_s = world.loop.time()
            await offered(world, requests, 50)
            await world.settled(requests, 30)
            return world.loop.time() - begun_s

        world.start()
        assert world.loop.run_until_complete(history()) < 4
        assert sum(world.webhook.under_way_max[place] for place in slow) < 16


@pytest.mark.parametrize("stop_after_s", [0.3, 1.0, 4.0])
def test_a_stop_waits_for_the_calls_under_way_and_loses_none(stop_after_s: float) -> None:
    with rounds() as world:
        world.webhook.answers |= {SLOW: accepting(4.9), DEAD: dead()}
        requests = requests_to([SLOW, DEAD, *HEALTHY[:3], MAIL], 40)

        async def history() -> Counter[str]:
            world.start()
            world.kafka.write(requests)
            await asyncio.sleep(stop_after_s)
            begun_s = world.loop.time()
            await world.stop()
            assert world.loop.time() - begun_s < world.settings.stop_deadline_s
            assert not world.webhook.under_way.total()
            world.webhook.answers.clear()
            world.start()
            return assert_i11(world, requests, await world.settled(requests))

        assert world.loop.run_until_complete(history()) == {EffectState.SENT: len(requests)}
        assert set(world.email.made.values()) == {1}


def test_a_mail_called_ahead_of_a_backlog_is_in_doubt_once_owner_and_redis_are_lost() -> None:
    with rounds(calls_max=8, batch_max=4, circuit_open_s=2.0) as world:
        backlog, late = requests_to([MAIL], 2000), effect(2000, MAIL)
        sent = world.email.made

        async def relay(request: EffectRequest) -> Outcome:
            if request.effect_id == late.effect_id:
                sent[late.effect_id] += 1
                await asyncio.sleep(CALL_TIMEOUT_S)  # the mail is on its way, and the answer is lost
            return await accepting(0.005)(request)

        async def history() -> dict[str, EffectResult]:
            world.email.answers[MAIL] = dead(0.01)
            world.kafka.write(backlog)
            world.start()
            while world.kafka.puts().total() < len(backlog):
                await asyncio.sleep(0.1)
            world.email.answers[MAIL] = relay
            while not sent:
                await asyncio.sleep(0.1)
            world.kafka.write([late])
            while not world.kafka.puts()[late.effect_id]:
                await asyncio.sleep(0.01)
            assert len(sent) < len(backlog) / 2, "the mail overtakes the backlog"
            assert world.process is not None
            world.process.kill()
            world.redis.flush()
            world.email.answers[MAIL] = accepting()
            world.start()
            return await world.settled([*backlog, late])

        results = world.loop.run_until_complete(history())
        assert (results[late.effect_id].state, sent[late.effect_id]) == (EffectState.IN_DOUBT, 1)
        assert_i11(world, [*backlog, late], results)


def test_what_an_owner_called_stays_at_risk_though_its_successor_may_claim_less() -> None:
    with rounds(batch_max=16) as world:
        requests = requests_to([MAIL], 8)
        sent = world.email.made

        async def relay(request: EffectRequest) -> Outcome:
            sent[request.effect_id] += 1
            await asyncio.sleep(CALL_TIMEOUT_S)
            return Delivered()

        async def lost(commits: int) -> None:
            while world.kafka.commits < commits:
                await asyncio.sleep(0.001)
            assert world.process is not None
            world.process.kill()

        async def history() -> dict[str, EffectResult]:
            world.email.answers[MAIL] = relay
            world.start()
            world.kafka.write(requests)
            while len(sent) < len(requests):
                await asyncio.sleep(0.001)
            await lost(0)
            world.email.answers[MAIL] = accepting()
            world.settings = replace(world.settings, batch_max=1)
            world.start()
            await lost(world.kafka.commits + 1)
            world.redis.flush()
            world.start()
            return await world.settled(requests)

        results = world.loop.run_until_complete(history())
        assert assert_i11(world, requests, results) == {EffectState.IN_DOUBT: len(requests)}
