"""The outbox's workload: requests in; calls, then results, waiting effects, dead letters and offset out.

A round claims effects in Redis, calls their sinks, marks their outcomes in Redis, and only then opens one Kafka
transaction with the results and the consumed offset: an open transaction never waits for the outside. Invariant:
nothing is called unless Redis is trusted; what was called is committed even if Redis was lost meanwhile.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.outbox.claims import Asking, DistrustedError
from services.outbox.dispatch import EARLIER, LEFT_ALONE, Claimed, Until, now_ms
from services.outbox.domain import Call, Done, Job, Later, Void, after_claim, resume, wanted
from services.outbox.intake import job_of, outputs_of, runs_without_repeats
from services.outbox.marks import Risk
from services.outbox.trust import REDIS_DISTRUSTED, REDIS_TRUSTED, Means, TrustedWorker
from shared.eos import crash
from shared.eos.errors import AbortableError
from shared.eos.records import Output, Record
from shared.events.catalogue import EFFECTS_REQUESTS, EFFECTS_RESULTS
from shared.events.effects import EffectKind, EffectState, ResolutionAction
from shared.events.headers import SOURCE, Coordinates, oldest_origin_time_ms
from shared.kafka.runtime.partition_metrics import tell_latency
from shared.kafka.runtime.worker import Membership, Resource, WorkerPerPartition
from shared.telemetry import catalogue, metrics
from shared.telemetry.instruments import at_zero, counter

POLL_S = 0.2  # how long an idle round takes
CHECK_S = 1.0  # an idle partition asks this often whether Redis is still the one that it trusted
QUIET_S = 10.0  # without work for so long, it commits that only markers are left behind its offset

EFFECTS = counter(catalogue.EFFECTS)
at_zero(EFFECTS, [kind.value for kind in EffectKind], [state.value for state in EffectState])
EFFECTS_REPEATED = counter(catalogue.EFFECTS_REPEATED)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outbox:
    """The outbox's workload."""

    means: Means
    service: str = "outbox"
    topic: str = EFFECTS_REQUESTS
    resources: tuple[Resource, ...] = ()

    def workers(self, membership: Membership) -> WorkerPerPartition:
        """Return a worker for each partition: Redis orders claims by the epoch of each partition's producer."""
        return WorkerPerPartition(
            lambda partition: EffectWorker(self, self.means, partition, membership), self.means.settings.stop_deadline_s
        )


