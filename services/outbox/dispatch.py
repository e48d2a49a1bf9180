"""Calls to the outside: bounded, behind circuit breakers, in order where that was asked for.

Invariant: a call begins only while its claim's lease covers it, and none once the partition is to be released. Of the
effects of one chain, none is called while an earlier one is not done.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from services.outbox.domain import Call, Done, Job, Later, Policy, after_call, not_called
from services.outbox.marks import Status
from services.outbox.outcomes import Delivered, Outcome, Refused, Sink
from shared.eos import crash
from shared.events.effects import Channel, EffectRequest, channel_of
from shared.telemetry import catalogue
from shared.telemetry.instruments import counter, gauge, histogram

CIRCUITS_MAX = 10_000  # failing destinations remembered; with more, the one known longest is forgotten
MAILTO = "mailto:"
EARLIER = "an earlier one of its account is not done"
LEFT_ALONE = "its destination is left alone for a while"

EFFECT_CALLS = counter(catalogue.EFFECT_CALLS)
EFFECT_CALL_SECONDS = histogram(catalogue.EFFECT_CALL_SECONDS)
EFFECTS_RESENT = counter(catalogue.EFFECTS_RESENT)
CIRCUITS_OPEN = gauge(catalogue.CIRCUITS_OPEN)


def now_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Circuit:
    failures: int = 0
    opens_at_s: float = 0.0


class Circuits:
    """A circuit breaker for each name. Pure: seconds come in as arguments.

    Closed, all calls go through. After `failures_max` failures in a row it opens, and for `open_s` seconds no call goes
    through. Then one trial call does, and the others wait up to `open_s` seconds for its result.
    """

    def __init__(self, failures_max: int, open_s: float) -> None:
        self._failures_max = failures_max
        self._open_s = open_s
        self._circuits: dict[str, _Circuit] = {}

    def wait_s(self, name: str, now_s: float) -> float:
        """Seconds until this destination may be called; 0 is now."""
        circuit = self._circuits.get(name)
        return 0.0 if circuit is None else max(circuit.opens_at_s - now_s, 0.0)

    def enter_s(self, name: str, now_s: float) -> float:
        """As `wait_s`, but the first caller takes a trial call that is due, and the others wait."""
        circuit = self._circuits.get(name)
        if circuit is None:
            return 0.0
        wait_s = max(circuit.opens_at_s - now_s, 0.0)
        if wait_s == 0 and circuit.failures >= self._failures_max:
            circuit.opens_at_s = now_s + self._open_s
        return wait_s

    def succeeded(self, name: str) -> None:
        """The destination answered, whatever it said."""
        self._circuits.pop(name, None)

    def failed(self, name: str, now_s: float, retry_after_s: float | None = None) -> None:
        """The destination did not accept a call, at `now_s` monotonic seconds, and may have asked for a pause."""
        circuit = self._circuits.get(name)
        if circuit is None:
            if len(self._circuits) >= CIRCUITS_MAX:
                del self._circuits[next(iter(self._circuits))]
            circuit = self._circuits[name] = _Circuit()
        circuit.failures += 1
        if circuit.failures >= self._failures_max:
            circuit.opens_at_s = max(circuit.opens_at_s, now_s + self._open_s)
        if retry_after_s is not None:
            circuit.opens_at_s = max(circuit.opens_at_s, now_s + retry_after_s)

    def open_count(self, now_s: float) -> int:
        return sum(circuit.opens_at_s > now_s for circuit in self._circuits.values())


@dataclass(frozen=True, slots=True)
class Claimed:
    """An effect that is to be called."""

    job: Job  # as it was before it was claimed
    call: Call  # what was decided then
    status: Status  # of its claim

    def put_off(self, not_before_ms: int, why: str) -> Later:
        return not_called(self.job, self.call, self.status, not_before_ms, why)


@dataclass(frozen=True, slots=True)
class Until:
    """The condition under which calls may begin."""

    lease_s: float  # time.monotonic() from which on the lease would not cover a whole call
    stopping: asyncio.Event  # set when the partition is to be released
    begin: Callable[[str], Awaitable[str | None]]  # of a destination without keys; why there must be no call, or None
    tell: Callable[[Done], Awaitable[None]]  # marks such an effect at once: until then its call is in doubt
    reach: Callable[[str], None]  # passes a crash point, for tests

    def why_over(self) -> str | None:
        """Why no call may begin any more; None while one may."""
        if self.stopping.is_set():
            return "the partition was let go"
        return "its claim's lease ran out" if time.monotonic() >= self.lease_s else None


class Calls:
    """Calls through all sinks, `calls_max` at once; the partitions of an instance share one."""

    def __init__(self, sinks: Mapping[Channel, Sink], circuits: Circuits, policy: Policy, calls_max: int) -> None:
        self._sinks = sinks
        self._circuits = circuits
        self._policy = policy
        self._places = asyncio.Semaphore(calls_max)
        # A call that has begun is in doubt when its owner dies, so none begins to wait within its sink
        self._lanes = {id(sink): asyncio.Semaphore(sink.calls_max) for sink in sinks.values()}
        self._chance = random.SystemRandom()

    def takes_keys(self, request: EffectRequest) -> bool:
        """Whether the request's destination recognises effects by their ids; also while its channel has no settings."""
        sink = self._sink(request)
        return not request.destination.startswith(MAILTO) if isinstance(sink, str) else sink.takes_keys

    def wait_s(self, request: EffectRequest) -> float:
        """Seconds until the request's destination may be called."""
        sink = self._sink(request)
        if isinstance(sink, str):
            return 0.0
        return self._circuits.wait_s(sink.circuit(request.destination), time.monotonic())

    async def run(self, claimed: Iterable[Claimed], until: Until) -> list[Done | Later]:
        """Make all calls that may be made; return when each has been decided."""
        alone: list[list[Claimed]] = []
        chains: dict[tuple[str, str], list[Claimed]] = {}
        for item in claimed:
            if item.job.chain is None:
                alone.append([item])
            else:
                chains.setdefault(item.job.chain, []).append(item)
        groups = [*alone, *(sorted(chain, key=lambda item: item.job.sequence) for chain in chains.values())]
        decided = await asyncio.gather(*(self._in_order(group, until) for group in groups))
        CIRCUITS_OPEN.set(self._circuits.open_count(time.monotonic()))
        return [decision for group in decided for decision in group]

    async def _in_order(self, group: list[Claimed], until: Until) -> list[Done | Later]:
        decided: list[Done | Later] = []
        blocked: Later | None = None
        for item in group:
            if blocked is not None:
                decided.append(item.put_off(blocked.not_before_ms, EARLIER))
                continue
            decision = await self._one(item, until)
            decided.append(decision)
            if isinstance(decision, Later):
                blocked = decision
        return decided

    async def _one(self, item: Claimed, until: Until) -> Done | Later:
        request = item.job.request
        sink = self._sink(request)
        if isinstance(sink, str):
            return self._decide(item, Refused(sink))
        circuit = sink.circuit(request.destination)
        async with self._lanes[id(sink)], self._places:
            over = until.why_over()
            if over is not None:
                return item.put_off(now_ms(), over)
            wait_s = self._circuits.enter_s(circuit, time.monotonic())
            # An expired effect gets its last try, even if its destination fails for others
            if wait_s > 0 and not item.job.expired(self._policy, now_ms()):
                return item.put_off(now_ms() + int(wait_s * 1000) + 1, LEFT_ALONE)
            refusal = None if sink.takes_keys else await until.begin(request.effect_id)
            if refusal is not None:
                return item.put_off(now_ms(), refusal)
            until.reach(crash.BEFORE_CALL)
            begun_s = time.monotonic()
            outcome = await sink.deliver(request)
            until.reach(crash.AFTER_CALL)
            self._observe(item, circuit, outcome, time.monotonic() - begun_s)
            decision = self._decide(item, outcome)
            if isinstance(decision, Done) and not sink.takes_keys:
                await until.tell(decision)
            return decision

    def _observe(self, item: Claimed, circuit: str, outcome: Outcome, taken_s: float) -> None:
        channel = channel_of(item.job.request.destination).value
        EFFECT_CALL_SECONDS.labels(channel).observe(taken_s)
        EFFECT_CALLS.labels(channel, type(outcome).__name__.lower()).inc()
        EFFECTS_RESENT.inc(item.call.resend)
        if isinstance(outcome, Delivered | Refused):
            self._circuits.succeeded(circuit)
        else:
            self._circuits.failed(circuit, time.monotonic(), outcome.retry_after_s)

    def _decide(self, item: Claimed, outcome: Outcome) -> Done | Later:
        return after_call(item.call.job, outcome, self._policy, now_ms(), self._chance.random())

    def _sink(self, request: EffectRequest) -> Sink | str:
        """The sink, or why there is none."""
        try:
            channel = channel_of(request.destination)
        except ValueError as error:
            return str(error)
        return self._sinks.get(channel) or f"the outbox has no settings for {channel.value}: see docs/settings.md"
