"""One partition of the outbox in virtual time, with Kafka, Redis and sinks of a few lines each.

The worker, its lanes and its decisions are the outbox's own. An owner is a process of the virtual loop, so a kill ends
it between two calls, and nothing else. All that crosses the network takes NETWORK_S each way: a request is executed
and its answer lost if its owner dies in between.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self
from unittest import mock

from services.outbox import trust
from services.outbox.claims import Claims, DistrustedError
from services.outbox.dispatch import Calls
from services.outbox.domain import Policy
from services.outbox.endpoints import Endpoints
from services.outbox.flights import now_ms
from services.outbox.lanes import Lanes
from services.outbox.limits import Capacity
from services.outbox.marks import Claim, Mark, Mode, Status, Wanted, decode_mark, encode_mark
from services.outbox.outcomes import Delivered, Outcome, Retriable, Unknown
from services.outbox.service import EffectWorker, Outbox
from services.outbox.trust import OutboxContext
from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError, FatalError, FencedError, RejoinError
from shared.eos.progress import TransactionId
from shared.eos.records import Output, Record
from shared.eos.states import State
from shared.eos.store import Change
from shared.events.catalogue import EFFECTS_REQUESTS, EFFECTS_RESULTS, REFERENCE_ENDPOINTS
from shared.events.effects import (
    WAITING_PREFIX,
    Channel,
    EffectRequest,
    EffectResult,
    EffectState,
    RequestRecord,
    decode_result,
    encode_request,
)
from shared.events.endpoints import Endpoint, decode_endpoint
from shared.events.headers import ORIGIN, SOURCE, Headers
from shared.kafka.client.cluster import Target
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.transaction_requests import GroupMember
from shared.kafka.runtime.worker import Membership
from shared.settings import OutboxSettings
from tests.simulation.loop import Process, VirtualLoop, virtual_time

NETWORK_S = 0.0005
COMMIT_S = 0.008
CALL_TIMEOUT_S = 5.0
CAPACITY = Capacity(100.0, 1_000_000_000, 1)
_TARGET = (EFFECTS_REQUESTS, 0)


class Kafka:
    """One partition of each topic."""

    def __init__(self) -> None:
        self.requests: list[Record] = []
        self.committed = 0
        self.changelog: list[Change] = []
        self.results: list[Record] = []
        self.endpoints: dict[str, Endpoint] = {}
        self.epoch = 0
        self.aborting = 0  # so many commits are refused
        self.commits = 0
        self.arrived: Callable[[], None] = lambda: None

    def write(self, requests: Iterable[RequestRecord]) -> None:
        for request in requests:
            offset = len(self.requests)
            headers: Headers = ((ORIGIN, b"payments.raw:0:0"), (SOURCE, b"ledger.transfers:0:%d" % offset))
            value = encode_request(request)
            self.requests.append(Record(EFFECTS_REQUESTS, 0, offset, now_ms(), b"", value, headers))
        self.arrived()

    def last_results(self) -> dict[str, EffectResult]:
        found = (decode_result(record.value or b"") for record in self.results)
        return {result.effect_id: result for result in found}

    def waiting(self) -> set[bytes]:
        """Keys of the effects that wait."""
        last = dict(self.changelog)
        return {key for key, value in last.items() if key.startswith(WAITING_PREFIX) and value is not None}

    def puts(self) -> Counter[str]:
        """How often each effect was written to effects.waiting, without tombstones."""
        return Counter(
            key[len(WAITING_PREFIX) :].decode()
            for key, value in self.changelog
            if key.startswith(WAITING_PREFIX) and value is not None
        )


class _Producer:
    state = State.READY

    def __init__(self, epoch: int, points: CrashPoints) -> None:
        self.epoch = (7, epoch)
        self._points = points

    def reach(self, point: str) -> None:
        self._points.reach(point)


class _Scope:
    """Transactions on `Kafka`, as TransactionScope makes them."""

    waits_for = ""

    def __init__(self, kafka: Kafka, points: CrashPoints) -> None:
        kafka.epoch += 1
        self._kafka = kafka
        self.producer = _Producer(kafka.epoch, points)
        self._outputs: list[Output] = []
        self.context: dict[str, object] = {}

    async def begin(self) -> None:
        self._outputs = []

    def append(self, task: Task, outputs: Sequence[Output]) -> None:
        task.count(outputs)
        self._outputs += outputs

    async def commit(self, progress: Mapping[Task, int], headers: Callable[[Task, int], Headers]) -> None:
        [(task, next_offset)] = progress.items()
        task.begin().next_offset = next_offset
        changes = task.changes(headers(task, next_offset))
        task.note(TransactionId(*self.producer.epoch, now_ms()), now_ms())
        await asyncio.sleep(COMMIT_S / 2)
        kafka = self._kafka
        if self.producer.epoch[1] != kafka.epoch:
            raise FencedError("a newer epoch")
        if kafka.aborting:
            kafka.aborting -= 1
            raise AbortableError("refused")
        kafka.committed = next_offset
        kafka.commits += 1
        kafka.changelog += [(change.key or b"", change.value) for change in changes]
        for output in self._outputs:
            if output.topic == EFFECTS_RESULTS:
                kafka.results.append(
                    Record(output.topic, 0, len(kafka.results), now_ms(), output.key, output.value, output.headers)
                )
            elif output.topic == REFERENCE_ENDPOINTS:
                kafka.endpoints[(output.key or b"").decode()] = decode_endpoint(output.value or b"")
        await asyncio.sleep(COMMIT_S / 2)
        task.commit()

    async def commit_alone(self, task: Task, outputs: Sequence[Output], next_offset: int) -> None:
        task.drop_admitted()
        try:
            await self.begin()
            self.append(task, outputs)
            await self.commit({task: next_offset}, lambda *_: ())
        except AbortableError as error:
            task.rollback()
            raise RejoinError("refused") from error

    async def abort(self, tasks: Iterable[Task], _cause: str = "") -> None:
        for task in tasks:
            task.rollback()

    async def close(self) -> None:
        """Nothing is open."""


class _Fetcher:
    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._position = 0
        self._woken = asyncio.Event()
        kafka.arrived = self.wake

    def add(self, _target: Target, offset: int) -> None:
        self._position = offset

    def remove(self, target: Target) -> None:
        """Keep it: it is not asked again."""

    def take(self, _target: Target, records_max: int) -> list[Record]:
        found = self._kafka.requests[self._position : self._position + records_max]
        self._position += len(found)
        return found

    def position(self, _target: Target) -> int:
        return self._position

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        if self._position == len(self._kafka.requests):
            try:
                async with asyncio.timeout(timeout_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
        self._woken.clear()

    async def stop(self) -> None:
        """Nothing runs."""


@dataclass
class _Held:
    token: int
    begun: bool
    until_ms: int
    base: int
    resends: int


class Redis:
    """What Redis holds of one partition."""

    def __init__(self) -> None:
        self.entries: dict[str, _Held | Mark] = {}
        self.incarnation = ""
        self.token = 0

    def flush(self) -> None:
        self.entries.clear()
        self.incarnation = ""


class ModelClaims(Claims):
    """`Claims` on `Redis`: what the scripts do, in a few lines."""

    def __init__(self, redis: Redis, token: int, lease_ms: int) -> None:
        self._server = redis
        self._token = token
        self._lease_ms = lease_ms
        self._incarnation = ""
        self.holder = str(token)
        self.partition = 0
        self.outdated = False

    async def _asked(self) -> None:
        await asyncio.sleep(NETWORK_S)
        if self._server.token > self._token:
            raise FencedError("another owner entered")
        if self._server.incarnation != self._incarnation:
            raise DistrustedError("it was flushed")

    async def enter(self) -> str | None:
        await asyncio.sleep(NETWORK_S)
        self._server.token = self._token
        self._incarnation = self._server.incarnation
        return self._incarnation or None

    async def check(self) -> None:
        await self._asked()

    async def rebuild(self, marks: Iterable[tuple[str, Mark]] | AsyncIterable[tuple[str, Mark]]) -> str:
        assert isinstance(marks, AsyncIterable)
        async for effect_id, mark in marks:
            entry = self._server.entries.get(effect_id)
            base = entry.base if isinstance(entry, _Held) else -1
            marked = entry.revision if isinstance(entry, Mark) else -1
            if mark.revision > base and mark.revision >= marked:
                self._server.entries[effect_id] = mark
        self._incarnation = self._server.incarnation = f"{self._token}-{now_ms()}"
        return self._incarnation

    async def claim(self, wanted: Sequence[Wanted]) -> list[Claim]:
        await self._asked()
        found = [self._given(wish) for wish in wanted]
        await asyncio.sleep(NETWORK_S)
        return found

    def _given(self, wish: Wanted) -> Claim:
        entries, keyless, now = self._server.entries, wish.mode is Mode.KEYLESS, now_ms()
        entry = entries.get(wish.effect_id)
        new = _Held(self._token, not keyless, now + self._lease_ms, wish.reopen_revision, wish.resends)
        if isinstance(entry, _Held):
            idle = not entry.begun and keyless and entry.token != self._token
            if not idle and str(entry.token) != wish.void:
                if keyless and entry.token != self._token and entry.until_ms > now:
                    return Claim(Status.HELD, lease_left_ms=entry.until_ms - now)
                resends = wish.resends if entry.token == self._token else max(wish.resends, entry.resends)
                again = replace(new, begun=True, base=max(new.base, entry.base))
                entries[wish.effect_id] = replace(again, resends=resends + wish.resend_if_again)
                return Claim(Status.RETAKEN, resends=resends)
        elif isinstance(entry, Mark):
            if wish.reopen_revision != entry.revision or entry.state == EffectState.SENT:
                return Claim(Status.KNOWN, mark=entry)
            resends = max(wish.resends, entry.resends) + wish.resend_if_again
            entries[wish.effect_id] = replace(new, begun=True, resends=resends)
            return Claim(Status.REOPENED, mark=entry)
        entries[wish.effect_id] = replace(new, resends=wish.resends + wish.resend_if_new)
        return Claim(Status.NEW)

    async def begin(self, effect_id: str) -> None:
        await self._asked()
        self._own(effect_id).begun = True
        await asyncio.sleep(NETWORK_S)

    async def mark(self, marks: Sequence[tuple[str, Mark | None]]) -> None:
        await self._asked()
        for effect_id, _ in marks:
            self._own(effect_id)
        for effect_id, mark in marks:
            if mark is None:
                del self._server.entries[effect_id]
            else:
                self._server.entries[effect_id] = decode_mark(encode_mark(mark))
        await asyncio.sleep(NETWORK_S)

    def _own(self, effect_id: str) -> _Held:
        entry = self._server.entries.get(effect_id)
        if not isinstance(entry, _Held) or entry.token != self._token:
            raise DistrustedError("a claim is gone")
        return entry


Answer = Callable[[EffectRequest], Awaitable[Outcome]]


def accepting(seconds: float = 0.002) -> Answer:
    """A destination that accepts everything after so many seconds."""

    async def answer(_: EffectRequest) -> Outcome:
        await asyncio.sleep(seconds)
        return Delivered("200 OK")

    return answer


def dead(seconds: float = CALL_TIMEOUT_S / 2) -> Answer:
    """A destination that takes no connection within so many seconds."""

    async def answer(_: EffectRequest) -> Outcome:
        await asyncio.sleep(seconds)
        return Retriable("no connection")

    return answer


@dataclass
class Sites:
    """A sink for all destinations of a channel, and its journal."""

    takes_keys: bool
    calls_max: int
    answers: dict[str, Answer] = field(default_factory=dict)  # by destination
    journal: list[tuple[float, str, str]] = field(default_factory=list)  # loop time, destination, effect_id
    made: Counter[str] = field(default_factory=Counter)
    under_way: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    under_way_max: Counter[str] = field(default_factory=Counter)

    async def deliver(self, request: EffectRequest) -> Outcome:
        destination = request.destination
        self.calls[request.effect_id] += 1
        self.under_way[destination] += 1
        self.under_way_max[destination] = max(self.under_way_max[destination], self.under_way[destination])
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                outcome = await self.answers.get(destination, accepting())(request)
        except TimeoutError:
            return Unknown("no answer")
        finally:
            self.under_way[destination] -= 1
        if isinstance(outcome, Delivered):
            if not (self.takes_keys and self.made[request.effect_id]):
                self.journal.append((asyncio.get_running_loop().time(), destination, request.effect_id))
                self.made[request.effect_id] += 1
            await asyncio.sleep(NETWORK_S)
        return outcome

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is open."""


