"""Random histories of the outbox's rounds in virtual time: kills, aborts and a lost Redis lose or repeat nothing.

The worker is the outbox's own (`tests.outbox_rounds`). Slow, dead, removed and flaky destinations, with keys and
without, are called meanwhile, and operators resend what failed or is in doubt.
"""

import asyncio
import random
from collections import Counter

import pytest

from services.outbox.marks import Mark, mark_of
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown
from shared.eos import crash
from shared.events.effects import EffectRequest, EffectState, Resolution, ResolutionAction, leaves_doubt
from tests.outbox_rounds import CALL_TIMEOUT_S, Answer, Rounds, accepting, assert_i11, dead, rounds
from tests.sinks.effects import effect
from tests.tiers import full

WEBHOOKS = [f"https://{name}.example/hook" for name in ("fine", "fine-too", "slow", "dead", "gone", "flaky")]
MAILS = ["mailto:bob@example.org", "mailto:eve@example.org"]
REQUESTS = 80
POINTS = (
    crash.AFTER_CLAIM,
    crash.BEFORE_CALL,
    crash.AFTER_CALL,
    crash.AFTER_MARK,
)


def flaky(chance: random.Random, world: Rounds, takes_keys: bool) -> Answer:
    """A destination that fails in every way, and may have taken the effect when its answer is lost."""

    async def answer(request: EffectRequest) -> Outcome:
        await asyncio.sleep(chance.choice((0.001, 0.05, 0.4)))
        site = world.webhook if takes_keys else world.email
        known = takes_keys and site.made[request.effect_id] > 0
        if not known and chance.random() < 0.02:
            return Refused("422")
        outcome = chance.choice((Delivered(), Delivered(), Retriable("503"), Unknown("lost")))
        if not known and isinstance(outcome, Unknown) and chance.random() < 0.5:
            site.made[request.effect_id] += 1
        return outcome

    return answer


async def refuse(_: EffectRequest) -> Outcome:
    """A destination that has been removed."""
    await asyncio.sleep(0.005)
    return Refused("410")


async def disturb(world: Rounds, chance: random.Random) -> None:
    """One event of a history; afterwards an owner runs."""
    assert world.process is not None
    what = chance.randrange(7)
    if what == 0:
        world.process.kill()
    elif what == 1:
        gone = asyncio.Event()
        world.process.kill_after(chance.randrange(1, 300), gone.set)
        await asyncio.sleep(chance.random())
        world.process.kill()
    elif what == 2:
        world.kafka.aborting = chance.choice((1, 1, 2))
    elif what == 3:
        world.redis.flush()
    elif what == 4:
        await world.stop()
    elif what == 5:
        world.redis.flush()
        world.process.kill()
    if not world.is_running:
        await asyncio.sleep(chance.choice((0.0, 1.0, 8.0)))
        armed = chance.random() < 0.4
        world.start(f"{chance.choice(POINTS)}=kill:{chance.randrange(1, 40)}" if armed else "")


def resend(world: Rounds, chance: random.Random) -> None:
    """Write decisions as `once endpoints replay` does, some of them twice: none on a mail in doubt."""
    for result in world.kafka.last_results().values():
        doubt = leaves_doubt(result.state, result.reason)
        if result.request is None or (doubt and result.request.destination in MAILS):
            continue
        if chance.random() < 0.3:
            action = ResolutionAction.RESEND
            decision = Resolution(result.effect_id, result.revision, action, result.request, result.resends, doubt)
            world.kafka.write([decision] * chance.choice((1, 1, 2)))


async def idle(world: Rounds, timeout_s: float) -> None:
    """Wait until all requests are passed and none waits; TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while world.kafka.committed < len(world.kafka.requests) or world.kafka.waiting():
            await asyncio.sleep(0.1)


async def history(world: Rounds, chance: random.Random) -> Counter[str]:
    slow, hopeless, gone, unsteady = WEBHOOKS[2:]
    world.webhook.answers = {slow: accepting(4.9), hopeless: dead(), gone: refuse, unsteady: flaky(chance, world, True)}
    world.email.answers = {MAILS[1]: flaky(chance, world, False)}
    requests = [
        effect(number, chance.choice(WEBHOOKS + MAILS), account=f"c-{number % 5}", ordered=chance.random() < 0.3)
        for number in range(REQUESTS)
    ]
    world.start()
    left = list(requests)
    while left:
        count = chance.randrange(1, 20)
        world.kafka.write(left[:count])
        del left[:count]
        await asyncio.sleep(chance.random() * 3)
        resend(world, chance)
        await disturb(world, chance)
    world.webhook.answers = {}
    world.email.answers = {}
    while True:
        try:
            await idle(world, 400)
        except TimeoutError:
            assert not world.is_running, "an owner that works makes no progress"
            world.start()  # the last one died at its crash point
        else:
            break
    await world.stop()
    results = world.kafka.last_results()
    marks = {effect_id: mark for effect_id, mark in world.redis.entries.items() if isinstance(mark, Mark)}
    assert {effect_id: mark_of(results[effect_id]) for effect_id in marks} == marks, "a result was lost"
    assert not world.webhook.under_way.total() + world.email.under_way.total() or world.owners > 1
    for request in requests:
        assert world.kafka.puts()[request.effect_id] <= puts_max(world, request)
    return assert_i11(world, requests, results)


def puts_max(world: Rounds, request: EffectRequest) -> int:
    """One record when it begins to wait, one for each call, and what owners that lost Redis or died had to note."""
    calls = (world.webhook.calls + world.email.calls)[request.effect_id]
    decisions = sum(request.effect_id.encode() in (record.value or b"") for record in world.kafka.requests)
    return decisions + calls + 3 * world.owners + world.kafka.epoch


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[] if seed < 12 else full) for seed in range(300)])
def test_a_random_history_loses_and_repeats_nothing(seed: int) -> None:
    chance = random.Random(seed)
    settings = {"batch_max": chance.choice((3, 20, 200)), "calls_max": chance.choice((4, 16, 64))}
    with rounds(**settings, retry_deadline_s=3600.0, lease_s=2 * CALL_TIMEOUT_S, circuit_failures=3) as world:
        states = world.loop.run_until_complete(history(world, chance))
        assert states[EffectState.SENT] > REQUESTS / 2
