"""Workers of an instance that has one for each partition: each begins, fails and ends by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from shared.eos.errors import EosError, FencedError, RejoinError
from shared.kafka.runtime import worker
from shared.kafka.runtime.worker import WorkerPerPartition
from tests.harness import eventually

DEADLINE_S = 0.2


class StubWorker:
    """A worker that ends by its test.

    Attributes:
        fails: resolves with the error that ends it.
        transaction_ends: a stop waits for it.
        is_taken_over: cleared while it takes over.
        calls: in order.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.waits_for = ""
        self.calls: list[str] = []
        self.fails: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transaction_ends = asyncio.Event()
        self.transaction_ends.set()
        self.is_taken_over = True
        self._stopping = asyncio.Event()

    @property
    def ready(self) -> frozenset[int]:
        return frozenset([self.number]) if self.is_taken_over and self.calls[-1] == "run" else frozenset()

    async def start(self) -> None:
        self.calls.append("start")

    def assign(self, partitions: set[int]) -> None:
        assert partitions == {self.number}
        self.calls.append("assign")

    async def run(self) -> None:
        self.calls.append("run")
        stopped: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([self.fails, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not self.fails.done():
                await self.transaction_ends.wait()
            if self.fails.done():
                self.fails.result()
            self.calls.append("ended")
        finally:
            stopped.cancel()

    def stop(self) -> None:
        self.calls.append("stop")
        self._stopping.set()

    async def close(self) -> None:
        self.calls.append("close")


class Rig:
    """The workers of an instance, and all that were made, by partition."""

    def __init__(self) -> None:
        self.made: dict[int, list[StubWorker]] = {}
        self.prepare: Callable[[StubWorker], None] = lambda _: None
        self.workers = WorkerPerPartition(self._make, DEADLINE_S)
        self.running = asyncio.create_task(self.workers.run())

    def _make(self, number: int) -> Any:
        made = StubWorker(number)
        self.prepare(made)
        self.made.setdefault(number, []).append(made)
        return made

    async def ready(self, *partitions: int) -> None:
        async def reached() -> bool:
            return self.workers.ready == set(partitions)

        await eventually(reached, f"{partitions} ready")


@pytest_asyncio.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(worker, "ABORT_BACKOFF_S", 0)
    made = Rig()
    yield made
    made.workers.stop()
    with suppress(EosError):
        await made.running


WHOLE_LIFE = ["start", "assign", "run", "stop", "ended", "close"]


async def test_each_partition_has_a_worker_until_it_is_revoked(rig: Rig) -> None:
    rig.workers.assign({0, 1, 2})
    await rig.ready(0, 1, 2)
    await rig.workers.revoke({1})
    assert rig.made[1][0].calls == WHOLE_LIFE
    assert rig.workers.ready == {0, 2}
    rig.workers.assign({1})
    await rig.ready(0, 1, 2)
    assert [len(rig.made[number]) for number in range(3)] == [1, 2, 1]
    rig.workers.stop()
    await rig.running
    assert all(rig.made[number][-1].calls == WHOLE_LIFE for number in range(3))


async def test_a_partition_that_must_drop_its_state_is_taken_over_again_by_itself(rig: Rig) -> None:
    rig.workers.assign({0, 1})
    await rig.ready(0, 1)
    rig.made[0][0].fails.set_exception(RejoinError("the state was refused"))
    await eventually(lambda: _has(rig, 0, 2), "partition 0 has another worker")
    await rig.ready(0, 1)
    assert rig.made[0][0].calls == ["start", "assign", "run", "close"], "two workers at once"
    assert len(rig.made[1]) == 1


async def _has(rig: Rig, number: int, workers: int) -> bool:
    return len(rig.made.get(number, [])) == workers


@pytest.mark.parametrize(
    "error",
    [FencedError("fenced"), RejoinError("denied", "GroupAuthorizationFailedError"), ValueError("a defect")],
    ids=["fenced", "denied", "defect"],
)
async def test_another_failure_ends_all_of_them(rig: Rig, error: Exception) -> None:
    rig.workers.assign({0, 1})
    await rig.ready(0, 1)
    rig.made[0][0].fails.set_exception(error)
    with pytest.raises(type(error)) as raised:
        await asyncio.shield(rig.running)
    assert raised.value is error
    assert rig.made[1][0].calls == WHOLE_LIFE
    rig.running = asyncio.create_task(asyncio.sleep(0))


async def _called(one: StubWorker, name: str) -> bool:
    return one.calls[-1] == name


async def revoked_in_a_transaction(rig: Rig) -> "tuple[StubWorker, asyncio.Task[None]]":
    """Revoke a partition whose transaction is open; returns its worker, and what waits for the end."""
    rig.workers.assign({0})
    await rig.ready(0)
    [one] = rig.made[0]
    one.transaction_ends.clear()
    revoking = asyncio.create_task(rig.workers.revoke({0}))
    await eventually(lambda: _called(one, "stop"), "the worker is stopped")
    return one, revoking


async def test_a_revocation_returns_when_the_transaction_has_ended(rig: Rig) -> None:
    one, revoking = await revoked_in_a_transaction(rig)
    assert not revoking.done()
    one.transaction_ends.set()
    await revoking
    assert one.calls == WHOLE_LIFE


async def test_a_stop_during_a_revocation_waits_for_the_transaction(rig: Rig) -> None:
    one, revoking = await revoked_in_a_transaction(rig)
    rig.workers.stop()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not rig.running.done()
    one.transaction_ends.set()
    await rig.running
    assert one.calls == WHOLE_LIFE
    await revoking


async def test_nothing_outlives_a_revocation_that_is_cancelled(rig: Rig) -> None:
    one, revoking = await revoked_in_a_transaction(rig)
    revoking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await revoking
    assert one.calls == ["start", "assign", "run", "stop", "close"]


async def test_a_worker_that_does_not_end_in_time_is_cancelled(rig: Rig) -> None:
    rig.workers.assign({0})
    await rig.ready(0)
    [one] = rig.made[0]
    one.transaction_ends.clear()
    await rig.workers.revoke({0})
    assert one.calls == ["start", "assign", "run", "stop", "close"]


async def test_a_worker_that_still_takes_over_is_cancelled_at_once(rig: Rig) -> None:
    rig.prepare = lambda made: setattr(made, "is_taken_over", False)
    rig.workers.assign({0})
    await eventually(lambda: _has(rig, 0, 1), "partition 0 has a worker")
    await eventually(lambda: _called(rig.made[0][0], "run"), "it runs")
    assert rig.workers.ready == set()
    await rig.workers.revoke({0})
    assert rig.made[0][0].calls == ["start", "assign", "run", "close"]


async def test_a_partition_that_fails_while_it_is_revoked_is_not_taken_over_again(rig: Rig) -> None:
    one, revoking = await revoked_in_a_transaction(rig)
    one.fails.set_exception(RejoinError("the outcome is unknown"))
    one.transaction_ends.set()
    await revoking
    assert rig.made[0] == [one]
    assert rig.workers.ready == set()
