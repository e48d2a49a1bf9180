"""Calls through fake sinks: how many at once, in which order, and when none may begin any more."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

import pytest
from prometheus_client import REGISTRY

from services.outbox.calls import EARLIER, LEFT_ALONE, Calls, Claimed, Until
from services.outbox.circuit import Circuits
from services.outbox.domain import Call, Done, Job, Later, Policy
from services.outbox.marks import Status
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown
from shared.eos.crash import AFTER_CALL, BEFORE_CALL
from shared.events.effects import Channel, EffectRequest, EffectState
from tests.sinks.effects import effect

FAILURES_MAX, OPEN_S = 3, 10.0
POLICY = Policy(1000, 60_000, 600_000, frozenset())
WEBHOOK = "https://example.org/hook"


@dataclass
class Clock:
    """In the place of the module `time`."""

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
    """Answers as it is told, after some turns of the loop."""

    answer: Callable[[int], Outcome] = lambda _: Delivered()
    takes_keys: bool = True
    calls_max: int = 1000
    during: Callable[[], None] = lambda: None
    called: list[int] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    running_max: int = 0

    def circuit(self, destination: str) -> str:
        return destination.partition("?")[0]

    async def deliver(self, request: EffectRequest) -> Outcome:
        number = int(request.effect_id, 16)
        self.called.append(number)
        self.running.add(number)
        self.running_max = max(self.running_max, len(self.running))
        for _ in range(5 + number % 3):
            await asyncio.sleep(0)
        self.during()
        self.running.remove(number)
        return self.answer(number)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is open."""


@dataclass
class Rig:
    """Calls through one fake sink for webhooks.

    Attributes:
        reached: crash points that were passed.
        begun, told: effects whose calls were begun, and that were marked at once, in their order.
        overtaken: why no call may be begun any more; None while one may.
    """

    clock: Clock
    sink: FakeSink
    calls: Calls
    stopping: asyncio.Event
    reached: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    overtaken: str | None = None

    async def begin(self, effect_id: str) -> str | None:
        self.begun.append(effect_id)
        return self.overtaken

    async def tell(self, done: Done) -> None:
        self.told.append(done.job.effect_id)

    def until(self, lease_s: float = 60.0) -> Until:
        return Until(self.clock.now_s + lease_s, self.stopping, self.begin, self.tell, self.reached.append)

    async def run(self, claimed: Sequence[Claimed], lease_s: float = 60.0) -> list[Done | Later]:
        decided = await self.calls.run(claimed, self.until(lease_s))
        assert sorted(decision.job.effect_id for decision in decided) == sorted(c.job.effect_id for c in claimed)
        assert not self.sink.running
        return sorted(decided, key=lambda decision: decision.job.sequence)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("services.outbox.calls.time", clock)
    return clock


def rig(clock: Clock, sink: FakeSink, calls_max: int = 1) -> Rig:
    calls = Calls({Channel.WEBHOOK: sink}, Circuits(FAILURES_MAX, OPEN_S), POLICY, calls_max)
    return Rig(clock, sink, calls, asyncio.Event())


def claimed(clock: Clock, number: int, status: Status = Status.NEW, **changes: Any) -> Claimed:
    """An effect that is to be called for the first time; its number is its place in effects.requests."""
    request = effect(number, changes.pop("destination", WEBHOOK), **changes)
    job = Job(request, b"effects.requests:0:1", b"payments.raw:0:0", number, takes_keys=True, first_ms=clock.now_ms)
    return Claimed(job, Call(replace(job, attempts=1)), status)


def put_off(decided: list[Done | Later], why: str) -> list[int]:
    """Which were put off for this reason."""
    return [decision.job.sequence for decision in decided if isinstance(decision, Later) and decision.detail == why]


def states(decided: list[Done | Later]) -> list[str | None]:
    return [decision.result.state if isinstance(decision, Done) else None for decision in decided]


@pytest.mark.parametrize("calls_max", [1, 4, 16])
async def test_no_more_calls_are_made_at_once_than_are_allowed_to_all_partitions(clock: Clock, calls_max: int) -> None:
    setup = rig(clock, FakeSink(), calls_max)
    both = [[claimed(clock, number + first) for number in range(20)] for first in (0, 100)]
    for decided in await asyncio.gather(*(setup.calls.run(each, setup.until()) for each in both)):
        assert states(decided) == [EffectState.SENT] * 20
    assert setup.sink.running_max == calls_max
    assert len(setup.sink.called) == 40


