"""The gateway's client of the view, against the view's API and against the tests' substitute for it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.balances.projection import database
from services.gateway import outcomes
from shared.events.clients import OPERATOR
from shared.events.transfers import AccountOpened
from tests.gateway_view import Substitute, substituting
from tests.harness import eventually
from tests.ledgers import CREDITOR, DAY, DEBTOR, transfer
from tests.views import View, serving


class Rig(ABC):
    """A view whose records the test decides, and the gateway's client of it."""

    client: outcomes.View

    @abstractmethod
    def fund(self) -> None:
        """Let DEBTOR pay."""

    @abstractmethod
    def debit(self, payment_id: str) -> None:
        """Book the debit leg of a payment from DEBTOR to CREDITOR over 10.00 EUR."""

    @abstractmethod
    def credit(self) -> None:
        """Book the credit leg."""

    @abstractmethod
    def open(self, command_id: str) -> None:
        """Open DEBTOR's account."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Requests that wait for an outcome."""


class RealView(Rig):
    """The view's API on SQLite, fed by the ledger's handlers."""

    def __init__(self, view: View, client: outcomes.View) -> None:
        self._view = view
        self.client = client

    def fund(self) -> None:
        self._view.fund()
        self._view.take()

    def debit(self, payment_id: str) -> None:
        self._view.ledger.send(transfer(payment_id))
        self._view.take()

    def credit(self) -> None:
        self._view.ledger.drain()
        self._view.take()

    def open(self, command_id: str) -> None:
        self._view.ledger.send(AccountOpened(DEBTOR, 0, command_id=command_id, value_date=DAY, submitted_by=OPERATOR))
        self._view.take()

    @property
    def waiting(self) -> int:
        return 1  # it looks again by itself


class Substituted(Rig):
    """The substitute."""

    def __init__(self, substitute: Substitute, client: outcomes.View) -> None:
        self._substitute = substitute
        self.client = client
        self._funded = False
        self._last = ""

    def fund(self) -> None:
        self._funded = True

    def debit(self, payment_id: str) -> None:
        self._last = payment_id
        state = "posted" if self._funded else "declined"
        self._substitute.decide(DEBTOR, payment_id, state, reason=None if self._funded else "insufficient_funds")

    def credit(self) -> None:
        self._substitute.decide(DEBTOR, self._last, "completed")

    def open(self, command_id: str) -> None:
        self._substitute.decide(DEBTOR, command_id, "opened")

    @property
    def waiting(self) -> int:
        return self._substitute.waiting


@asynccontextmanager
async def real(directory: Path) -> AsyncIterator[Rig]:
    view = View(database.parse(f"sqlite:///{directory / 'view.db'}"))
    try:
        async with serving(view) as site, outcomes.View(site.origin) as client:
            yield RealView(view, client)
    finally:
        view.close()


@asynccontextmanager
async def substituted(_: Path) -> AsyncIterator[Rig]:
    async with substituting() as substitute, outcomes.View(substitute.origin) as client:
        yield Substituted(substitute, client)


@pytest.fixture(params=[real, substituted], ids=["view", "substitute"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with request.param(tmp_path) as made:
        yield made


async def ask(rig: Rig, payment_id: str, wait_s: float = 0) -> Any:
    return await rig.client.outcome(DEBTOR, payment_id, wait_s, "Bearer key")


async def test_an_identity_that_is_not_decided_has_no_outcome(rig: Rig) -> None:
    assert await ask(rig, "never-sent") is None
    rig.fund()
    rig.debit("p-1")
    assert await rig.client.outcome(CREDITOR, "p-1", 0, "Bearer key") is None


async def test_a_payment_is_posted_then_completed(rig: Rig) -> None:
    rig.fund()
    rig.debit("p / é")
    posted = await ask(rig, "p / é")
    assert (posted.state, posted.final, posted.debtor, posted.creditor) == ("posted", False, DEBTOR, CREDITOR)
    assert (posted.amount_minor, posted.currency, posted.value_date) == (1000, "EUR", DAY)
    rig.credit()
    completed = await ask(rig, "p / é")
    assert (completed.state, completed.final, completed.at) == ("completed", True, posted.at)


async def test_a_decline_has_its_reason(rig: Rig) -> None:
    rig.debit("p-1")
    found = await ask(rig, "p-1")
    assert (found.state, found.final, found.reason) == ("declined", True, "insufficient_funds")


async def test_an_opening_is_opened(rig: Rig) -> None:
    rig.open("c-1")
    found = await ask(rig, "c-1")
    assert (found.state, found.final, found.debtor) == ("opened", True, DEBTOR)


async def test_a_wait_ends_when_the_outcome_is_known(rig: Rig) -> None:
    rig.fund()
    asked = asyncio.create_task(ask(rig, "p-1", wait_s=30))

    async def waits() -> bool:
        return rig.waiting == 1

    await eventually(waits, "the request waits")
    rig.debit("p-1")
    found = await asyncio.wait_for(asked, 20)
    assert found.state == "posted"


async def test_a_wait_for_nothing_ends_in_time(rig: Rig) -> None:
    assert await asyncio.wait_for(ask(rig, "never-sent", wait_s=0.2), 20) is None
