"""Kills of the outbox at each crash point around its calls: I11 holds in the sinks' journals."""

import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from deploy.drills.outbox import BRIEF
from services.outbox.sinks.channels import SMTP_CONNECTIONS_MAX
from shared.eos import crash
from shared.events.effects import EffectState
from tests.outbox import World, assert_i11, world
from tests.partitions import PARTITIONS
from tests.tiers import full, mostly_full

pytestmark = pytest.mark.timeout(180)

EFFECTS = 60
MAILTO = "mailto:alice@example.org"
# Each partition commits once when it is taken over
SECOND_WITH_EFFECTS = PARTITIONS + 2
POINTS = {
    crash.AFTER_CLAIM: 2,
    crash.BEFORE_CALL: 15,
    crash.AFTER_CALL: 15,
    crash.AFTER_MARK: 2,
    crash.BEFORE_SEND: SECOND_WITH_EFFECTS,
    crash.AFTER_SEND: SECOND_WITH_EFFECTS,
    crash.AFTER_OFFSETS: SECOND_WITH_EFFECTS,
    crash.END_TXN_SENT: SECOND_WITH_EFFECTS,
    crash.END_TXN_ACKNOWLEDGED: SECOND_WITH_EFFECTS,
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("outbox")) as made:
        made.outbox().start().wait_ready().process.terminate()  # trusts Redis for all tests
        yield made


async def survive(running: World, destination: str, point: str, **settings: str) -> Counter[str]:
    """Kill the outbox at this point with effects in hand, restart it, and check I11.

    Returns:
        The number of effects in each final state.
    """
    killed = {"CRASH_POINT": f"{point}=kill:{POINTS[point]}"} | BRIEF
    doomed = running.outbox(**killed, **settings).start().wait_ready()
    requests = await running.request(EFFECTS, destination)
    assert doomed.wait_exit() == -signal.SIGKILL
    successor = running.outbox(**settings).start().wait_ready()
    results = await running.settled(requests)
    effects = running.mail_effects() if destination == MAILTO else running.webhook_effects()
    states = assert_i11(requests, results, effects)
    successor.process.terminate()
    assert successor.process.returncode == 0
    return states


@pytest.mark.parametrize("point", mostly_full(POINTS, {crash.AFTER_MARK}))
async def test_a_sink_with_keys_has_every_effect_exactly_once(running: World, point: str) -> None:
    states = await survive(running, running.receiver.url, point)
    assert states == {EffectState.SENT: EFFECTS}


@pytest.mark.parametrize(
    "point",
    mostly_full([crash.AFTER_CLAIM, crash.BEFORE_CALL, crash.AFTER_CALL, crash.AFTER_MARK], {crash.AFTER_CALL}),
)
async def test_a_sink_without_keys_has_no_effect_twice_and_every_doubt_is_held(running: World, point: str) -> None:
    states = await survive(running, MAILTO, point)
    assert states[EffectState.SENT] + states[EffectState.IN_DOUBT] == EFFECTS
    assert states[EffectState.SENT] > 0
    if point in {crash.BEFORE_CALL, crash.AFTER_CALL}:
        assert states[EffectState.IN_DOUBT] > 0
    # Only calls in flight are in doubt, one for each connection
    assert states[EffectState.IN_DOUBT] <= SMTP_CONNECTIONS_MAX


@full
async def test_resends_of_effects_in_doubt_are_counted(running: World) -> None:
    before = running.mail_effects()
    states = await survive(running, MAILTO, crash.AFTER_CALL, OUTBOX_IN_DOUBT="receipt=resend")
    assert states == {EffectState.SENT: EFFECTS}
    results = await running.results()
    twice = {identity for identity, count in (running.mail_effects() - before).items() if count > 1}
    counted = {identity for identity, result in results.items() if result.resends}
    assert twice
    assert twice <= counted
