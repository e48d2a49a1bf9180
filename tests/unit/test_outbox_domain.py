"""The outbox's decisions after a claim, for every kind of destination and policy."""

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from services.outbox.domain import (
    DETAIL_MAX_CHARS,
    LEASE_MARGIN_MS,
    Call,
    Decision,
    Done,
    Job,
    Later,
    Policy,
    after_claim,
    give_up,
    not_called,
    resume,
    wanted,
    with_attempt,
)
from services.outbox.marks import Claim, Mark, Mode, Status, Wanted
from services.outbox.outcomes import Retriable
from shared.events.effects import (
    EffectFailure,
    EffectState,
    ResolutionAction,
    Waiting,
    decode_waiting,
    encode_waiting,
)
from tests.sinks.effects import effect

NOW_MS = 1_700_000_000_000
DEADLINE_MS = 600_000
HOLD = Policy(1000, 60_000, DEADLINE_MS, frozenset())
RESEND = replace(HOLD, resent_kinds=frozenset({"receipt"}))
POLICIES = {"hold": HOLD, "resend": RESEND}
DOUBT = Mark(EffectState.IN_DOUBT, 5, 3, 1, 2)

AFTER_CLAIM = """
status    keys  policy  action   doubtful  decision
held      *     *       *        *         wait
known     *     *       -        *         known
known     *     *       *        *         void
*         *     *       confirm  *         sent
*         *     *       abandon  *         failed
new       yes   *       *        *         call
retaken   yes   *       *        *         call
reopened  yes   *       *        *         call
*         no    hold    *        yes       in_doubt
retaken   no    hold    *        *         in_doubt
*         no    resend  *        yes       resend
retaken   no    resend  *        *         resend
new       no    *       -        no        call
new       no    *       resend   no        resend
reopened  no    *       resend   no        resend
"""
"""The first matching row applies."""
ROWS = [line.split() for line in AFTER_CLAIM.strip().splitlines()[1:]]
ACTIONS = ("-", *(action.value for action in ResolutionAction))
CASES = [
    case
    for case in product([status.value for status in Status], ("yes", "no"), POLICIES, ACTIONS, ("yes", "no"))
    if not (case[0] == "reopened" and case[3] == "-")  # only a person's decision reopens an effect
]


def row_for(case: tuple[str, ...]) -> int:
    """Return the first matching row of AFTER_CLAIM."""
    return next(
        number
        for number, row in enumerate(ROWS)
        if all(cell in {"*", value} for cell, value in zip(row, case, strict=False))
    )


def job(**changes: Any) -> Job:
    """A first try of an effect at a destination without keys, taken up now."""
    first = Job(effect(1, "mailto:bob@example.org"), b"effects.requests:3:7", b"payments.raw:1:2", 7, takes_keys=False)
    return replace(first, **{"first_ms": NOW_MS, **changes})


def shown(decision: Decision) -> str:
    """Return a decision as one word."""
    if isinstance(decision, Call):
        return "resend" if decision.resend else "call"
    if isinstance(decision, Done):
        return "known" if decision.known else decision.result.state
    return "wait" if isinstance(decision, Later) else "void"


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_every_combination_after_a_claim(case: tuple[str, str, str, str, str]) -> None:
    status, keys, policy, action, doubtful = case
    mark = DOUBT if status in {"known", "reopened"} else None
    asked = job(
        takes_keys=keys == "yes",
        doubtful=doubtful == "yes",
        action=None if action == "-" else action,
        revision=0 if action == "-" else 1,
    )
    decision = after_claim(asked, Claim(Status(status), mark=mark), POLICIES[policy], NOW_MS)
    assert shown(decision) == ROWS[row_for(case)][-1]
    if isinstance(decision, Call):
        history = DOUBT if status == "reopened" else DOUBT._replace(attempts=0, resends=0)
        assert decision.job.attempts == history.attempts + 1
        assert decision.job.resends == history.resends + decision.resend
        # A person's resend accepts earlier doubts, and only a destination without keys needs it
        accepted = keys == "no" or action != "resend"
        assert decision.job.doubtful == (status == "retaken" or doubtful == "yes" or not accepted)


def test_every_row_is_needed() -> None:
    assert {row_for(case) for case in CASES} == set(range(len(ROWS)))


def test_a_previous_owners_claim_is_waited_for_and_leaves_doubt() -> None:
    held = after_claim(job(), Claim(Status.HELD, lease_left_ms=700), HOLD, NOW_MS)
    assert held == Later(
        job(doubtful=True), NOW_MS + 700 + LEASE_MARGIN_MS, release=False, detail="a predecessor's claim has not ended"
    )


@pytest.mark.parametrize("state", EffectState)
def test_a_marked_effect_gets_the_result_of_its_mark(state: EffectState) -> None:
    done = after_claim(job(), Claim(Status.KNOWN, mark=DOUBT._replace(state=state)), HOLD, NOW_MS)
    assert isinstance(done, Done)
    assert (done.known, done.result.state, done.result.at_ms, done.result.attempts) == (True, state, 5, 3)
    assert (done.result.request is None) == (state is EffectState.SENT)


