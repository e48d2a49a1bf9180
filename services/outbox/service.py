"""The outbox's workload: requests in; calls, then results, waiting effects, dead letters and offset out.

A round claims effects in Redis and begins their calls, waits a little for quick ones, marks the outcomes that there are
in Redis, and only then opens one Kafka transaction with the results and the consumed offset. An open transaction never
waits for the outside, and a round never waits for its slowest call.

The offset passes a request when its effect is decided, was put aside, or is called by a destination that takes longer
than PATIENCE_S. In the last two cases effects.waiting has it, and its claim in Redis says whether a call was begun. So
whatever ends this owner, its successor knows:
- Redis has the claim: a destination with keys is called again with the same key, any other is in doubt once the lease
  has ended. A claim without a begun call binds no successor.
- Redis is lost as well: `Trust` bounds the requests behind the offset, and the waiting effects at the head of each
  lane, that may have been called. They are doubtful.

An aborted transaction loses no call: its flights stay here with their decisions, and are settled when the requests are
read again. Distrust, a stop and a failure let no further call begin, wait for the calls under way, which are bounded by
their timeout, and mark them. Distrust and a stop then commit what they can, also outcomes of requests that the offset
has not passed: read again, such a request is known by its mark or waits already.

Invariant: nothing is called unless Redis is trusted; what was called is committed even if Redis was lost meanwhile.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from msgspec.structs import replace

from services.outbox.claims import DistrustedError
from services.outbox.domain import Call, after_claim, resume, wanted
from services.outbox.flights import (
    EFFECTS_REPEATED,
    Claimed,
    Decided,
    Flight,
    Flights,
    Until,
    count,
    endpoint_output,
    now_ms,
    risk_after,
    written,
)
from services.outbox.intake import Entry, Wish, admit_half, job_of, plan
from services.outbox.trust import REDIS_DISTRUSTED, REDIS_TRUSTED, OutboxContext, TrustedWorker
from shared.eos import crash
from shared.eos.errors import AbortableError, EosError, FencedError
from shared.eos.records import Record
from shared.events.catalogue import EFFECTS_REQUESTS, EFFECTS_RESULTS
from shared.events.headers import SOURCE, Coordinates, oldest_origin_time_ms
from shared.kafka.runtime.partition_metrics import tell_latency
from shared.kafka.runtime.worker import Membership, Resource, WorkerPerPartition
from shared.telemetry import metrics

POLL_S = 0.2  # how long an idle round takes
HELD_S = 0.05  # the same while requests are held that a lane has no room for
ROUND_S = 0.05  # a round waits so long for calls in quick lanes, and PATIENCE_S if its inbox has no room meanwhile
SETTLE_S = 0.05  # from a commit to the next while calls are under way: it is to have more than one result
BACKLOG_S = 1.0  # the same while requests come faster than they are called, until most of the inbox is done
BACKLOG_DONE = 0.9  # the part of a full inbox that is most of it; the others are being called meanwhile
PATIENCE_S = 0.25  # a request waits so long for its call before it goes to effects.waiting


@dataclass(frozen=True, slots=True)
class Outbox:
    """The outbox's workload."""

    context: OutboxContext
    service: str = "outbox"
    topic: str = EFFECTS_REQUESTS
    resources: tuple[Resource, ...] = ()

    def workers(self, membership: Membership) -> WorkerPerPartition:
        """Return a worker for each partition: Redis orders claims by the epoch of each partition's producer."""
        return WorkerPerPartition(
            lambda partition: EffectWorker(self, self.context, partition, membership),
            self.context.settings.stop_deadline_s,
        )


