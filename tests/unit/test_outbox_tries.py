"""The outbox's decisions after a call: done, in doubt, given up, or retried, and when."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from services.outbox.domain import (
    DETAIL_MAX_CHARS,
    EARLIER_CALL,
    Done,
    Job,
    Later,
    after_call,
    backoff_ms,
    with_attempt,
)
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown
from shared.events.effects import ANSWER_MAX_CHARS, ATTEMPTS_KEPT, Attempt, EffectState
from tests.unit.test_outbox_domain import DEADLINE_MS, HOLD, NOW_MS, POLICIES, job, shown


def called(**changes: Any) -> Job:
    """An effect at a destination without keys, its first call counted."""
    return job(**{"attempts": 1, **changes})


OUTCOMES: dict[str, Outcome] = {
    "delivered": Delivered(),
    "refused": Refused("no"),
    "retriable": Retriable("busy"),
    "lost": Unknown("lost"),
}

AFTER_CALL = """
outcome    keys  policy  before  over  decision
delivered  *     *       *       *     sent
refused    *     *       no      *     refused
refused    *     *       yes     *     in_doubt
lost       no    hold    *       *     in_doubt
lost       *     *       *       yes   in_doubt
lost       *     *       *       no    keep
retriable  *     *       no      yes   retries_exhausted
retriable  *     *       yes     yes   in_doubt
retriable  *     *       no      no    release
retriable  *     *       yes     no    keep
"""
"""`before`: an earlier call may have been accepted. `over`: the deadline has passed. The first matching row applies."""


@pytest.mark.parametrize(
    "case", list(product(OUTCOMES, ("yes", "no"), POLICIES, ("yes", "no"), ("yes", "no"))), ids="-".join
)
def test_every_combination_after_a_call(case: tuple[str, str, str, str, str]) -> None:
    outcome, keys, policy, before, over = case
    rows = [line.split() for line in AFTER_CALL.strip().splitlines()[1:]]
    expected = next(row[-1] for row in rows if all(cell in {"*", is_} for cell, is_ in zip(row, case, strict=False)))
    doubtful, takes_keys = before == "yes", keys == "yes"
    tried = called(takes_keys=takes_keys, doubtful=doubtful, resends=int(doubtful and not takes_keys))
    now_ms = NOW_MS + (DEADLINE_MS if over == "yes" else 0)
    decision = after_call(tried, OUTCOMES[outcome], POLICIES[policy], now_ms, 0.0)
    if isinstance(decision, Later):
        assert expected == ("release" if decision.release else "keep")
        assert decision.job.doubtful == (doubtful or outcome == "lost")
        # A call that was not accepted does not count; the next one does
        assert decision.job.resends == (tried.resends if outcome == "lost" else 0)
        assert decision.not_before_ms == now_ms + 1000
    else:
        result = decision.result
        assert expected == (result.reason or result.state)
        assert (result.at_ms, result.attempts, result.revision, result.resends) == (now_ms, 1, 1, tried.resends)
        assert (result.request is None) == (result.state == EffectState.SENT)


@pytest.mark.parametrize("outcome", [Refused("no"), Retriable("busy")])
def test_an_effect_that_a_person_had_resent_is_not_reported_as_not_sent(outcome: Outcome) -> None:
    again = called(action="resend", revision=1, resends=1)
    done = after_call(again, outcome, HOLD, NOW_MS + DEADLINE_MS, 0.0)
    assert shown(done) == EffectState.IN_DOUBT
    later = after_call(again, Retriable("busy"), HOLD, NOW_MS, 0.0)
    assert later == Later(again, NOW_MS + 1000, release=True, detail="busy")


def test_an_effect_is_given_up_at_its_deadline_and_not_before() -> None:
    until_ms = NOW_MS + DEADLINE_MS
    assert isinstance(after_call(called(), Retriable("busy"), HOLD, until_ms - 1, 0.0), Later)
    assert isinstance(after_call(called(), Retriable("busy"), HOLD, until_ms, 0.0), Done)


@pytest.mark.parametrize(
    ("retry_after_s", "pause_ms"), [(None, 1000), (0, 1000), (0.5, 1000), (2.5, 2500), (90, 90_000)]
)
def test_an_effect_waits_as_long_as_its_destination_asks(retry_after_s: float | None, pause_ms: int) -> None:
    for outcome in (Retriable("busy", retry_after_s), Unknown("busy", retry_after_s)):
        later = after_call(called(takes_keys=True), outcome, HOLD, NOW_MS, 0.0)
        assert isinstance(later, Later)
        assert later.not_before_ms == NOW_MS + pause_ms


@given(st.integers(1, 2000), st.integers(1, 100_000), st.integers(1, 10**6), st.floats(0, 1))
def test_a_pause_grows_up_to_its_maximum(attempts: int, first_ms: int, more_ms: int, chance: float) -> None:
    policy = replace(HOLD, retry_first_ms=first_ms, retry_max_ms=first_ms + more_ms)
    pause_ms, whole_ms = backoff_ms(policy, attempts, chance), backoff_ms(policy, attempts, 0.0)
    assert whole_ms // 2 <= pause_ms <= whole_ms <= first_ms + more_ms
    assert pause_ms <= backoff_ms(policy, attempts + 1, chance)
    assert backoff_ms(policy, attempts + 1, 0.0) == min(2 * whole_ms, first_ms + more_ms)
    assert backoff_ms(policy, 1, 0.0) == first_ms
    assert backoff_ms(policy, attempts, 1.0) == whole_ms // 2


def test_a_doubt_says_that_the_last_answer_did_not_cause_it() -> None:
    done = after_call(called(takes_keys=True, doubtful=True), Refused("410 Gone"), HOLD, NOW_MS, 0.0)
    assert isinstance(done, Done)
    assert (done.result.state, done.result.detail) == (EffectState.IN_DOUBT, f"{EARLIER_CALL}; the last one: 410 Gone")


def test_the_text_of_a_destination_is_truncated() -> None:
    done = after_call(called(), Refused("x" * 500), HOLD, NOW_MS, 0.0)
    assert isinstance(done, Done)
    assert done.result.detail == "x" * DETAIL_MAX_CHARS


@given(st.lists(st.sampled_from([*OUTCOMES.values(), Refused("x" * 500)]), max_size=2 * ATTEMPTS_KEPT))
def test_the_last_calls_are_kept_with_their_answers(outcomes: list[Outcome]) -> None:
    tried = called()
    for number, outcome in enumerate(outcomes):
        tried = with_attempt(tried, NOW_MS + number, number, outcome)
    last = list(enumerate(outcomes))[-ATTEMPTS_KEPT:]
    assert [(each.at_ms - NOW_MS, each.took_ms) for each in tried.tried] == [(number, number) for number, _ in last]
    for attempt, (_, outcome) in zip(tried.tried, last, strict=True):
        assert attempt.answer == f"{type(outcome).__name__.lower()}: {outcome.detail}".rstrip(": ")[:ANSWER_MAX_CHARS]
    assert replace(tried, tried=()) == called()


@pytest.mark.parametrize("outcome", [*OUTCOMES.values()])
def test_the_calls_are_recorded_with_the_decision(outcome: Outcome) -> None:
    tried = with_attempt(called(takes_keys=True), NOW_MS, 7, outcome)
    decision = after_call(tried, outcome, HOLD, NOW_MS, 0.0)
    recorded = decision.waiting() if isinstance(decision, Later) else decision.result
    assert recorded.tried == tried.tried != ()


def test_an_attempt_says_what_the_destination_answered() -> None:
    assert with_attempt(called(), 5, 6, Delivered("200 OK")).tried == (Attempt(5, 6, "delivered: 200 OK"),)
    assert with_attempt(called(), 5, 6, Delivered()).tried == (Attempt(5, 6, "delivered"),)