class _Worker(EffectWorker):
    def __init__(self, world: "Rounds", outbox: Outbox, membership: Membership) -> None:
        super().__init__(outbox, outbox.context, 0, membership)
        self._world = world
        fetcher: Any = _Fetcher(world.kafka)
        scope: Any = _Scope(world.kafka, membership.crash_points)
        self._fetcher, self._scope = fetcher, scope
        self._flights._wake = fetcher.wake

    def _enter(self) -> Claims:
        return ModelClaims(self._world.redis, self._scope.producer.epoch[1], int(self._outbox.lease_s * 1000))

    async def take_over(self) -> None:
        kafka = self._world.kafka
        for key, value in kafka.changelog:
            self._own.store.restore(key, value)
        self._own.next_offset = kafka.committed
        await self._taken_over(self._own)
        self._fetcher.add(_TARGET, kafka.committed)
        self.tasks[0] = self._own

    async def close(self) -> None:
        await self._calls.cancel(self._flights.under_way)


class Rounds:
    """The world of one partition.

    Attributes:
        webhook, email: the sinks.
        worker: the present owner's.
    """

    def __init__(self, loop: VirtualLoop, **settings: Any) -> None:
        given = {"calls_max": 64, "batch_max": 200, "retry_first_s": 1.0, "circuit_open_s": 10.0, "lease_s": 30.0}
        self.settings = OutboxSettings(
            bootstrap_servers="nowhere:9092", redis_url="redis://nowhere:1", **given | settings
        )
        self.loop = loop
        self.kafka, self.redis = Kafka(), Redis()
        self.webhook, self.email = Sites(True, 64), Sites(False, 8)
        self.policy = Policy(
            int(self.settings.retry_first_s * 1000),
            int(self.settings.retry_max_s * 1000),
            int(self.settings.retry_deadline_s * 1000),
            frozenset(),
        )
        self.worker: _Worker | None = None
        self.process: Process | None = None
        self.owners = 0
        self._running: asyncio.Task[None] | None = None

    def start(self, crash_point: str = "") -> None:
        """Start an owner; the former one must be dead or have stopped."""
        self.owners += 1
        process = self.process = Process(self.loop, f"owner-{self.owners}")
        points = CrashPoints(crash_point, lambda _: process.kill())
        self._running = process.start(self._own(points))

    @property
    def is_running(self) -> bool:
        """Whether the owner works: it was not killed, and has not ended."""
        alive = self.process is not None and self.process.alive
        return alive and self._running is not None and not self._running.done()

    async def stop(self) -> None:
        """Stop the owner, and wait until it has, or died of a crash point."""
        while self.is_running:
            if self.worker is not None:
                self.worker.stop()  # also one that takes over again meanwhile
            await asyncio.sleep(0.01)

    async def _own(self, points: CrashPoints) -> None:
        settings = self.settings
        membership = Membership(settings, lambda: GroupMember("outbox"), lambda: None, points)
        endpoints = Endpoints(self.kafka.endpoints, int(settings.disable_after_h * 3_600_000))
        lanes = Lanes(settings.calls_max, settings.lane_calls_max, settings.circuit_failures, settings.circuit_open_s)
        sinks = {Channel.WEBHOOK: self.webhook, Channel.EMAIL: self.email}
        calls = Calls(sinks, lanes, self.policy, endpoints)
        redis: Any = None
        outbox = Outbox(OutboxContext(settings, redis, calls, self.policy, endpoints, "", CAPACITY))
        while True:
            worker = self.worker = _Worker(self, outbox, membership)
            try:
                await worker.take_over()
                await worker.run()
            except RejoinError:
                await asyncio.sleep(0.5)
            except FatalError:
                return  # after several aborts in a row: the service ends
            else:
                return
            finally:
                await worker.close()

    async def settled(self, requests: Sequence[EffectRequest], timeout_s: float = 3600.0) -> dict[str, EffectResult]:
        """Wait, in virtual time, until each of these has a result; TimeoutError after `timeout_s`."""
        wanted = {request.effect_id for request in requests}
        async with asyncio.timeout(timeout_s):
            while True:
                results = self.kafka.last_results()
                if wanted <= results.keys():
                    return {effect_id: results[effect_id] for effect_id in wanted}
                await asyncio.sleep(0.1)


