"""Retries of calls to the view's database."""

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
    made = Writing(health)
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
    hands = Writing(health, deadline_s=0.05)

    def call() -> None:
        raise DatabaseAwayError("connection refused")

    with pytest.raises(FatalError, match=r"away for 0\.05 s: connection refused"):
        await hands.call(call)
    await hands.end()
    assert health.reasons == {DATABASE: "connection refused"}


async def test_other_errors_are_not_retried(hands: Writing) -> None:
    with pytest.raises(ZeroDivisionError):
        await hands.call(partial(divmod, 1, 0))
