"""Calls through a fake sink under a fake clock, for the pure tests of the outbox's calls."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from services.outbox.dispatch import Calls
from services.outbox.domain import Call, Done, Job, Later, Policy
from services.outbox.endpoints import Endpoints
from services.outbox.flights import Claimed, Flight, Until
from services.outbox.lanes import Lanes, lane_name
from services.outbox.marks import Status
from services.outbox.outcomes import Delivered, Outcome
from shared.events.effects import Channel, EffectRequest
from shared.events.endpoints import Endpoint
from tests.sinks.effects import effect

FAILURES_MAX, OPEN_S = 3, 10.0
POLICY = Policy(1000, 60_000, 600_000, frozenset())
WEBHOOK = "https://example.org/hook"


@dataclass
class Clock:
    """A fake of the module `time`."""

    now_s: float = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    @property
    def now_ms(self) -> int:
        return int(self.now_s * 1000)


@dataclass
class FakeSink:
    """A sink with set answers, after some turns of the loop."""

    answer: Callable[[int], Outcome] = lambda _: Delivered()
    takes_keys: bool = True
    calls_max: int = 1000
    during: Callable[[], None] = lambda: None
    called: list[int] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    running_max: int = 0
    wait: dict[int, asyncio.Event] = field(default_factory=dict)  # by number, before its answer

    async def deliver(self, request: EffectRequest) -> Outcome:
        number = int(request.effect_id, 16)
        self.called.append(number)
        self.running.add(number)
        self.running_max = max(self.running_max, len(self.running))
        for _ in range(5 + number % 3):
            await asyncio.sleep(0)
        if number in self.wait:
            await self.wait[number].wait()
        self.during()
        self.running.remove(number)
        return self.answer(number)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close nothing."""


@dataclass
class Rig:
    """Calls through one fake sink for webhooks.

    Attributes:
        reached: crash points that were passed.
        begun, marked: effects whose calls were begun, and that were marked at once, in their order.
        overtaken: why no call may be begun any more; None while one may.
    """

    clock: Clock
    sink: FakeSink
    lanes: Lanes
    endpoints: dict[str, Endpoint]
    calls: Calls
    closing: asyncio.Event
    reached: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    marked: list[str] = field(default_factory=list)
    overtaken: str | None = None
    _turn: asyncio.Event = field(default_factory=asyncio.Event)

    async def begin(self, effect_id: str) -> str | None:
        self.begun.append(effect_id)
        return self.overtaken

    async def mark(self, done: Done) -> None:
        self.marked.append(done.job.effect_id)

    def until(self, lease_s: float = 60.0) -> Until:
        return Until(
            self.clock.now_s + lease_s,
            self.closing,
            self.begin,
            self.mark,
            self.reached.append,
            lambda _: self._turn.set(),
        )

    def start(self, claimed: Sequence[Claimed], lease_s: float = 60.0) -> list[Flight]:
        """Start calls whether their lanes have room or not, those of a chain one after the other."""
        until, chains, flights = self.until(lease_s), dict[tuple[str, str], Flight](), list[Flight]()
        for item in claimed:
            request = item.job.request
            lane = None
            if request.destination.startswith("http"):
                lane = self.lanes.lane(lane_name(request.destination), self.sink.calls_max)
                lane.claimed += 1
            flight = Flight(item.job, until, claimed=item, lane=lane)
            chain = item.job.chain
            self.calls.start(flight, None if chain is None else chains.get(chain))
            if chain is not None:
                chains[chain] = flight
            flights.append(flight)
        return flights

    async def ends(self, flights: Sequence[Flight]) -> None:
        """Wait until all of these have a decision."""
        while any(flight.decision is None for flight in flights):
            self._turn.clear()
            await self._turn.wait()

    async def run(self, claimed: Sequence[Claimed], lease_s: float = 60.0) -> list[Done | Later]:
        """Make all calls, and return the decisions in the order of the requests."""
        flights = self.start(claimed, lease_s)
        await self.ends(flights)
        decided = [flight.decision for flight in flights if isinstance(flight.decision, Done | Later)]
        assert len(decided) == len(flights)
        return sorted(decided, key=lambda decision: decision.job.sequence)


def rig(clock: Clock, sink: FakeSink, calls_max: int = 1) -> Rig:
    lanes = Lanes(calls_max, 1000, FAILURES_MAX, OPEN_S)
    endpoints: dict[str, Endpoint] = {}
    calls = Calls({Channel.WEBHOOK: sink}, lanes, POLICY, Endpoints(endpoints, 0))
    return Rig(clock, sink, lanes, endpoints, calls, asyncio.Event())


def claimed(clock: Clock, number: int, status: Status = Status.NEW, **changes: Any) -> Claimed:
    """An effect before its first call; its number is its place in effects.requests."""
    request = effect(number, changes.pop("destination", WEBHOOK), **changes)
    job = Job(request, b"effects.requests:0:1", b"payments.raw:0:0", number, takes_keys=True, first_ms=clock.now_ms)
    return Claimed(job, Call(replace(job, attempts=1)), status)


def put_off(decided: list[Done | Later], why: str) -> list[int]:
    """Numbers of the effects that were put off for this reason."""
    return [decision.job.sequence for decision in decided if isinstance(decision, Later) and decision.detail == why]


def states(decided: list[Done | Later]) -> list[str | None]:
    return [decision.result.state if isinstance(decision, Done) else None for decision in decided]
