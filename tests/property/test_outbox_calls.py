"""Random histories of one effect: a call that may have been made is never repeated uncounted.

The decisions are the outbox's own; Redis, Kafka and the destination are a few variables here. Owners die at each crash
point, Redis is flushed or restarted, the requests are replayed, and operators resolve doubts.
"""

from collections import deque
from dataclasses import dataclass, replace
from enum import Enum

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.outbox.domain import (
    Call,
    Done,
    Job,
    Later,
    Policy,
    Superseded,
    after_call,
    after_claim,
    give_up,
    not_called,
    resume,
    wanted,
)
from services.outbox.marks import Claim, Mark, Mode, Status, Wanted, mark_of
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown
from shared.events.effects import (
    EffectFailure,
    EffectKind,
    EffectResult,
    EffectState,
    ResolutionAction,
    Waiting,
    decode_waiting,
    encode_waiting,
    leaves_doubt,
)
from tests.sinks.effects import effect

DEADLINE_MS = 20_000
OUTCOMES: tuple[Outcome, ...] = (Delivered(), Unknown("lost"), Retriable("busy"), Retriable("later", 30), Refused("no"))


class Fault(Enum):
    """The fault of a round."""

    DIE_AFTER_CLAIM = "die after claim"
    DIE_AFTER_CALL = "die after call"
    DIE_AFTER_MARK = "die after mark"
    ABORT = "abort"  # the Kafka transaction, after the mark
    LOSE = "lose"  # Redis, before the mark; the decision is still committed
    DISABLED = "disabled"  # no fault of the round: its endpoint gets no calls
    ASIDE = "aside"  # nor is this: its lane has no room for the request


@dataclass(frozen=True)
class Round:
    """One round; without an outcome the effect is put off after its claim."""

    outcome: Outcome | None
    fault: Fault | None
    kept: bool


@dataclass(frozen=True)
class Loss:
    """Redis loses its data, or restarts with it (`kept`); the owner notices and releases (`orderly`), or died before.

    An owner does not know which calls were made before it has processed the leftovers of a predecessor or an aborted
    transaction.
    """

    kept: bool
    orderly: bool


class Move(Enum):
    """Other events of a history."""

    LEASES_END = "leases end"
    REPLAY = "replay"
    DIE = "die"
    EXPIRE = "expire"  # the mark, and the records that could be replayed


@dataclass(frozen=True)
class Held:
    """A claim in Redis."""

    token: int
    base: int
    resends: int = 0
    leased: bool = True
    begun: bool = True


rounds = st.builds(
    Round, st.none() | st.sampled_from(OUTCOMES), st.none() | st.none() | st.sampled_from(Fault), st.booleans()
)
losses = st.builds(Loss, st.booleans(), st.booleans())
Step = Round | Loss | Move | ResolutionAction
steps = st.lists(rounds | rounds | losses | st.sampled_from(Move) | st.sampled_from(ResolutionAction), max_size=25)