@pytest.mark.parametrize(("revision", "decided"), [(1, "void"), (2, "void"), (3, "known"), (4, "void"), (9, "void")])
@pytest.mark.parametrize("action", ResolutionAction)
def test_a_decision_applies_only_to_the_result_that_the_person_saw(
    action: ResolutionAction, revision: int, decided: str
) -> None:
    claim = Claim(Status.KNOWN, mark=DOUBT._replace(revision=revision))
    asked = job(action=action, revision=2)
    assert shown(after_claim(asked, claim, HOLD, NOW_MS)) == "void"
    # A predecessor may have marked it, and died before it committed that
    for left in ({"at_risk": True}, {"stored": True}):
        assert shown(after_claim(replace(asked, **left), claim, HOLD, NOW_MS)) == decided


@pytest.mark.parametrize(
    ("action", "state", "reason"),
    [
        (ResolutionAction.CONFIRM, EffectState.SENT, ""),
        (ResolutionAction.ABANDON, EffectState.FAILED, EffectFailure.ABANDONED),
    ],
)
def test_a_decision_without_a_call_keeps_the_counts(action: ResolutionAction, state: EffectState, reason: str) -> None:
    done = after_claim(job(action=action, revision=1), Claim(Status.REOPENED, mark=DOUBT), HOLD, NOW_MS)
    assert isinstance(done, Done)
    result = done.result
    assert (result.state, result.reason, result.revision) == (state, reason, 2)
    assert (result.attempts, result.resends) == (3, 2)


@pytest.mark.parametrize(
    ("reason", "state", "resent"),
    [
        (EffectFailure.REFUSED, EffectState.FAILED, False),
        (EffectFailure.RETRIES_EXHAUSTED, EffectState.FAILED, False),
        (EffectFailure.ABANDONED, EffectState.FAILED, True),
        ("", EffectState.IN_DOUBT, True),
    ],
)
def test_only_effects_that_may_have_been_sent_count_as_resent(reason: str, state: str, resent: bool) -> None:
    claim = Claim(Status.REOPENED, mark=DOUBT._replace(state=state, reason=reason))
    call = after_claim(job(action="resend", revision=1), claim, HOLD, NOW_MS)
    assert isinstance(call, Call)
    assert (call.resend, call.job.resends) == (resent, 2 + resent)


def test_a_stored_effect_that_a_person_had_resent_is_not_counted_twice() -> None:
    stored = job(action="resend", revision=1, resends=1, stored=True)
    assert after_claim(stored, Claim(Status.NEW), HOLD, NOW_MS) == Call(replace(stored, attempts=1))


@pytest.mark.parametrize(
    ("status", "doubtful", "action", "history"),
    [
        (Status.NEW, False, None, {}),
        (Status.NEW, True, None, {}),
        (Status.RETAKEN, False, None, {"resends": 4}),
        (Status.REOPENED, False, "resend", {"attempts": 3, "resends": 3}),
        (Status.REOPENED, True, "resend", {"attempts": 3, "resends": 2}),
    ],
)
def test_an_effect_that_is_not_called_after_all_is_counted_once(
    status: Status, doubtful: bool, action: str | None, history: dict[str, int]
) -> None:
    asked = job(doubtful=doubtful, action=action, revision=0 if action is None else 1)
    reopened, retaken = status is Status.REOPENED, status is Status.RETAKEN
    claim = Claim(status, mark=DOUBT if reopened else None, resends=4 if retaken else 0)
    call = after_claim(asked, claim, RESEND, NOW_MS)
    assert isinstance(call, Call)
    later = not_called(asked, call, status, NOW_MS + 5, "stopping")
    # If a call may have been made, the claim stays, and the call is counted when it is made
    kept = doubtful or retaken
    assert later.release is not kept
    # Earlier owners' calls stay counted: this owner's claim does not show them to itself
    assert (later.job, later.not_before_ms) == (replace(asked, doubtful=kept, **history), NOW_MS + 5)


@pytest.mark.parametrize(
    ("state", "reason", "given_up"),
    [
        (EffectState.IN_DOUBT, "", EffectState.IN_DOUBT),
        (EffectState.FAILED, EffectFailure.ABANDONED, EffectState.IN_DOUBT),
        (EffectState.FAILED, EffectFailure.REFUSED, EffectState.FAILED),
    ],
)
def test_a_doubt_that_a_person_had_resent_stays_one_if_no_call_is_made(state: str, reason: str, given_up: str) -> None:
    claim = Claim(Status.REOPENED, mark=Mark(state, 5, 3, 1, 0, reason))
    call = after_claim(job(action="resend", revision=1), claim, HOLD, NOW_MS)
    assert isinstance(call, Call)
    result = give_up(call, EffectFailure.ENDPOINT_DISABLED, "smtp is disabled", NOW_MS).result
    assert (result.state, result.attempts, result.resends, result.revision) == (given_up, 3, 0, 2)
    assert result.detail.startswith("smtp is disabled")


