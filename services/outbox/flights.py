"""Claimed effects, each from its claim until its decision is committed: a flight. Its call may outlive its round.

At its end, a flight becomes records, counts and the risk that is left.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from services.outbox.domain import Call, Done, Job, Later, Superseded, give_up, not_called
from services.outbox.lanes import Lane
from services.outbox.marks import Risk, Status
from services.outbox.waiting import WaitingStore
from shared.eos.records import Output
from shared.events.catalogue import EFFECTS_DEAD_LETTER, EFFECTS_RESULTS, REFERENCE_ENDPOINTS
from shared.events.effects import EffectFailure, EffectKind, EffectState, encode_request, encode_result
from shared.events.endpoints import Endpoint, encode_endpoint
from shared.events.headers import DETAIL, ORIGIN, REASON, SERVICE, SOURCE
from shared.events.partitions import partition_for
from shared.telemetry import catalogue
from shared.telemetry.instruments import at_zero, counter

EARLIER = "an earlier one of its account is not done"
LEFT_ALONE = "its destination is left alone for a while"
UNDER_WAY = "its call is under way"
WITHDRAWN = "its destination is slow"

EFFECTS = counter(catalogue.EFFECTS)
at_zero(EFFECTS, [kind.value for kind in EffectKind], [state.value for state in EffectState])
EFFECTS_REPEATED = counter(catalogue.EFFECTS_REPEATED)

log = logging.getLogger(__name__)


def now_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


class Claimed(msgspec.Struct, frozen=True):
    """An effect that was claimed to be called."""

    job: Job  # as it was before it was claimed
    call: Call  # what was decided then
    status: Status  # of its claim

    def put_off(self, not_before_ms: int, why: str) -> Later:
        return not_called(self.job, self.call, self.status, not_before_ms, why)

    def give_up(self, failure: EffectFailure, detail: str) -> Done:
        return give_up(self.call, failure, detail, now_ms())


@dataclass(frozen=True, slots=True)
class Until:
    """The condition under which calls may begin, and the callbacks for their steps."""

    lease_s: float  # time.monotonic() from which on the lease would not cover a whole call
    closing: asyncio.Event  # set when no further call may begin
    begin: Callable[[str], Awaitable[str | None]]  # of a destination without keys; why there must be no call, or None
    mark: Callable[[Done], Awaitable[None]]  # marks such an effect at once: until then its call is in doubt
    reach: Callable[[str], None]  # passes a crash point, for tests
    ended: Callable[["Flight"], None]  # has its decision from now on

    def why_over(self) -> str | None:
        """Why no call may begin any more; None while one may."""
        if self.closing.is_set():
            return "the partition was let go"
        return "its claim's lease ran out" if time.monotonic() >= self.lease_s else None


class Flight:
    """A claimed effect until its decision is committed.

    Attributes:
        job: as it was before it was claimed.
        claimed: None if its claim decided it.
        decision: None until its call has ended.
        stored: it is in effects.waiting: the committed offset has passed it.
        marked: Redis has its decision.
        waited: a round waits for its end.
        begun_s: when it was claimed, monotonic.
    """

    __slots__ = (
        "after",
        "begun_s",
        "claimed",
        "decision",
        "job",
        "lane",
        "marked",
        "next",
        "stored",
        "task",
        "until",
        "waited",
    )

    def __init__(
        self,
        job: Job,
        until: Until,
        *,
        claimed: Claimed | None = None,
        lane: Lane | None = None,
        decision: Done | Later | Superseded | None = None,
    ) -> None:
        self.job = job
        self.until = until
        self.claimed = claimed
        self.lane = lane
        self.decision = decision
        self.stored = job.stored
        self.marked = False
        self.waited = False
        self.begun_s = time.monotonic()
        self.after: Flight | None = None  # of its chain, while that is not done
        self.next: list[Flight] = []  # of its chain, to be begun when it is done
        self.task: asyncio.Task[Done | Later] | None = None  # of its call, once it has begun

    def as_waiting(self) -> Later:
        """The record of effects.waiting while it is claimed: a successor finds the claim in Redis, or counts on it."""
        if self.claimed is None:
            raise AssertionError(f"{self.job.effect_id} was decided by its claim")
        return replace(self.claimed.put_off(now_ms(), UNDER_WAY), under_way=True)


class Flights:
    """The flights of a partition.

    Args:
        wake: called when a flight ended and no round waits for another.

    Attributes:
        by_id: by effect_id, until their decisions are committed.
        under_way: those without a decision.
        quick: of these, those that a round waits for.
        closing: set when no further call may begin.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.by_id: dict[str, Flight] = {}
        self.under_way: set[Flight] = set()
        self.quick: set[Flight] = set()
        self.closing = asyncio.Event()
        self._signal = asyncio.Event()

    def add(self, flight: Flight, start: Callable[[Flight], None]) -> None:
        """Add a flight, and have `start` begin its call unless its claim decided it."""
        self.by_id[flight.job.effect_id] = flight
        if flight.decision is None:
            self.under_way.add(flight)
            start(flight)
            if flight.waited and flight.decision is None:
                self.quick.add(flight)

    def ended(self, flight: Flight) -> None:
        """Take note of a flight's end."""
        self.under_way.discard(flight)
        self.quick.discard(flight)
        if not self.quick:
            self.signal()

    def signal(self) -> None:
        """End the present wait."""
        self._signal.set()
        self._wake()

    async def wait(self, timeout_s: float) -> None:
        """Wait for a signal, for `timeout_s` seconds at most."""
        self._signal.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._signal.wait()

    async def all_ended(self) -> None:
        """Wait for the calls under way, which are bounded in time."""
        while self.under_way:
            self.quick = set(self.under_way)
            self._signal.clear()
            await self._signal.wait()

    def settled(self, flights: Iterable[Flight]) -> None:
        """Forget flights whose decisions are committed."""
        for flight in flights:
            del self.by_id[flight.job.effect_id]


