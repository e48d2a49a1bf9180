"""Retries of calls to the view's database."""

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from services.balances.projection import writing
from services.balances.projection.store import DatabaseAwayError
from services.balances.projection.writing import DATABASE, Writing
from shared.eos.errors import FatalError
from shared.telemetry.server import Health


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "PAUSE_S", 0.001)


@pytest.fixture
def health() -> Health:
    return Health(**{DATABASE: "not connected"})


@pytest_asyncio.fixture
async def hands(health: Health) -> AsyncIterator[Writing]:
    made = Writing(health, lambda: None)
    yield made
    await made.end()


async def test_a_call_is_retried_until_the_database_answers(hands: Writing, health: Health) -> None:
    seen: list[bool] = []

    def call() -> int:
        seen.append(health.ready)
        if len(seen) < 4:
            raise DatabaseAwayError("restarting")
        return 7

    assert await hands.call(call) == 7
    assert seen == [False] * 4
    assert health.ready


async def test_a_database_that_stays_unavailable_ends_the_view(health: Health) -> None:
    hands = Writing(health, lambda: None, deadline_s=0.05)

    def call() -> None:
        raise DatabaseAwayError("connection refused")

    with pytest.raises(FatalError, match=r"away for 0\.05 s: connection refused"):
        await hands.call(call)
    await hands.end()
    assert health.reasons == {DATABASE: "connection refused"}


async def test_other_errors_are_not_retried(hands: Writing) -> None:
    with pytest.raises(ZeroDivisionError):
        await hands.call(partial(divmod, 1, 0))


class Frozen:
    """A database that answers only with an error, after an abort."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.aborted = threading.Event()

    def call(self) -> None:
        self.called.set()
        assert self.aborted.wait(10)
        raise DatabaseAwayError("the connection was aborted")


async def test_a_call_that_is_never_answered_is_aborted_and_ends_the_view(health: Health) -> None:
    frozen = Frozen()
    health.met(DATABASE)
    hands = Writing(health, frozen.aborted.set, deadline_s=0.0)
    with pytest.raises(FatalError, match="aborted"):
        await hands.call(frozen.call, timeout_s=0.05)
    assert not health.ready
    await hands.end()


async def test_a_call_without_a_bound_is_not_aborted(hands: Writing) -> None:
    assert await hands.call(partial(divmod, 7, 2), timeout_s=None) == (3, 1)


async def test_a_stop_aborts_a_call_that_is_never_answered(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "END_S", 0.05)
    frozen = Frozen()
    hands = Writing(health, frozen.aborted.set)
    call = asyncio.create_task(hands.call(frozen.call))
    assert await asyncio.to_thread(frozen.called.wait, 10)
    call.cancel()
    async with asyncio.timeout(5):
        await hands.end()
