"""What is to be done with an effect: call, wait, or decide. Pure; clocks and chance come in as arguments.

One question rules: may an earlier call have been taken? A destination that knows keys is then called again with the
same key. One that does not is never called again in silence: the effect is in doubt, held for a person or sent again
and counted.
"""

from dataclasses import dataclass, replace

from services.outbox.marks import Claim, Mark, Mode, Status, Wanted, result_of
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown
from shared.events.effects import (
    EffectFailure,
    EffectRequest,
    EffectResult,
    EffectState,
    ResolutionAction,
    Waiting,
)

LEASE_MARGIN_MS = 100  # Redis' clock tells when a lease ends, this process' clock when to ask again
DETAIL_MAX_CHARS = 200


@dataclass(frozen=True, slots=True)
class Policy:
    """How long and how often an effect is tried.

    Attributes:
        retry_first_ms, retry_max_ms: the pause before the second try, and the longest.
        retry_deadline_ms: after the first try, until it is given up.
        resent_kinds: kinds that are sent again when in doubt; the others are held.
    """

    retry_first_ms: int
    retry_max_ms: int
    retry_deadline_ms: int
    resent_kinds: frozenset[str]


@dataclass(frozen=True, slots=True)
class Job:
    """An effect in hand.

    Attributes:
        request: what is to be done.
        source, origin: coordinates of its record in effects.requests, and of the raw record.
        sequence: the offset of that record; it orders the effects of the partition.
        takes_keys: of its sink.
        attempts, first_ms: calls made so far, and when it was first taken up, milliseconds since 1970 UTC.
        revision, resends: of its last result.
        doubtful: an earlier call may have been taken, whatever Redis still knows of it.
        action: what a person decided, a ResolutionAction; None for a request.
        stored: it comes from those that wait.
        void: the holder of a claim that Redis could not be told to release; empty for none.
    """

    request: EffectRequest
    source: bytes
    origin: bytes
    sequence: int
    takes_keys: bool
    attempts: int = 0
    first_ms: int = 0
    revision: int = 0
    resends: int = 0
    doubtful: bool = False
    action: str | None = None
    stored: bool = False
    void: str = ""

    @property
    def effect_id(self) -> str:
        """The effect's id."""
        return self.request.effect_id

    def expired(self, policy: Policy, now_ms: int) -> bool:
        """Whether it is not to be tried again after the next try."""
        return now_ms - self.first_ms >= policy.retry_deadline_ms

    @property
    def chain(self) -> tuple[str, str] | None:
        """What it keeps its order in; None where no order is asked for."""
        return (self.request.account, self.request.destination) if self.request.ordered else None


@dataclass(frozen=True, slots=True)
class Call:
    """The sink is to be called now.

    Attributes:
        job: with this call counted.
        resend: an earlier call may have been taken, and the destination knows no keys.
    """

    job: Job
    resend: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Decided.

    Attributes:
        result: to be committed.
        known: Redis has its mark already.
    """

    job: Job
    result: EffectResult
    known: bool = False


@dataclass(frozen=True, slots=True)
class Later:
    """To be tried again.

    Attributes:
        not_before_ms: milliseconds since 1970 UTC.
        release: give its claim back. One that stays tells the next try that a call may have been made.
        detail: why, for people.
        claimed: whether Redis was asked for it at all.
    """

    job: Job
    not_before_ms: int
    release: bool
    detail: str
    claimed: bool = True

    def waiting(self) -> Waiting:
        """As it is stored."""
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
        )

    def unreleased(self, holder: str) -> "Later":
        """As it is where Redis could not be told: the next owner must not take the claim for a call.

        Args:
            holder: of the claim. It must make no further claim once this is stored.
        """
        return replace(self, job=replace(self.job, void=holder)) if self.release else self


@dataclass(frozen=True, slots=True)
class Void:
    """A person's decision on a result that is no longer the last one: nothing is done."""

    job: Job


Decision = Call | Done | Later | Void


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
        waiting.doubtful,
        waiting.action,
        stored=True,
        void=waiting.void,
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
    """What to do with an effect once it is known how its claim went."""
    if claim.status is Status.HELD:
        until_ms = now_ms + claim.lease_left_ms + LEASE_MARGIN_MS
        doubted = replace(job, doubtful=True)  # Redis may be lost, and the claim with it
        return Later(doubted, until_ms, release=False, detail="a predecessor's claim has not ended")
    if claim.status is Status.KNOWN and claim.mark is not None:
        # A person's decision that was marked and not committed has made the next revision
        void = job.action is not None and claim.mark.revision != job.revision + 1
        return Void(job) if void else Done(job, result_of(job.effect_id, claim.mark, job.request), known=True)
    job = _with_history(job, claim)
    if job.action in {ResolutionAction.CONFIRM, ResolutionAction.ABANDON}:
        return _decided(job, now_ms)
    # A person's decision settles a doubt, but only one from before: its own call may have been made since
    maybe_taken = claim.status is Status.RETAKEN or job.doubtful
    if maybe_taken and not job.takes_keys:
        return _in_doubt(job, "a call may have been made before the outbox or Redis was lost", policy, now_ms)
    again = maybe_taken or _reopens_doubt(job, claim.mark)
    return _call(replace(job, doubtful=again and job.takes_keys), resend=again and not job.takes_keys)