async def test_a_call_to_a_destination_without_keys_is_begun_first(clock: Clock) -> None:
    setup = rig(clock, FakeSink(takes_keys=False))
    items = [claimed(clock, number) for number in range(3)]
    assert states(await setup.run(items)) == [EffectState.SENT] * 3
    assert setup.begun == setup.told == [item.job.effect_id for item in items]
    keyed = rig(clock, FakeSink())
    await keyed.run(items)
    assert keyed.begun == keyed.told == []


async def test_no_more_calls_are_begun_than_the_sink_makes_at_once(clock: Clock) -> None:
    setup = rig(clock, FakeSink(takes_keys=False, calls_max=3), calls_max=64)
    under_way: list[int] = []
    setup.sink.during = lambda: under_way.append(len(setup.begun) - len(setup.told))
    await setup.run([claimed(clock, number) for number in range(20)])
    assert max(under_way) == setup.sink.running_max == 3


async def test_a_call_that_may_not_be_begun_is_not_made(clock: Clock) -> None:
    setup = rig(clock, FakeSink(takes_keys=False))
    setup.overtaken = "another owner entered"
    decided = await setup.run([claimed(clock, 1), claimed(clock, 2)])
    assert put_off(decided, "another owner entered") == [1, 2]
    assert setup.sink.called == []
    assert setup.reached == []


async def test_each_chain_is_called_in_its_order_one_at_a_time(clock: Clock) -> None:
    accounts = {number: f"client-{number % 3}" for number in range(30)}
    sink = FakeSink()

    def alone() -> None:
        running = [accounts[number] for number in sink.running]
        assert len(set(running)) == len(running)

    sink.during = alone
    setup = rig(clock, sink, calls_max=16)
    items = [claimed(clock, number, ordered=True, account=account) for number, account in accounts.items()]
    await setup.run(items[::-1])
    for account in set(accounts.values()):
        called = [number for number in sink.called if accounts[number] == account]
        assert called == sorted(called)
        assert len(called) == 10
    assert sink.running_max == 3


async def test_a_chain_waits_behind_one_that_has_to_be_tried_again(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda number: Retriable("busy") if number == 2 else Delivered()), calls_max=8)
    decided = await setup.run([claimed(clock, number, ordered=True) for number in range(5)])
    assert setup.sink.called == [0, 1, 2]
    assert put_off(decided, EARLIER) == [3, 4]
    blocking, *behind = (decision for decision in decided if isinstance(decision, Later))
    assert all(later.not_before_ms == blocking.not_before_ms > clock.now_ms for later in behind)
    assert all(later.release and later.job.attempts == 0 for later in behind)


async def test_a_chain_goes_on_after_one_that_is_decided_whatever_became_of_it(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda number: Refused("410") if number == 0 else Delivered()))
    decided = await setup.run([claimed(clock, number, ordered=True) for number in range(2)])
    assert states(decided) == [EffectState.FAILED, EffectState.SENT]


async def test_nothing_is_called_without_enough_lease(clock: Clock) -> None:
    setup = rig(clock, FakeSink())
    decided = await setup.run([claimed(clock, number) for number in range(3)], lease_s=0)
    assert put_off(decided, "its claim's lease ran out") == [0, 1, 2]
    assert not setup.sink.called
    assert not setup.reached


async def test_the_lease_may_run_out_in_mid_batch(clock: Clock) -> None:
    setup = rig(clock, FakeSink())
    setup.sink.during = lambda: setattr(clock, "now_s", clock.now_s + 3)
    decided = await setup.run([claimed(clock, number) for number in range(5)], lease_s=5)
    assert states(decided) == [EffectState.SENT, EffectState.SENT, None, None, None]
    assert put_off(decided, "its claim's lease ran out") == [2, 3, 4]


@pytest.mark.parametrize("called", [0, 1, 2])
async def test_nothing_is_called_once_the_partition_is_to_be_let_go(clock: Clock, called: int) -> None:
    setup = rig(clock, FakeSink())
    if called == 0:
        setup.stopping.set()
    setup.sink.during = lambda: setup.stopping.set() if len(setup.sink.called) == called else None
    decided = await setup.run([claimed(clock, number) for number in range(4)])
    assert setup.sink.called == list(range(called))
    assert put_off(decided, "the partition was let go") == list(range(called, 4))


@pytest.mark.parametrize("failure", [Retriable("503"), Unknown("no answer")])
async def test_a_circuit_that_opens_in_mid_batch_spares_the_rest(clock: Clock, failure: Outcome) -> None:
    setup = rig(clock, FakeSink(lambda _: failure))
    others = [claimed(clock, 7, destination=WEBHOOK + "?other"), claimed(clock, 8, destination="https://fine.example")]
    decided = await setup.run([*(claimed(clock, number) for number in range(6)), *others])
    assert setup.sink.called == [0, 1, 2, 8]
    assert put_off(decided, LEFT_ALONE) == [3, 4, 5, 7]
    assert {each.not_before_ms for each in decided[3:7] if isinstance(each, Later)} == {clock.now_ms + 10_001}
    assert setup.calls.wait_s(claimed(clock, 9).job.request) == OPEN_S
    assert REGISTRY.get_sample_value("once_effect_circuits_open") == 1


