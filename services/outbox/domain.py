"""The decision for an effect: call, wait, or decide. Pure; clocks and randomness come in as arguments.

The question is always whether an earlier call may have been accepted. A destination that knows keys is then called
again with the same key. One that does not is never called again unnoticed: the effect is in doubt, held for a person,
or sent again and counted.
"""

import msgspec
from msgspec.structs import replace

from services.outbox.marks import Claim, Mark, Mode, Status, Wanted, result_of
from services.outbox.outcomes import OUTCOME_NAMES, Delivered, Outcome, Refused, Unknown
from shared.events.effects import (
    ANSWER_MAX_CHARS,
    ATTEMPTS_KEPT,
    Attempt,
    EffectFailure,
    EffectRequest,
    EffectResult,
    EffectState,
    ResolutionAction,
    Waiting,
    leaves_doubt,
)

LEASE_MARGIN_MS = 100  # Redis' clock tells when a lease ends, this process' clock when to ask again
DETAIL_MAX_CHARS = 200
EARLIER_CALL = "an earlier call may have been taken"


class Policy(msgspec.Struct, frozen=True):
    """How long and how often an effect is tried."""

    retry_first_ms: int  # the pause before the second try
    retry_max_ms: int  # the longest pause
    retry_deadline_ms: int  # from the first try until the effect is given up
    resent_kinds: frozenset[str]  # sent again when in doubt; the others are held


class Job(msgspec.Struct, frozen=True):
    """An effect in hand."""

    request: EffectRequest
    source: bytes  # coordinates of its record in effects.requests
    origin: bytes  # coordinates of the raw record
    sequence: int  # the offset of its record; it orders the effects of the partition
    takes_keys: bool  # of its sink
    attempts: int = 0  # calls made so far
    first_ms: int = 0  # when it was first taken up, milliseconds since 1970 UTC
    revision: int = 0  # of its last result
    resends: int = 0  # of its last result, and those counted since
    resends_before: int = 0  # of these, those of the result that a person's decision names
    doubtful: bool = False  # an earlier call may have been accepted, whatever Redis still knows of it
    settles_doubt: bool = True  # as in Resolution
    action: str | None = None  # a person's decision, a ResolutionAction; None for a request
    at_risk: bool = False  # of a decision: a predecessor may have marked it, and not committed that
    stored: bool = False  # it comes from effects.waiting
    void: str = ""  # holder of a claim that Redis could not be asked to release; empty for none
    tried: tuple[Attempt, ...] = ()  # its last calls, at most ATTEMPTS_KEPT

    @property
    def effect_id(self) -> str:
        return self.request.effect_id

    def expired(self, policy: Policy, now_ms: int) -> bool:
        """Whether the next try is its last."""
        return now_ms - self.first_ms >= policy.retry_deadline_ms

    @property
    def chain(self) -> tuple[str, str] | None:
        """What it keeps its order in; None where no order is asked for."""
        return (self.request.account, self.request.destination) if self.request.ordered else None


class Call(msgspec.Struct, frozen=True):
    """The sink is to be called now."""

    job: Job  # with this call counted
    resend: bool = False  # an earlier call may have been accepted, and the destination knows no keys


class Done(msgspec.Struct, frozen=True):
    """Decided, with the result to be committed."""

    job: Job
    result: EffectResult
    known: bool = False  # Redis has its mark already


class Later(msgspec.Struct, frozen=True):
    """To be tried again."""

    job: Job
    not_before_ms: int  # milliseconds since 1970 UTC
    release: bool  # give its claim back; one that stays means to the next try that a call may have been made
    detail: str  # why, for people
    claimed: bool = True  # whether Redis was asked for it at all
    under_way: bool = False  # it is claimed still

    def waiting(self) -> Waiting:
        """The record of effects.waiting."""
        job = self.job
        return Waiting(
            job.request,
            job.source.decode(),
            job.origin.decode(),
            job.attempts,
            job.first_ms,
            self.not_before_ms,
            job.sequence,
            job.revision,
            job.resends,
            job.doubtful,
            job.action,
            self.detail[:DETAIL_MAX_CHARS],
            job.void,
            job.tried,
            job.resends_before,
            self.under_way,
            job.settles_doubt,
        )

    def is_as_stored(self, stored: Waiting | None) -> bool:
        """Whether its record would say what the stored one says, but for its time and why it waits or waited."""
        if stored is None:
            return False
        same = replace(self, detail=stored.detail, not_before_ms=stored.not_before_ms, under_way=stored.under_way)
        return same.waiting() == stored

    def unreleased(self, holder: str) -> "Later":
        """Where Redis could not be asked to release the claim: the next owner must not count it as a call.

        The claim's `holder` must make no further claim once this is stored.
        """
        return replace(self, job=replace(self.job, void=holder)) if self.release else self