def test_a_resend_that_is_put_aside_before_it_is_claimed_is_counted_once() -> None:
    asked = job(action="resend", revision=1)
    aside = resume(Later(asked, NOW_MS, release=False, detail="", claimed=False).waiting(), takes_keys=False)
    call = after_claim(aside, Claim(Status.NEW), HOLD, NOW_MS)
    assert isinstance(call, Call)
    assert (wanted(aside, HOLD).resend_if_new, call.resend, call.job.resends) == (True, True, 1)
    again = resume(not_called(aside, call, Status.NEW, NOW_MS, "").waiting(), takes_keys=False)
    call = after_claim(again, Claim(Status.NEW), HOLD, NOW_MS)
    assert isinstance(call, Call)
    assert (wanted(again, HOLD).resend_if_new, call.resend, call.job.resends) == (False, False, 1)


def test_a_resend_of_an_effect_that_was_not_sent_is_none_though_its_mark_is_gone() -> None:
    asked = job(action="resend", revision=1, settles_doubt=False)
    call = after_claim(asked, Claim(Status.NEW), HOLD, NOW_MS)
    assert isinstance(call, Call)
    assert (wanted(asked, HOLD).resend_if_new, call.resend, call.job.resends) == (False, False, 0)
    keyed = after_claim(replace(asked, takes_keys=True), Claim(Status.NEW), HOLD, NOW_MS)
    assert isinstance(keyed, Call)
    assert not keyed.job.doubtful


@pytest.mark.parametrize("action", [None, "resend"])
def test_a_waiting_effect_resumes_unchanged(action: str | None) -> None:
    first = job(attempts=4, revision=2, resends=1, doubtful=True, settles_doubt=False, action=action, void="7.1")
    first = with_attempt(first, NOW_MS, 12, Retriable("503"))
    waiting = Later(first, NOW_MS + 9, release=True, detail="x" * 300).waiting()
    assert (waiting.not_before_ms, waiting.detail) == (NOW_MS + 9, "x" * DETAIL_MAX_CHARS)
    again: Waiting = decode_waiting(encode_waiting(waiting))
    assert resume(again, takes_keys=False) == replace(first, stored=True)
    assert wanted(resume(again, takes_keys=False), HOLD).void == "7.1"


@pytest.mark.parametrize("release", [True, False])
def test_only_a_claim_without_a_call_is_recorded_as_void(release: bool) -> None:
    later = Later(job(void="7.1"), NOW_MS, release=release, detail="")
    assert later.unreleased("7.2").job.void == ("7.2" if release else "7.1")


@pytest.mark.parametrize(
    ("takes_keys", "action", "mode"),
    [
        (True, None, Mode.KEYED),
        (True, "resend", Mode.KEYED),
        (False, None, Mode.KEYLESS),
        (False, "resend", Mode.KEYLESS),
        (False, "confirm", Mode.KEYED),
        (False, "abandon", Mode.KEYED),
    ],
)
def test_only_a_call_without_a_key_waits_for_a_lease(takes_keys: bool, action: str | None, mode: Mode) -> None:
    asked = job(takes_keys=takes_keys, action=action, revision=4)
    claim = wanted(asked, HOLD)
    assert claim[:4] == Wanted(asked.effect_id, mode, 0 if action is None else 4)[:4]


@pytest.mark.parametrize(
    ("policy", "changes", "if_new", "if_again"),
    [
        (HOLD, {}, False, False),
        (HOLD, {"doubtful": True}, False, False),
        (HOLD, {"action": "resend"}, True, True),
        (HOLD, {"action": "resend", "stored": True}, False, True),
        (HOLD, {"action": "confirm"}, False, False),
        (RESEND, {}, False, True),
        (RESEND, {"doubtful": True}, True, True),
        (RESEND, {"takes_keys": True, "doubtful": True}, False, False),
    ],
)
def test_a_claim_counts_the_call_that_would_be_a_resend(
    policy: Policy, changes: dict[str, Any], if_new: bool, if_again: bool
) -> None:
    claim = wanted(job(resends=3, **{"takes_keys": False, **changes}), policy)
    assert (claim.resends, claim.resend_if_new, claim.resend_if_again) == (3, if_new, if_again)


def test_possible_resends_of_previous_owners_are_counted() -> None:
    claim = Claim(Status.RETAKEN, resends=4)
    called = after_claim(job(takes_keys=False, resends=1), claim, RESEND, NOW_MS)
    assert isinstance(called, Call)
    assert called.job.resends == 5
    held = after_claim(job(takes_keys=False), claim, HOLD, NOW_MS)
    assert isinstance(held, Done)
    assert held.result.resends == 4
    keyed = after_claim(job(takes_keys=True), claim, HOLD, NOW_MS)
    assert isinstance(keyed, Call)
    assert keyed.job.resends == 0


def test_order_is_kept_by_account_and_destination_on_request() -> None:
    assert job().chain is None
    assert job(request=effect(1, "file:a", ordered=True)).chain == ("2378", "file:a")