class EffectWorker(TrustedWorker):
    """One partition of effects.requests, and its waiting effects."""

    _checked_s = 0.0
    _worked_s = 0.0

    async def _work(self) -> None:
        """One round. A Redis that is no longer trusted ends the work, with no call under way."""
        if not self.tasks:  # being restored, or about to be released
            await self._input()
            return
        try:
            await self._round()
        except DistrustedError:
            REDIS_DISTRUSTED.inc()
            REDIS_TRUSTED.set(0)
            await self._let_go()
            raise

    async def _round(self) -> None:
        due = self._waiting.due(now_ms(), self._outbox.batch_max)
        records = await self._requests(idle=not due)
        if not due and not records:
            await self._check()
            return
        begun_s, before = time.monotonic(), self._own.next_offset
        born = oldest_origin_time_ms(record.headers for record in records)
        self._worked_s = begun_s
        takes_keys = self._calls.takes_keys
        jobs = [resume(waiting, takes_keys(waiting.request)) for waiting in due]
        for number, record in enumerate(records):
            jobs.append(job_of(record, takes_keys, now_ms(), doubtful=self._doubtful(number, record.offset)))
        requests = {record.offset: record for record in records}
        runs = list(runs_without_repeats(jobs))
        ends = [max(before, run[-1].sequence + 1) for run in runs[:-1]]
        ends.append(records[-1].offset + 1 if records else before)
        try:
            for run, end in zip(runs, ends, strict=True):
                if not self._stopping.is_set():
                    await self._settle(run, end, requests)
        except AbortableError as error:
            await self._rewind({self._own: self._own.next_offset}, error)
            return
        self._aborts = 0
        tell_latency(born, EFFECTS_RESULTS)

    async def _requests(self, *, idle: bool) -> list[Record]:
        """New requests; none while too many wait."""
        if len(self._waiting) >= self._outbox.waiting_max:
            if idle:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), POLL_S)
            return []
        if idle:
            await self._input(POLL_S)
        return self._fetcher.take(self._own.target, self._outbox.batch_max)

    async def _check(self) -> None:
        """The work of an idle partition."""
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        await self._in_order.check()
        if now_s - self._worked_s >= QUIET_S:
            await self._pass_markers()

    async def _settle(self, jobs: Sequence[Job], next_offset: int, records: Mapping[int, Record]) -> None:
        """Claim, call, mark, and commit one run up to `next_offset`; `records` are those of the requests, by offset.

        Raises DistrustedError after the commit, if Redis failed.
        """
        fresh = [job for job in jobs if job.stored or self._is_new(job, records[job.sequence])]
        EFFECTS_REPEATED.inc(len(jobs) - len(fresh))
        decided, distrusted = await self._decide(fresh)
        requests = [job for job in jobs if not job.stored]
        risk = self._risk_after(requests, decided, next_offset)
        try:
            await self._scope.begin()
            self._write(decided)
            self._pass(len(requests), next_offset, risk, told=distrusted is None)
            source = Coordinates(self._topic, self._partition, max(job.sequence for job in jobs)).encode()
            await self._scope.commit({self._own: next_offset}, lambda *_: ((SOURCE, source),))
        except AbortableError:
            stored = [job.effect_id for job in jobs if job.stored]
            self._risk = self._risk.joined(len(requests), next_offset, stored)
            raise
        self._risk = risk
        self._count(decided, len(requests))
        if distrusted is not None:
            raise distrusted

    def _is_new(self, job: Job, record: Record) -> bool:
        """Whether a request is no repeat. A person's decision is made from a result, and comes in any order."""
        if job.action is None and not self._own.admit(record, job.effect_id):
            return False
        return self._waiting.get(job.effect_id) is None

    def _write(self, decided: Iterable[Done | Later | Void]) -> None:
        outputs: list[Output] = []
        for decision in decided:
            effect_id = decision.job.effect_id
            if isinstance(decision, Later):
                self._waiting.put(effect_id, decision.waiting())
                continue
            self._waiting.remove(effect_id)
            if isinstance(decision, Done):
                outputs += outputs_of(decision, self._partition)
        self._scope.append(self._own, outputs)

    def _risk_after(self, requests: Sequence[Job], decided: Iterable[Done | Later | Void], next_offset: int) -> Risk:
        """The risk once this is committed: Kafka then knows of what was claimed, but not of what was not."""
        unclaimed = {d.job.effect_id for d in decided if isinstance(d, Later) and not d.claimed}
        settled = {decision.job.effect_id for decision in decided} - unclaimed
        risky = {job.effect_id for job in requests[: self._risk.left] if job.sequence < self._risk.until}
        return self._risk.passed(len(requests), next_offset, settled, risky & unclaimed)

    def _count(self, decided: Iterable[Done | Later | Void], passed: int) -> None:
        for decision in decided:
            if isinstance(decision, Done) and decision.known:
                EFFECTS_REPEATED.inc()
            elif isinstance(decision, Void):
                log.warning(
                    "decision void", extra={"effect_id": decision.job.effect_id, "revision": decision.job.revision}
                )
            elif isinstance(decision, Done):
                EFFECTS.labels(decision.job.request.kind, decision.result.state).inc()
        metrics.RECORDS_CONSUMED.labels(self._topic).inc(passed)

    async def _decide(self, jobs: Sequence[Job]) -> tuple[list[Done | Later | Void], DistrustedError | None]:
        """The decision for each effect, and why Redis could not be asked to mark it."""
        asked_s = time.monotonic()
        decided, claimed = await self._claim(jobs)
        self._scope.producer.reach(crash.AFTER_CLAIM)
        asking = Asking(self._in_order)
        until = Until(
            asked_s + self._outbox.lease_s - self._outbox.call_timeout_s,
            self._stopping,
            asking.begin,
            asking.tell,
            self._scope.producer.reach,
        )
        decided += await self._calls.run(claimed, until)
        decided = await asking.mark(decided)
        if asking.fenced is not None:
            raise asking.fenced
        if asking.distrusted is None:
            self._scope.producer.reach(crash.AFTER_MARK)
        return decided, asking.distrusted

    async def _claim(self, jobs: Sequence[Job]) -> tuple[list[Done | Later | Void], list[Claimed]]:
        """Claim what may be called; what must wait for a destination or for an earlier effect is not claimed."""
        decided: list[Done | Later | Void] = []
        wanting: list[Job] = []
        blocked: dict[tuple[str, str], int] = {}
        for job in jobs:
            later = self._put_off(job, blocked)
            if later is None:
                wanting.append(job)
            else:
                decided.append(later)
        if not wanting:
            return decided, []
        claims = await self._in_order.claim([wanted(job, self._policy) for job in wanting])
        claimed: list[Claimed] = []
        now = now_ms()
        for job, claim in zip(wanting, claims, strict=True):
            decision = after_claim(job, claim, self._policy, now)
            if isinstance(decision, Call):
                item = Claimed(job, decision, claim.status)
                if job.chain in blocked:
                    decided.append(item.put_off(blocked[job.chain], EARLIER))
                else:
                    claimed.append(item)
                continue
            if isinstance(decision, Later) and job.chain is not None:
                blocked[job.chain] = decision.not_before_ms
            decided.append(decision)
        return decided, claimed

    def _put_off(self, job: Job, blocked: dict[tuple[str, str], int]) -> Later | None:
        """Whether the job must wait before it is even claimed; note in `blocked` until when its chain waits."""
        if job.action in {ResolutionAction.CONFIRM, ResolutionAction.ABANDON}:
            return None
        chain, now = job.chain, now_ms()
        if chain is not None and not job.stored:
            behind = self._waiting.behind(job.request)
            until_ms = behind.not_before_ms if behind is not None else blocked.get(chain)
            if until_ms is not None:
                blocked[chain] = until_ms
                return Later(job, until_ms, release=False, detail=EARLIER, claimed=False)
        wait_s = 0.0 if job.expired(self._policy, now) else self._calls.wait_s(job.request)
        if wait_s <= 0:
            return None
        until_ms = now + int(wait_s * 1000) + 1
        if chain is not None:
            blocked[chain] = until_ms
        return Later(job, until_ms, release=False, detail=LEFT_ALONE, claimed=False)