@contextmanager
def rounds(**settings: Any) -> Iterator[Rounds]:
    """A world in virtual time; run its coroutines on `loop`."""
    with virtual_time() as loop:
        world = Rounds(loop, **settings)

        async def ends(*_: object) -> dict[Target, int]:
            return {_TARGET: len(world.kafka.requests)}

        async def results(*_: object) -> AsyncIterator[list[Record]]:
            yield list(world.kafka.results)

        with mock.patch.object(trust, "end_offsets", ends), mock.patch.object(trust, "partition_since", results):
            yield world


def assert_i11(world: Rounds, requests: Sequence[EffectRequest], results: Mapping[str, EffectResult]) -> Counter[str]:
    """Check that each request has one distinct effect, or a result that reports it; return the results by state."""
    return judge(world.webhook.made + world.email.made, requests, results)


def judge(made: Counter[str], requests: Sequence[EffectRequest], results: Mapping[str, EffectResult]) -> Counter[str]:
    """The same, with how often each effect was made."""
    for request in requests:
        result = results[request.effect_id]
        count = made[request.effect_id]
        assert count <= 1 + result.resends, f"{request.effect_id} was made {count} times"
        assert not (result.state == EffectState.SENT and not count), f"{request.effect_id} was not made"
        assert not (result.state == EffectState.FAILED and count), f"{request.effect_id} was made"
    return Counter(results[request.effect_id].state for request in requests)