async def test_one_call_tries_a_circuit_whose_time_is_over(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda _: Retriable("503")))
    await setup.run([claimed(clock, number) for number in range(3)])
    clock.now_s += OPEN_S
    decided = await setup.run([claimed(clock, number) for number in range(10, 13)])
    assert setup.sink.called == [0, 1, 2, 10]
    assert put_off(decided, LEFT_ALONE) == [11, 12]


async def test_a_delivery_between_failures_keeps_the_circuit_closed(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda number: Delivered() if number == 2 else Retriable("503")))
    await setup.run([claimed(clock, number) for number in range(5)])
    assert setup.sink.called == [0, 1, 2, 3, 4]
    assert setup.calls.wait_s(claimed(clock, 9).job.request) == 0


async def test_refusals_are_answers_and_open_nothing(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda _: Refused("404")))
    decided = await setup.run([claimed(clock, number) for number in range(8)])
    assert states(decided) == [EffectState.FAILED] * 8
    assert setup.calls.wait_s(claimed(clock, 9).job.request) == 0


async def test_one_that_is_asked_to_wait_makes_all_of_its_destination_wait(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda _: Retriable("429", retry_after_s=1)))
    decided = await setup.run([claimed(clock, number) for number in range(2)])
    assert setup.sink.called == [0]
    assert [each.not_before_ms - clock.now_ms for each in decided if isinstance(each, Later)] == [1000, 1001]


async def test_whose_time_is_over_is_tried_once_more_at_an_open_circuit(clock: Clock) -> None:
    setup = rig(clock, FakeSink(lambda _: Retriable("503")))
    await setup.run([claimed(clock, number) for number in range(3)])
    late = claimed(clock, 9)
    old = replace(late.job, first_ms=clock.now_ms - POLICY.retry_deadline_ms)
    decided = await setup.run([Claimed(old, Call(replace(old, attempts=4)), Status.NEW)])
    assert setup.sink.called[-1] == 9
    assert states(decided) == [EffectState.FAILED]


async def test_a_call_that_may_have_been_made_keeps_its_claim_when_it_is_put_off(clock: Clock) -> None:
    setup = rig(clock, FakeSink())
    setup.stopping.set()
    new, retaken = await setup.run([claimed(clock, 1), claimed(clock, 2, Status.RETAKEN)])
    assert isinstance(new, Later)
    assert isinstance(retaken, Later)
    assert (new.release, retaken.release) == (True, False)


@pytest.mark.parametrize(
    ("destination", "why"),
    [("mailto:bob@example.org", "the outbox has no settings for email"), ("ftp://example.org", "begins with https:")],
)
async def test_what_has_no_way_out_is_refused_with_what_to_do(clock: Clock, destination: str, why: str) -> None:
    setup = rig(clock, FakeSink(takes_keys=False))
    item = claimed(clock, 1, destination=destination)
    [done] = await setup.run([item])
    assert isinstance(done, Done)
    assert (done.result.state, setup.sink.called) == (EffectState.FAILED, [])
    assert why in done.result.detail
    # A channel that has lost its settings is what it was: a doubt about a mail stays one
    assert setup.calls.takes_keys(item.job.request) == (not destination.startswith("mailto:"))
    assert not setup.calls.takes_keys(effect(1, WEBHOOK))
    assert setup.calls.wait_s(item.job.request) == 0


async def test_each_call_lies_between_its_crash_points_and_is_counted_if_it_is_a_repeat(clock: Clock) -> None:
    setup = rig(clock, FakeSink())
    names: list[tuple[str, dict[str, str]]] = [
        ("once_effects_resent_total", {}),
        ("once_effect_calls_total", {"channel": "webhook", "outcome": "refused"}),
    ]
    setup.sink.answer = lambda _: Refused("404")
    resent, refused = (REGISTRY.get_sample_value(name, labels) or 0 for name, labels in names)
    once, again = claimed(clock, 1), claimed(clock, 2)
    await setup.run([once, replace(again, call=replace(again.call, resend=True))])
    assert setup.reached == [BEFORE_CALL, AFTER_CALL] * 2
    found = [REGISTRY.get_sample_value(name, labels) for name, labels in names]
    assert found == [resent + 1, refused + 2]