class EffectWorker(TrustedWorker):
    """One partition of effects.requests, and its waiting effects."""

    def __init__(self, workload: Outbox, context: OutboxContext, partition: int, membership: Membership) -> None:
        super().__init__(workload, context, partition, membership)
        self._inbox: deque[Entry] = deque()  # requests from the committed offset on, `batch_max` of them at most
        self._flights = Flights(self._fetcher.wake)
        self._admits: Callable[[Record, str], bool] | None = None  # of the records behind the inbox
        self._worked_s = self._settled_s = 0.0

    def stop(self) -> None:
        super().stop()
        self._flights.signal()

    async def close(self) -> None:
        await self._calls.cancel(self._flights.under_way)
        await super().close()

    async def _work(self) -> None:
        """One round. No call is under way after an error."""
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
        except EosError:
            await self._end_calls()
            raise

    async def _round(self) -> None:
        self._calls.raise_if_failed()
        self._take_requests()
        wishes = self._wishes()
        if wishes:
            self._worked_s = time.monotonic()
            await self._claim(wishes)
        elif not self._inbox and not self._flights.by_id:
            await self._check(self._worked_s)
        await self._pause()
        if self._until_commit_s() <= 0:
            await self._commit_round()

    async def _commit_round(self) -> None:
        try:
            await self._settle()
        except AbortableError as error:
            self._inbox.clear()
            self._admits = None
            await self._rewind({self._own: self._own.next_offset}, error)

    def _take_requests(self) -> None:
        """Take requests from the fetcher."""
        if self._room <= 0:
            return
        if self._admits is None:
            self._admits = self._own.look_ahead()
        now = now_ms()
        for record in self._fetcher.take(self._own.target, self._room):
            number = len(self._inbox)
            doubtful = self._doubtful(number, record.offset)
            job = job_of(record, self._calls.takes_keys, now, doubtful=doubtful)
            if job.action is not None and self._at_risk(number, record.offset):
                job = replace(job, at_risk=True)
            entry = Entry(record, job)
            # A person's decision is made from a result, and comes in any order
            entry.repeated = job.action is None and not self._admits(record, job.effect_id)
            self._inbox.append(entry)

    def _wishes(self) -> list[Wish]:
        """What is to be claimed: waiting effects first, then requests, each with room in its lane."""
        room = min(self._outbox.batch_max, self._flights_max - len(self._flights.by_id))
        if room <= 0:
            return []
        calls, now = self._calls, now_ms()
        due_max = max(room // 2, 1) if self._inbox else room  # a backlog leaves requests of other lanes their part
        admit = admit_half(calls) if self._inbox else lambda _, waiting: calls.admit(waiting.request, waiting.first_ms)
        due = self._waiting.due(now, due_max, admit)
        wishes = [Wish(resume(waiting, calls.takes_keys(waiting.request)), given.lane) for waiting, given in due]
        return wishes + plan(self._inbox, room - len(wishes), calls, self._waiting, self._flights.by_id, now)

    async def _claim(self, wishes: Sequence[Wish]) -> None:
        """Claim effects, and begin their calls."""
        asked_s = time.monotonic()
        try:
            claims = await self._in_order.claim([wanted(wish.job, self._policy) for wish in wishes])
        except BaseException:
            for wish in wishes:
                self._calls.release(wish.lane)
            raise
        self._scope.producer.reach(crash.AFTER_CLAIM)
        until = Until(
            asked_s + self._outbox.lease_s - self._outbox.call_timeout_s,
            self._flights.closing,
            self._session.begin,
            self._session.mark_one,
            self._scope.producer.reach,
            self._flights.ended,
        )
        now = now_ms()
        for wish, claim in zip(wishes, claims, strict=True):
            decision = after_claim(wish.job, claim, self._policy, now)
            if isinstance(decision, Call):
                claimed = Claimed(wish.job, decision, claim.status)
                self._fly(wish, Flight(wish.job, until, claimed=claimed, lane=wish.lane))
            else:
                self._calls.release(wish.lane)
                self._fly(wish, Flight(wish.job, until, decision=decision))

    def _fly(self, wish: Wish, flight: Flight) -> None:
        if wish.entry is not None:
            wish.entry.flight = flight
        after = None if wish.after is None else wish.after.flight
        self._flights.add(flight, lambda flight: self._calls.start(flight, after))

    async def _pause(self) -> None:
        """Wait until there is something to do: for quick calls, else for the next commit's time, input, or an end."""
        flights = self._flights
        if flights.quick and not self._stopping.is_set():
            await flights.wait(ROUND_S if self._room > 0 else PATIENCE_S)
            flights.quick.clear()  # what is late is not waited for again
        elif self._is_settleable():
            left_s = self._until_commit_s()
            if left_s > 0:
                await self._idle(min(left_s, HELD_S))
        else:
            await self._idle(HELD_S if self._inbox else POLL_S)

    async def _idle(self, timeout_s: float) -> None:
        """Wait for a call's end, and for requests if any may be taken."""
        if self._room > 0:
            await self._input(timeout_s)
        elif not self._stopping.is_set():
            await self._flights.wait(timeout_s)

    @property
    def _room(self) -> int:
        """How many requests may be taken: none while too many effects wait."""
        return 0 if len(self._waiting) >= self._outbox.waiting_max else self._outbox.batch_max - len(self._inbox)

    def _until_commit_s(self) -> float:
        """Seconds until the next commit. What ends meanwhile shares its transaction, and new requests are claimed."""
        pause_s = SETTLE_S if self._flights.under_way else 0.0
        if self._room <= 0 and self._inbox:
            now_s = time.monotonic()
            done = sum(entry.is_settled(now_s, PATIENCE_S) for entry in self._inbox)
            pause_s = BACKLOG_S if done < BACKLOG_DONE * len(self._inbox) else 0.0
        return self._settled_s + pause_s - time.monotonic()

    def _is_settleable(self) -> bool:
        if self._inbox and self._inbox[0].is_settled(time.monotonic(), PATIENCE_S):
            return True
        return any(flight.decision is not None and flight.stored for flight in self._flights.by_id.values())

    async def _settle(self) -> None:
        """Mark and commit what has ended, and pass requests. Raises DistrustedError if Redis could not be asked."""
        now_s = time.monotonic()
        passing = list(takewhile(lambda entry: entry.is_settled(now_s, PATIENCE_S), self._inbox))
        entries = [entry.flight for entry in passing if entry.flight is not None]
        self._calls.withdraw(entries)  # of what is not decided, only a call that has begun goes on
        ended = [flight for flight in self._flights.by_id.values() if flight.stored and flight.decision is not None]
        unended = [flight for flight in entries if flight.decision is None]  # it may end from here on, for the next one
        decided = await self._mark([*ended, *(flight for flight in entries if flight.decision is not None)])
        if not passing and not decided:
            return
        next_offset = passing[-1].record.offset + 1 if passing else self._own.next_offset
        endings = [Decided(flight.job, flight.decision, flight.stored) for flight in decided if flight.decision]
        endings += [Decided(flight.job, flight.as_waiting(), stored=False) for flight in unended]
        admitted = [entry for entry in passing if self._is_new(entry)]
        endings += [Decided(entry.job, entry.later, stored=False) for entry in admitted if entry.later is not None]
        risk = risk_after(self._risk, [entry.job for entry in passing], endings, next_offset)
        await self._commit(endings, len(passing), next_offset)
        EFFECTS_REPEATED.inc(len(passing) - len(admitted))
        for _ in passing:
            self._inbox.popleft()
        for flight in unended:
            flight.stored = True
            self._waiting.take(flight.job.effect_id)
        self._flights.settled(decided)
        self._risk, self._aborts, self._settled_s = risk, 0, time.monotonic()
        count(endings)
        metrics.RECORDS_CONSUMED.labels(self._topic).inc(len(passing))
        tell_latency(oldest_origin_time_ms(entry.record.headers for entry in passing), EFFECTS_RESULTS)

    def _is_new(self, entry: Entry) -> bool:
        """Note the request's source in the transaction, and return whether it is no repeat."""
        if entry.job.action is None and not self._own.admit(entry.record, entry.job.effect_id):
            return False
        return not entry.repeated

    async def _mark(self, flights: Sequence[Flight]) -> list[Flight]:
        """Mark what is not marked yet. Raises DistrustedError if Redis failed; the decisions are still to be stored."""
        marking = [flight for flight in flights if not flight.marked]
        found = await self._session.mark([flight.decision for flight in marking if flight.decision is not None])
        for flight, decision in zip(marking, found, strict=True):
            flight.decision = decision
            flight.marked = self._session.distrusted is None
        if self._session.fenced is not None:
            raise self._session.fenced
        if self._session.distrusted is not None:
            raise self._session.distrusted
        if marking:
            self._scope.producer.reach(crash.AFTER_MARK)
        return list(flights)

    async def _commit(self, endings: Sequence[Decided], passed: int, next_offset: int) -> None:
        changes = self._endpoints.take_changes()
        try:
            await self._scope.begin()
            last = max([next_offset - 1] * bool(passed) + [ending.job.sequence for ending in endings])
            source = Coordinates(self._topic, self._partition, last).encode()
            outputs, unchanged = written(endings, self._waiting, self._partition)
            outputs += [endpoint_output(*change, self._outbox.partitions, source) for change in changes.items()]
            self._scope.append(self._own, outputs)
            self._pass(passed, next_offset)
            await self._scope.commit({self._own: next_offset}, lambda *_: ((SOURCE, source),))
        except BaseException:
            self._endpoints.give_back(changes)
            raise
        now = now_ms()
        for later in unchanged:
            self._waiting.give_back(later.job.effect_id, later.not_before_ms if later.not_before_ms > now else 0)

    async def _end_calls(self) -> None:
        """Begin no further call, wait for those under way, and mark them if Redis can still be asked."""
        self._flights.closing.set()
        self._calls.withdraw(self._flights.under_way)
        await self._flights.all_ended()
        with contextlib.suppress(DistrustedError, FencedError):
            await self._mark([flight for flight in self._flights.by_id.values() if flight.decision is not None])

    async def _let_go(self) -> None:
        """End all calls, and commit their outcomes with the note that none is under way."""
        if not self.tasks:
            return  # it was not taken over
        await self._end_calls()
        if self._session.fenced is not None:
            raise self._session.fenced
        if self._session.distrusted is None:
            await self._commit_round()
        endings = [Decided(one.job, one.decision, one.stored) for one in self._flights.by_id.values() if one.decision]
        outputs, _ = written(endings, self._waiting, self._partition)
        await self._note_end(outputs, all_marked=self._session.distrusted is None)
        self._flights.by_id.clear()
        count(endings)