class History:
    """One effect of one partition, its owners one after the other.

    Attributes:
        taken: calls that may have been taken.
        asked: how often an operator requested another call.
        uncounted: calls whose count was in a claim alone, and was lost with Redis before it could be committed.
        doubts: how often it was committed to be in doubt.
        result: the last one committed.
    """

    def __init__(self, policy: Policy, *, takes_keys: bool) -> None:
        self.policy = policy
        self.now_ms = 1_000_000
        job = Job(effect(1, "mailto:bob@example.org"), b"effects.requests:0:0", b"payments.raw:0:0", 0, takes_keys)
        self.log = [job]
        self.inbox = deque(self.log)
        self.waiting: Waiting | None = None
        self.result: EffectResult | None = None
        self.redis: Held | Mark | None = None
        self.token = 1
        self.expired = 0  # so many records of the log
        self.forgotten = 0  # revision of the mark that expired
        self.left_over = False  # calls may have been made that no transaction records
        self.aborted: Done | Later | Superseded | None = None  # what an aborted transaction had: its owner has it still
        self.taken = self.asked = self.uncounted = self.doubts = 0

    def take(self, step: Step) -> None:
        """Take one step."""
        if isinstance(step, Round):
            self._round(step)
        elif isinstance(step, Loss):
            self._lose(step.kept, orderly=step.orderly)
        elif isinstance(step, ResolutionAction):
            self._decide(step)
        elif step is Move.REPLAY:
            self.inbox.extend(self.log[self.expired :])
        elif step is Move.DIE:
            self._die()
        elif step is Move.EXPIRE:
            if isinstance(self.redis, Mark) and self.waiting is None and not self.inbox:
                self.forgotten, self.expired = self.redis.revision, len(self.log)
                self.redis = None
        elif isinstance(self.redis, Held):
            self.redis = replace(self.redis, leased=False)

    def finish(self) -> EffectResult:
        """Continue without faults until nothing is left to do."""
        for _ in range(20 + 2 * len(self.inbox)):
            if self.waiting is None and not self.inbox:
                assert self.result is not None
                return self.result
            self.take(Move.LEASES_END)
            self.take(Round(Delivered(), None, kept=True))
        raise AssertionError("it does not end")

    def _decide(self, action: ResolutionAction) -> None:
        if self.result is None or self.result.state == EffectState.SENT:
            return
        self.asked += action is ResolutionAction.RESEND
        first = self.log[0]
        decision = msgspec.structs.replace(
            first,
            sequence=len(self.log),
            action=action.value,
            revision=self.result.revision,
            resends=self.result.resends,
            resends_before=self.result.resends,
            settles_doubt=leaves_doubt(self.result.state, self.result.reason),
        )
        self.log.append(decision)
        self.inbox.append(self.log[-1])

    def _round(self, step: Round) -> None:
        if self.aborted is not None:
            self._commit(self.aborted)
            return
        if self.waiting is not None:
            self.now_ms = max(self.now_ms, self.waiting.not_before_ms)
            job = resume(self.waiting, self.log[0].takes_keys)
        elif self.inbox:
            job = self.inbox[0]
            job = msgspec.structs.replace(job, first_ms=self.now_ms, at_risk=self.left_over or job.doubtful)
        else:
            return
        if step.fault is Fault.ASIDE and self.waiting is None and job.action != ResolutionAction.CONFIRM:
            self._commit(Later(job, self.now_ms, release=False, detail="", claimed=False))
            return
        claim = self._claim(wanted(job, self.policy))
        if step.fault is Fault.DIE_AFTER_CLAIM:
            self._die()
            return
        decision = after_claim(job, claim, self.policy, self.now_ms)
        settled = self._call(job, decision, claim.status, step) if isinstance(decision, Call) else decision
        if settled is None or step.fault is Fault.DIE_AFTER_CALL:
            self._die()
            return
        if step.fault is not Fault.LOSE:
            self._mark(settled)
        if step.fault is Fault.DIE_AFTER_MARK:
            self._die()
        elif step.fault is Fault.ABORT:
            self.left_over, self.aborted = True, settled
        else:
            self._commit(settled)
            if step.fault is Fault.LOSE:
                self._lose(step.kept, orderly=True)

    def _die(self) -> None:
        self.token += 1
        self.left_over, self.aborted = True, None

    def _claim(self, wish: Wanted) -> Claim:
        entry = self.redis
        keyless = wish.mode is Mode.KEYLESS
        if isinstance(entry, Held) and keyless and not entry.begun and entry.token != self.token:
            entry = None
        if isinstance(entry, Held):
            if wish.mode is Mode.KEYLESS and entry.leased and entry.token != self.token:
                return Claim(Status.HELD, lease_left_ms=1000)
            resends = wish.resends if entry.token == self.token else max(wish.resends, entry.resends)
            self.redis = Held(self.token, max(entry.base, wish.reopen_revision), resends + wish.resend_if_again)
            return Claim(Status.RETAKEN, resends=resends)
        if entry is None:
            self.redis = Held(self.token, wish.reopen_revision, wish.resends + wish.resend_if_new, begun=not keyless)
            return Claim(Status.NEW)
        if entry.state != EffectState.SENT and entry.revision == wish.reopen_revision:
            resends = max(wish.resends, entry.resends) + wish.resend_if_again
            self.redis = Held(self.token, wish.reopen_revision, resends)
            return Claim(Status.REOPENED, mark=entry)
        return Claim(Status.KNOWN, mark=entry)

    def _call(self, job: Job, call: Call, status: Status, step: Round) -> Done | Later | None:
        """Make the call, or not; None if its owner died after it."""
        if step.fault is Fault.DISABLED:
            return give_up(call, EffectFailure.ENDPOINT_DISABLED, "", self.now_ms)
        if step.outcome is None:
            return not_called(job, call, status, self.now_ms, "its destination is left alone")
        assert isinstance(self.redis, Held)
        self.redis = replace(self.redis, begun=True)
        self.taken += isinstance(step.outcome, Delivered | Unknown)
        self._assert_counted(call.job.resends)
        if step.fault is Fault.DIE_AFTER_CALL:
            return None
        return after_call(call.job, step.outcome, self.policy, self.now_ms, 0.5)

    def _mark(self, decision: Done | Later | Superseded) -> None:
        known = isinstance(decision, Done) and decision.known
        kept = isinstance(decision, Later) and not decision.release
        if known or kept or isinstance(decision, Superseded):
            return
        assert isinstance(self.redis, Held)
        assert self.redis.token == self.token, "a mark without a claim"
        self.redis = mark_of(decision.result) if isinstance(decision, Done) else None

    def _commit(self, decision: Done | Later | Superseded) -> None:
        if not decision.job.stored:
            self.inbox.popleft()
        self.waiting, self.aborted = None, None
        self.left_over &= isinstance(decision, Later) and not decision.claimed
        if isinstance(decision, Later):
            self.waiting = decode_waiting(encode_waiting(decision.waiting()))
            # The next try reads the claim, if there is one
            claimed = self.redis.resends if isinstance(self.redis, Held) else 0
            self._assert_counted(max(self.waiting.resends, claimed))
        elif isinstance(decision, Done):
            if self.result is not None:
                assert decision.result.revision >= self.result.revision
            self.result = decision.result
            self.doubts += self.result.state == EffectState.IN_DOUBT
            self._assert_counted(self.result.resends)
        if self.waiting is not None and self.inbox:
            self.inbox.popleft()  # a repeat of the waiting effect

    def _lose(self, kept: bool, *, orderly: bool) -> None:
        self.token += 1
        self.aborted = None
        if not kept:
            self._forget()
            self.redis = None
        if self.result is not None and self.result.revision > self.forgotten:
            mark = mark_of(self.result)
            base = self.redis.base if isinstance(self.redis, Held) else -1
            marked = self.redis.revision if isinstance(self.redis, Mark) else -1
            if mark.revision > base and mark.revision >= marked:
                self.redis = mark
        if orderly and not self.left_over:
            return
        self.left_over = False
        self.inbox = deque(msgspec.structs.replace(job, doubtful=True) for job in self.inbox)
        if self.waiting is not None and self.waiting.not_before_ms <= self.now_ms:
            self.waiting = msgspec.structs.replace(self.waiting, doubtful=True)

    def _forget(self) -> None:
        committed = max(self.waiting.resends if self.waiting else 0, self.result.resends if self.result else 0)
        if isinstance(self.redis, Held | Mark):
            self.uncounted += max(self.redis.resends - committed, 0)

    def _assert_counted(self, resends: int) -> None:
        """Every second call that may have been taken was requested by an operator or counted."""
        if self.log[0].takes_keys:
            assert resends == 0
        elif not self.policy.resent_kinds:
            assert self.taken <= 1 + self.asked
        else:
            assert self.taken <= 1 + resends + self.uncounted