def _with_history(job: Job, claim: Claim) -> Job:
    """With what was counted by owners who did not live to commit it, and by the mark that it is reopened from."""
    attempts, resends = (0, 0) if claim.mark is None else (claim.mark.attempts, claim.mark.resends)
    if not job.takes_keys:
        resends = max(resends, claim.resends)
    return replace(job, attempts=max(job.attempts, attempts), resends=max(job.resends, resends))


def _reopens_doubt(job: Job, mark: Mark | None) -> bool:
    """Whether a person has it made again although an earlier call may have been taken."""
    if mark is None:  # it has expired, or an owner that died gave the claim back
        return job.action == ResolutionAction.RESEND and not job.stored
    return mark.state == EffectState.IN_DOUBT or mark.reason == EffectFailure.ABANDONED


def _decided(job: Job, now_ms: int) -> Done:
    """What a person decided, without a call."""
    if job.action == ResolutionAction.CONFIRM:
        return Done(job, _result(job, EffectState.SENT, now_ms, detail="confirmed by a person"))
    return Done(job, _result(job, EffectState.FAILED, now_ms, EffectFailure.ABANDONED, "by a person"))


def _in_doubt(job: Job, why: str, policy: Policy, now_ms: int) -> Decision:
    if job.request.kind in policy.resent_kinds:
        return _call(replace(job, doubtful=True), resend=True)
    return Done(job, _result(job, EffectState.IN_DOUBT, now_ms, detail=why))


def _call(job: Job, *, resend: bool) -> Call:
    return Call(replace(job, attempts=job.attempts + 1, resends=job.resends + resend), resend)


def after_call(job: Job, outcome: Outcome, policy: Policy, now_ms: int, chance: float) -> Done | Later:
    """What an outcome decides.

    Args:
        job: as `Call` had it.
        outcome: of the call.
        policy: as configured.
        now_ms: milliseconds since 1970 UTC.
        chance: 0 to 1, for the jitter.
    """
    if isinstance(outcome, Delivered):
        return Done(job, _result(job, EffectState.SENT, now_ms, detail=outcome.detail))
    refused, unknown = isinstance(outcome, Refused), isinstance(outcome, Unknown)
    held = unknown and not job.takes_keys and job.request.kind not in policy.resent_kinds
    if refused or held or job.expired(policy, now_ms):
        # A destination that knows keys knows what it took; of any other only this call is known
        taken_before = (job.doubtful or job.resends > 0) and not (refused and job.takes_keys)
        if unknown or taken_before:
            return Done(job, _result(job, EffectState.IN_DOUBT, now_ms, detail=outcome.detail))
        failure = EffectFailure.REFUSED if refused else EffectFailure.RETRIES_EXHAUSTED
        return Done(job, _result(job, EffectState.FAILED, now_ms, failure, outcome.detail))
    pause_ms = backoff_ms(policy, job.attempts, chance)
    if isinstance(outcome, Retriable) and outcome.retry_after_s is not None:
        pause_ms = max(pause_ms, int(outcome.retry_after_s * 1000))
    # While a call may have been taken the claim stays, and Kafka knows too: whoever tries again must see it. If it was
    # an earlier one, and not this one, the next one is counted in its place
    doubtful = job.doubtful or unknown
    uncounted = doubtful and not unknown and not job.takes_keys
    again = replace(job, doubtful=doubtful, resends=job.resends - uncounted)
    return Later(again, now_ms + pause_ms, release=job.takes_keys or not doubtful, detail=outcome.detail)


def not_called(job: Job, call: Call, status: Status, not_before_ms: int, why: str) -> Later:
    """For an effect that was claimed and then not called after all.

    Args:
        job: as it was before it was claimed.
        call: what was decided then.
        status: of the claim.
        not_before_ms: when to try again, milliseconds since 1970 UTC.
        why: for people.
    """
    if status is Status.RETAKEN or job.doubtful:
        return Later(replace(job, doubtful=True), not_before_ms, release=False, detail=why)
    # What was counted of a reopened one stays counted, for its mark is gone
    return Later(replace(call.job, attempts=call.job.attempts - 1), not_before_ms, release=True, detail=why)


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
    )
