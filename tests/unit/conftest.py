"""Fixtures of the unit tests."""

import pytest

from shared.events.transfers import AccountOpened
from tests.effect_calls import Clock
from tests.ledgers import DEBTOR, Ledger, P, Q


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the outbox's calls."""
    clock = Clock()
    monkeypatch.setattr("services.outbox.dispatch.time", clock)
    monkeypatch.setattr("services.outbox.flights.time", clock)
    return clock


@pytest.fixture
def ledger() -> Ledger:
    """A ledger whose debtor may overdraw without limit; debtor and creditor live on different partitions."""
    assert P != Q
    ledger = Ledger()
    ledger.send(AccountOpened(DEBTOR, None))
    return ledger
