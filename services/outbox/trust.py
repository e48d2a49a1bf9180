"""Trust in Redis: established when a partition is taken over, and written down for the next owner.

Invariant: before the first call, Redis holds every committed result of the retention, and Kafka holds which incarnation
of Redis the claims are in. An owner that finds another incarnation knows that its predecessor's claims are lost with
the old one: effects that may have been under way then are doubtful.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
from redis.asyncio import Redis

from services.outbox.claims import Claims, ClaimSession, DistrustedError
from services.outbox.dispatch import Calls
from services.outbox.domain import Policy
from services.outbox.endpoints import Endpoints
from services.outbox.flights import now_ms
from services.outbox.limits import Capacity
from services.outbox.marks import Mark, Risk, left_of, mark_of
from services.outbox.waiting import WaitingStore
from shared.eos.records import Output
from shared.eos.store import Stores, Table
from shared.events.catalogue import EFFECTS_RESULTS, EFFECTS_WAITING
from shared.events.effects import TRUST_PREFIX, Channel, Trust, decode_result, decode_trust, encode_trust
from shared.kafka.client.access import Bootstrap, access
from shared.kafka.client.reader import end_offsets, partition_since
from shared.kafka.runtime.scope import TransactionScope, classified
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.worker import Membership, Worker, Workload
from shared.settings import OutboxSettings
from shared.telemetry import catalogue
from shared.telemetry.instruments import ReadGauge, Reading, counter, gauge

REDIS_RETRY_S = 0.5
CHECK_S = 1.0  # an idle partition asks this often whether Redis is still the one that it trusted
QUIET_S = 10.0  # without work for so long, it commits that only markers are left behind its offset
CLAIM_GENERATIONS = 3
"""What an owner claims at once is among so many times as many effects at the head of a lane: as many others may be held
by a predecessor's claims, and as many have come to the head when the one before them in their chain was done."""
_EPOCH_BITS = 16
_REDIS = "redis"

WAITING_COUNT = ReadGauge(catalogue.EFFECTS_WAITING)
WAITING_CHANNEL = ReadGauge(catalogue.EFFECTS_WAITING_CHANNEL)
REDIS_TRUSTED = gauge(catalogue.REDIS_TRUSTED)
REDIS_DISTRUSTED = counter(catalogue.REDIS_DISTRUSTED)
REDIS_REBUILT = counter(catalogue.REDIS_REBUILT)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OutboxContext:
    """What the partitions of an instance share."""

    settings: OutboxSettings
    redis: Redis
    calls: Calls
    policy: Policy
    endpoints: Endpoints
    installation: str  # its id, a part of every key in Redis
    capacity: Capacity  # how many effects Redis remembers, and for how long