class Decided(NamedTuple):
    """What becomes of an effect in a transaction; `stored` if it is in effects.waiting."""

    job: Job
    decision: Done | Later | Superseded
    stored: bool


def endpoint_output(name: str, endpoint: Endpoint, partitions: int, source: bytes) -> Output:
    """The record of an endpoint's state."""
    partition = partition_for(name, partitions)
    return Output(REFERENCE_ENDPOINTS, partition, name.encode(), encode_endpoint(endpoint), ((SOURCE, source),))


def outputs_of(done: Done, partition: int) -> list[Output]:
    """The result, and a dead letter if the effect failed."""
    job, result = done.job, done.result
    headers = ((ORIGIN, job.origin), (SOURCE, job.source))
    outputs = [Output(EFFECTS_RESULTS, partition, result.effect_id.encode(), encode_result(result), headers)]
    if result.state == EffectState.FAILED:
        why = ((SERVICE, b"outbox"), (REASON, result.reason.encode()), (DETAIL, result.detail.encode()))
        key, value = job.request.account.encode(), encode_request(job.request)
        outputs.append(Output(EFFECTS_DEAD_LETTER, partition, key, value, (*headers, *why)))
    return outputs


def written(endings: Iterable[Decided], waiting: WaitingStore, partition: int) -> tuple[list[Output], list[Later]]:
    """Change the store; return the outputs, and what is stored already as it is, but for its time."""
    outputs: list[Output] = []
    unchanged: list[Later] = []
    for job, decision, stored in endings:
        if isinstance(decision, Later):
            if stored and decision.is_as_stored(waiting.get(job.effect_id)):
                unchanged.append(decision)
            else:
                waiting.put(job.effect_id, decision.waiting())
            continue
        waiting.remove(job.effect_id)
        if isinstance(decision, Done):
            outputs += outputs_of(decision, partition)
    return outputs, unchanged


def risk_after(risk: Risk, requests: Sequence[Job], endings: Sequence[Decided], next_offset: int) -> Risk:
    """The risk once this is committed: Kafka then knows of what was claimed, but not of what was not."""
    if not risk.left and not risk.waiting:
        return risk  # as nearly always
    ids = {ending.job.effect_id for ending in endings}
    unclaimed = {job.effect_id for job, later, _ in endings if isinstance(later, Later) and not later.claimed}
    risky = {job.effect_id for job in requests[: risk.left] if job.sequence < risk.until}
    return risk.passed(len(requests), next_offset, ids - unclaimed, risky & unclaimed)


def count(endings: Iterable[Decided]) -> None:
    """Count effects that are decided, and log void decisions."""
    decided: Counter[tuple[str, str]] = Counter()
    for job, decision, _ in endings:
        if isinstance(decision, Superseded):
            log.warning("decision void", extra={"effect_id": job.effect_id, "revision": job.revision})
        elif isinstance(decision, Done) and decision.known:
            EFFECTS_REPEATED.inc()
        elif isinstance(decision, Done):
            decided[job.request.kind, decision.result.state] += 1
    for labels, number in decided.items():
        EFFECTS.labels(*labels).inc(number)