def history(kinds: frozenset[str], given_steps: list[Step], *, takes_keys: bool) -> tuple[History, EffectResult]:
    """The history after these steps, and the effect's last result."""
    found = History(Policy(1000, 4000, DEADLINE_MS, kinds), takes_keys=takes_keys)
    for step in given_steps:
        found.take(step)
    result = found.finish()
    if result.state == EffectState.FAILED and result.reason != EffectFailure.ABANDONED:
        assert not found.taken, "reported as not sent, but may have been"
    return found, result


LOST, RESEND = Round(Unknown("lost"), None, kept=True), ResolutionAction.RESEND
DISABLED, ASIDE = (Round(None, fault, kept=True) for fault in (Fault.DISABLED, Fault.ASIDE))
REFUSED, BUSY = (Round(outcome, None, kept=True) for outcome in (Refused("no"), Retriable("busy")))
PUT_OFF = Round(None, None, kept=True)
DIED = [Round(Unknown("lost"), Fault.DIE_AFTER_CALL, kept=True), Move.LEASES_END]


@given(steps)
@example([LOST, RESEND, DISABLED])
@example([LOST, ResolutionAction.ABANDON, RESEND, DISABLED])
@example([LOST, Move.EXPIRE, RESEND, ASIDE, REFUSED])
@example([LOST, Move.EXPIRE, RESEND, ASIDE, DISABLED])
def test_effects_held_in_doubt_are_sent_again_by_operators_only(given_steps: list[Step]) -> None:
    found, result = history(frozenset(), given_steps, takes_keys=False)
    if len(found.log) == 1:
        assert result.resends == 0
        assert found.taken == 1 if result.state == EffectState.SENT else found.taken <= 1