class TrustedWorker(Worker):
    """A partition of effects.requests whose claims are in a trusted Redis."""

    skips_processed = False  # a request that is read again is recognised by its effect

    def __init__(self, workload: Workload, context: OutboxContext, partition: int, membership: Membership) -> None:
        self._outbox = context.settings
        self._flights_max = context.settings.batch_max + context.settings.calls_max  # claimed at once
        self._calls = context.calls
        self._policy = context.policy
        self._endpoints = context.endpoints
        self._waiting = WaitingStore()
        self._trust: Table[Trust] = Table(TRUST_PREFIX, encode_trust, decode_trust, lambda trust: trust)
        target = workload.topic, partition
        self._own = Task(workload.service, target, EFFECTS_WAITING, Stores(self._waiting, self._trust))
        scope = TransactionScope(
            workload.service,
            workload.topic,
            f"{workload.service}-{workload.topic}-{partition}",
            context.settings,
            membership.crash_points,
            membership.identity,
            version_max=1,  # claims are ordered by producer id and epoch, and the next producer id may be smaller
        )
        super().__init__(workload, membership, scope)
        self._partition = partition
        self._redis_missing = ""
        self._shared = context
        self._in_order: Claims  # from `_taken_over` on, as is the next
        self._session: ClaimSession
        self._risk = Risk()
        self._checked_s = 0.0

    @property
    def waits_for(self) -> str:
        return self._redis_missing or super().waits_for

    def _new_task(self, _: int) -> Task:
        return self._own

    async def _taken_over(self, task: Task) -> None:
        """Wait for a Redis that can be trusted. A partition without one is not ready, and sends nothing."""
        if task.shown is not None:
            task.shown.also(WAITING_COUNT.add(lambda: [((str(self._partition),), len(self._waiting))]))
            task.shown.also(WAITING_CHANNEL.add(self._by_channel))
        while True:
            try:
                await self._rely()
            except DistrustedError as error:
                REDIS_TRUSTED.set(0)
                if not self._redis_missing:
                    log.warning("no Redis to rely on", extra={**self._context(task), "reason": str(error)})
                self._redis_missing = str(error)
                await asyncio.sleep(REDIS_RETRY_S)
            else:
                self._redis_missing = ""
                REDIS_TRUSTED.set(1)
                return

    def _by_channel(self) -> list[Reading]:
        found = dict.fromkeys(Channel, 0)
        for lane, count in list(self._waiting.counts.items()):
            found[_channel_of(lane)] += count
        return [((str(self._partition), channel.value), count) for channel, count in found.items()]

    async def _rely(self) -> None:
        recorded = self._trust.get(_REDIS) or Trust("")
        self._in_order = self._enter()
        incarnation = await self._in_order.enter()
        lost = bool(recorded.incarnation) and incarnation != recorded.incarnation
        if self._in_order.outdated or incarnation is None or incarnation != recorded.incarnation or not recorded.told:
            incarnation = await self._in_order.rebuild(self._remembered())
            REDIS_REBUILT.inc()
        self._risk = await self._risk_of(recorded)
        bound = max(recorded.due_max, CLAIM_GENERATIONS * self._flights_max)
        noted = Trust(
            incarnation,
            True,
            max(recorded.at_risk, self._outbox.batch_max),
            -1,
            -1,
            recorded.doubt_left,
            recorded.doubt_until,
            bound if recorded.due_max or not self._risk.waiting else 0,
        )
        if lost:
            noted = self._doubt(noted)
        self._trust.put(_REDIS, noted)
        await self._commit_state()
        self._session = ClaimSession(self._in_order)
        log.info(
            "claims in order",
            extra={
                **self._context(self._own),
                "incarnation": incarnation,
                "rebuilt": incarnation != recorded.incarnation,
                "doubtful": noted.doubt_left,
            },
        )

    async def _risk_of(self, recorded: Trust) -> Risk:
        """What a predecessor may have called, according to its notes."""
        due_ms = now_ms() if recorded.due_ms < 0 else recorded.due_ms
        waiting = self._waiting.first(due_ms, recorded.due_max)
        until = recorded.until
        if until < 0:
            with classified():
                ends = await end_offsets(access(self._outbox), [self._topic])
            until = ends[self._own.target]
        return Risk(recorded.at_risk, until, waiting)

    def _doubt(self, noted: Trust) -> Trust:
        """The claims are lost: what was at risk is doubtful from now on, and the note says so."""
        risk, self._risk = self._risk, Risk()
        for effect_id in risk.waiting:
            waiting = self._waiting.get(effect_id)
            if waiting is not None:
                self._waiting.put(effect_id, msgspec.structs.replace(waiting, doubtful=True))
        return msgspec.structs.replace(
            noted, doubt_left=max(noted.doubt_left, risk.left), doubt_until=max(noted.doubt_until, risk.until)
        )

    def _enter(self) -> Claims:
        producer_id, epoch = self._scope.producer.epoch
        return Claims(
            self._shared.redis,
            self._partition,
            producer_id << _EPOCH_BITS | epoch,
            self._outbox.instance,
            installation=self._shared.installation,
            capacity=self._shared.capacity,
            lease_ms=int(self._outbox.lease_s * 1000),
            timeout_s=self._outbox.redis_timeout_s,
        )

    async def _remembered(self) -> AsyncIterator[tuple[str, Mark]]:
        """The committed results of the retention, once Kafka has confirmed that this producer is not fenced."""
        await self._commit_state()
        since_ms = now_ms() - self._shared.capacity.retention_ms
        with classified():
            async with aclosing(results_since(access(self._outbox), self._partition, since_ms)) as read:
                async for item in read:
                    yield item

    async def _commit_state(self) -> None:
        """Commit the state's changes at the present offset."""
        await self._scope.commit_alone(self._own, (), self._own.next_offset)

    def _doubtful(self, number: int, offset: int) -> bool:
        """Whether a request, `number` after the committed offset, may have been called without Redis knowing of it."""
        recorded = self._trust.get(_REDIS)
        return recorded is not None and number < recorded.doubt_left and offset < recorded.doubt_until

    def _at_risk(self, number: int, offset: int) -> bool:
        """Whether a predecessor may have marked the outcome of such a request, and not committed that."""
        return self._doubtful(number, offset) or (number < self._risk.left and offset < self._risk.until)

    def _pass(self, requests: int, next_offset: int) -> None:
        """Note in the open transaction that requests were passed."""
        recorded = self._trust.get(_REDIS) or Trust("")
        left = left_of(recorded.doubt_left, recorded.doubt_until, requests, next_offset)
        if left != recorded.doubt_left:
            self._trust.put(_REDIS, msgspec.structs.replace(recorded, doubt_left=left))

    async def _note_end(self, outputs: Sequence[Output], *, all_marked: bool) -> None:
        """Commit that none of this owner's calls is under way: a later loss of Redis makes none of them doubtful.

        Args:
            outputs: to be committed with it, as are changes of the waiting effects.
            all_marked: whether Redis has their marks. If not, it must be rebuilt.
        """
        recorded = self._trust.get(_REDIS)
        if recorded is not None and recorded.until < 0:
            due_ms = now_ms() if self._risk.waiting else 0
            left, until = self._risk.left, self._risk.until
            self._trust.put(
                _REDIS, msgspec.structs.replace(recorded, told=all_marked, at_risk=left, until=until, due_ms=due_ms)
            )
        await self._scope.commit_alone(self._own, outputs, self._own.next_offset)

    async def _check(self, worked_s: float) -> None:
        """The work of an idle partition, which had work at `worked_s` monotonic seconds."""
        now_s = time.monotonic()
        if now_s - self._checked_s < CHECK_S:
            return
        self._checked_s = now_s
        await self._in_order.check()
        if now_s - worked_s >= QUIET_S:
            await self._pass_markers()

    async def _pass_markers(self) -> None:
        """Commit the position if only markers are left behind the offset.

        Markers expire like records. An offset before one that has expired would look like requests that were lost.
        """
        position = self._fetcher.position(self._own.target)
        if position > self._own.next_offset:
            await self._scope.commit_alone(self._own, (), position)


async def results_since(
    bootstrap_servers: Bootstrap, partition: int, since_ms: int
) -> AsyncGenerator[tuple[str, Mark], None]:
    """The committed results of a partition from a time on, milliseconds since 1970 UTC; older ones may be among them.

    Raises KafkaUnavailableError: the cluster does not answer.
    """
    async with aclosing(partition_since(bootstrap_servers, EFFECTS_RESULTS, partition, since_ms)) as batches:
        async for records in batches:
            for record in records:
                result = decode_result(record.value or b"")
                yield result.effect_id, mark_of(result)


def _channel_of(lane: str) -> Channel:
    scheme = lane.partition(":")[0]
    if scheme in {"http", "https"}:
        return Channel.WEBHOOK
    return Channel.FILE if scheme == "file" else Channel.EMAIL