class Superseded(msgspec.Struct, frozen=True):
    """A person's decision on a result that is no longer the latest: nothing is done."""

    job: Job


Decision = Call | Done | Later | Superseded


def resume(waiting: Waiting, takes_keys: bool) -> Job:
    """The job of a stored effect."""
    return Job(
        waiting.request,
        waiting.source.encode(),
        waiting.origin.encode(),
        waiting.sequence,
        takes_keys,
        waiting.attempts,
        waiting.first_ms,
        waiting.revision,
        waiting.resends,
        waiting.resends_before,
        waiting.doubtful,
        waiting.settles_doubt,
        waiting.action,
        stored=True,
        void=waiting.void,
        tried=waiting.tried,
    )


def wanted(job: Job, policy: Policy) -> Wanted:
    """The claim that a job needs. A person's decision does not wait for a lease unless it asks for a call."""
    keyless_call = not job.takes_keys and job.action in {None, ResolutionAction.RESEND}
    again = keyless_call and (job.action is not None or job.request.kind in policy.resent_kinds)
    return Wanted(
        job.effect_id,
        Mode.KEYLESS if keyless_call else Mode.KEYED,
        job.revision if job.action is not None else 0,
        job.resends,
        resend_if_new=again and (job.doubtful or _reopens_doubt(job, None)),
        resend_if_again=again,
        void=job.void,
    )


def after_claim(job: Job, claim: Claim, policy: Policy, now_ms: int) -> Decision:
    """Decide what to do with an effect after Redis has answered for its claim."""
    if claim.status is Status.HELD:
        until_ms = now_ms + claim.lease_left_ms + LEASE_MARGIN_MS
        doubted = replace(job, doubtful=True)  # Redis may be lost, and the claim with it
        return Later(doubted, until_ms, release=False, detail="a predecessor's claim has not ended")
    if claim.status is Status.KNOWN and claim.mark is not None:
        # A person's decision that was marked and not committed has made the next revision
        own = (job.at_risk or job.stored) and claim.mark.revision == job.revision + 1
        void = job.action is not None and not own
        return Superseded(job) if void else Done(job, result_of(job.effect_id, claim.mark, job.request), known=True)
    job = _with_history(job, claim)
    if job.action in {ResolutionAction.CONFIRM, ResolutionAction.ABANDON}:
        return _decided(job, now_ms)
    # A person's decision settles a doubt, but only one from before: its own call may have been made since
    maybe_taken = claim.status is Status.RETAKEN or job.doubtful
    if maybe_taken and not job.takes_keys:
        return _in_doubt(job, "a call may have been made before the outbox or Redis was lost", policy, now_ms)
    again = maybe_taken or _reopens_doubt(job, claim.mark)
    return _call(job, doubtful=again and job.takes_keys, resend=again and not job.takes_keys)


def _with_history(job: Job, claim: Claim) -> Job:
    """Add what owners counted that died before they committed it, and the counts of the mark that is reopened."""
    attempts, resends = (0, 0) if claim.mark is None else (claim.mark.attempts, claim.mark.resends)
    if not job.takes_keys:
        resends = max(resends, claim.resends)
    if attempts <= job.attempts and resends <= job.resends:
        return job  # as nearly always, and a copy costs microseconds
    return replace(job, attempts=max(job.attempts, attempts), resends=max(job.resends, resends))


def _reopens_doubt(job: Job, mark: Mark | None) -> bool:
    """Whether a person has it made again although an earlier call may have been taken."""
    if mark is None:  # it has expired, or an owner gave the claim back; what that owner decided is counted
        counted = job.stored and (job.attempts > 0 or job.resends > job.resends_before)
        return job.action == ResolutionAction.RESEND and job.settles_doubt and not counted
    return leaves_doubt(mark.state, mark.reason)


def _decided(job: Job, now_ms: int) -> Done:
    """A person's decision that needs no call."""
    if job.action == ResolutionAction.CONFIRM:
        return Done(job, _result(job, EffectState.SENT, now_ms, detail="confirmed by a person"))
    return Done(job, _result(job, EffectState.FAILED, now_ms, EffectFailure.ABANDONED, "by a person"))


def _in_doubt(job: Job, why: str, policy: Policy, now_ms: int) -> Decision:
    if job.request.kind in policy.resent_kinds:
        return _call(job, doubtful=True, resend=True)
    return Done(job, _result(job, EffectState.IN_DOUBT, now_ms, detail=why))


def _call(job: Job, *, doubtful: bool, resend: bool) -> Call:
    counted = replace(job, attempts=job.attempts + 1, resends=job.resends + resend, doubtful=doubtful)
    return Call(counted, resend)


