"""The check of effects finds each planted anomaly, and nothing in what is right."""

from collections import Counter

import pytest

from deploy.drills.outbox import Judged, judge_effects, requests_to
from shared.events.effects import EffectResult, EffectState

WEBHOOK = "https://example.org/hook"


def judged(made: int, state: EffectState | None, resends: int = 0) -> Judged:
    """Judge one effect that a sink made so often, and that has a result in this state, or none."""
    [request] = requests_to(WEBHOOK, 1)
    identity = request.effect_id
    results = {} if state is None else {identity: EffectResult(identity, state.value, 0, resends=resends)}
    return judge_effects([request], results, Counter({identity: made}))


@pytest.mark.parametrize(
    ("made", "state", "resends"),
    [
        (1, EffectState.SENT, 0),
        (2, EffectState.SENT, 1),
        (0, EffectState.FAILED, 0),
        (0, EffectState.IN_DOUBT, 0),
        (1, EffectState.IN_DOUBT, 0),
        (2, EffectState.IN_DOUBT, 1),
    ],
)
def test_what_a_result_says_is_no_anomaly(made: int, state: EffectState, resends: int) -> None:
    assert judged(made, state, resends) == Judged(Counter({state.value: 1}), [], [], [])


@pytest.mark.parametrize(
    ("made", "state", "resends", "kind"),
    [
        (0, None, 0, "missing"),
        (1, None, 0, "missing"),
        (0, EffectState.SENT, 0, "missing"),
        (2, EffectState.SENT, 0, "repeated"),
        (3, EffectState.SENT, 1, "repeated"),
        (2, EffectState.IN_DOUBT, 0, "repeated"),
        (1, EffectState.FAILED, 0, "denied"),
    ],
)
def test_each_anomaly_is_found(made: int, state: EffectState | None, resends: int, kind: str) -> None:
    found = judged(made, state, resends)
    assert {name: len(getattr(found, name)) for name in ("repeated", "missing", "denied")} == {
        name: int(name == kind) for name in ("repeated", "missing", "denied")
    }