@given(steps)
@example([LOST, LOST, REFUSED, Move.EXPIRE, ResolutionAction.CONFIRM])
@example([LOST, LOST, REFUSED, Move.EXPIRE, ResolutionAction.ABANDON])
@example([LOST, LOST, REFUSED, Move.EXPIRE, RESEND, ASIDE, REFUSED])
@example([LOST, BUSY, BUSY, BUSY])
@example([LOST, PUT_OFF, PUT_OFF, PUT_OFF])
@example([*DIED, *DIED, PUT_OFF, LOST])
@example([LOST, Round(Unknown("lost"), Fault.ABORT, kept=True), LOST])
def test_effects_sent_again_in_doubt_are_counted(given_steps: list[Step]) -> None:
    found, result = history(frozenset(EffectKind), given_steps, takes_keys=False)
    if result.state == EffectState.SENT and len(found.log) == 1:
        assert 1 <= found.taken <= 1 + result.resends + found.uncounted
    # A claim counts the call that its owner may have made before it died or lost Redis, and a doubt a refused one
    assert result.resends <= max(found.taken - 1, 0) + found.asked + found.token - 1 + found.doubts


@given(steps)
@example([Round(Unknown("lost"), None, kept=True), *[LOST] * 9, Move.EXPIRE, RESEND, ASIDE, REFUSED])
def test_effects_with_a_key_are_called_again_without_counting(given_steps: list[Step]) -> None:
    found, result = history(frozenset(), given_steps, takes_keys=True)
    if result.state == EffectState.SENT and len(found.log) == 1:
        assert found.taken >= 1


@pytest.mark.parametrize("takes_keys", [True, False])
@pytest.mark.parametrize(
    "given_steps",
    [
        [DISABLED, RESEND, PUT_OFF, REFUSED],
        [DISABLED, RESEND, ASIDE, PUT_OFF, DISABLED],
        [DISABLED, Move.EXPIRE, RESEND, REFUSED],
        [REFUSED, Move.EXPIRE, RESEND, ASIDE, REFUSED],
    ],
)
def test_an_effect_that_was_not_sent_is_not_in_doubt_when_an_operator_resends_it(
    given_steps: list[Step], takes_keys: bool
) -> None:
    _, result = history(frozenset(), given_steps, takes_keys=takes_keys)
    assert (result.state, result.resends) == (EffectState.FAILED, 0)