def with_attempt(job: Job, at_ms: int, took_ms: int, outcome: Outcome) -> Job:
    """Add a call to the job's log: it began at `at_ms` since 1970 UTC and took `took_ms`."""
    name = OUTCOME_NAMES[type(outcome)]
    answer = f"{name}: {outcome.detail}" if outcome.detail else name
    tried = (*job.tried, Attempt(at_ms, took_ms, answer[:ANSWER_MAX_CHARS]))
    return replace(job, tried=tried[-ATTEMPTS_KEPT:])


def after_call(job: Job, outcome: Outcome, policy: Policy, now_ms: int, chance: float) -> Done | Later:
    """Decide what an outcome means for the job that `Call` had; `chance`, from 0 to 1, is for the jitter.

    An effect fails only if none of its calls can have been accepted. A refusal settles no earlier call: a destination
    that refuses a key now, because an endpoint was removed or a limit reached, may have accepted it before.
    """
    if isinstance(outcome, Delivered):
        return Done(job, _result(job, EffectState.SENT, now_ms, detail=outcome.detail))
    refused, unknown = isinstance(outcome, Refused), isinstance(outcome, Unknown)
    held = unknown and not job.takes_keys and job.request.kind not in policy.resent_kinds
    taken_before = job.doubtful or job.resends > 0
    if refused or held or job.expired(policy, now_ms):
        if unknown or taken_before:
            detail = outcome.detail if unknown else f"{EARLIER_CALL}; the last one: {outcome.detail}"
            return Done(job, _result(job, EffectState.IN_DOUBT, now_ms, detail=detail))
        failure = EffectFailure.REFUSED if refused else EffectFailure.RETRIES_EXHAUSTED
        return Done(job, _result(job, EffectState.FAILED, now_ms, failure, outcome.detail))
    pause_ms = backoff_ms(policy, job.attempts, chance)
    if not isinstance(outcome, Refused) and outcome.retry_after_s is not None:
        pause_ms = max(pause_ms, int(outcome.retry_after_s * 1000))
    # While a call may have been accepted the claim stays: if the transaction aborts, or this owner dies before it, the
    # next try sees the doubt in Redis. If an earlier call was it, and not this one, the next is counted in its place
    doubtful = job.doubtful or unknown
    uncounted = doubtful and not unknown and not job.takes_keys
    again = replace(job, doubtful=doubtful, resends=job.resends - uncounted)
    return Later(again, now_ms + pause_ms, release=not doubtful, detail=outcome.detail)


def not_called(job: Job, call: Call, status: Status, not_before_ms: int, why: str) -> Later:
    """Put off an effect that was claimed with this status and then not called; its history stays counted."""
    uncalled = replace(call.job, attempts=call.job.attempts - 1)
    if status is Status.RETAKEN or job.doubtful:
        # The next try counts the resend, and finds only this owner's claim: what earlier owners counted is kept here
        doubted = replace(uncalled, resends=uncalled.resends - call.resend, doubtful=True)
        return Later(doubted, not_before_ms, release=False, detail=why)
    # What was counted of a reopened one stays counted, for its mark is gone
    return Later(uncalled, not_before_ms, release=True, detail=why)


def give_up(call: Call, failure: EffectFailure, detail: str, now_ms: int) -> Done:
    """Decide on a claimed effect that does not get this call, nor any other.

    A call that would be a resend is not counted, but says that an earlier one may have been accepted.
    """
    resends = call.job.resends - call.resend
    job = replace(call.job, attempts=call.job.attempts - 1, resends=resends)
    if job.doubtful or call.resend or resends > 0:
        return Done(job, _result(job, EffectState.IN_DOUBT, now_ms, detail=f"{detail}; {EARLIER_CALL}"))
    return Done(job, _result(job, EffectState.FAILED, now_ms, failure, detail))


def backoff_ms(policy: Policy, attempts: int, chance: float) -> int:
    """The pause after so many tries: doubled each time up to the longest, less a random part of up to a half."""
    whole = min(policy.retry_max_ms, policy.retry_first_ms * 2 ** min(attempts - 1, 30))
    return int(whole * (1 - chance / 2))


def _result(
    job: Job, state: EffectState, now_ms: int, failure: EffectFailure | None = None, detail: str = ""
) -> EffectResult:
    return EffectResult(
        job.effect_id,
        state.value,
        now_ms,
        job.attempts,
        job.revision + 1,
        job.resends,
        "" if failure is None else failure.value,
        detail[:DETAIL_MAX_CHARS],
        None if state is EffectState.SENT else job.request,
        job.tried,
    )
