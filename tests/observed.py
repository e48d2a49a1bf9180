"""The ledger's records in the terms of tests/model.py, for comparison. Pure."""

from collections.abc import Iterable

from shared.events.postings import CREDIT, Account, Decline, LedgerEvent, Posting
from shared.events.transfers import AccountOpened
from tests.model import Entry, Identity, Outcome


def outcomes(events: Iterable[LedgerEvent]) -> dict[Identity, Outcome]:
    """Outcomes of payments and of openings, from the records of ledger.postings; not those of operators' commands.

    Events may be in any order: a debit is booked before its credit, but on another partition.

    Raises:
        AssertionError: a leg or a decline is there twice, or a payment was both booked and declined.
    """
    found: dict[Identity, Outcome] = {}
    credited: dict[Identity, tuple[Entry, ...]] = {}
    for event in events:
        if isinstance(event, AccountOpened) and event.command_id:
            opened = event.owner, event.overdraft_minor, event.version
            _once(found, (event.account, event.command_id), Outcome(event.value_date, opened=opened))
        elif isinstance(event, Decline) and event.payment_id:
            _once(found, (event.debtor, event.payment_id), Outcome(event.value_date, event.reason))
        elif isinstance(event, Posting):
            identity = event.debtor, event.payment_id
            entries = tuple(sorted((entry.account, entry.currency, entry.amount_minor) for entry in event.entries))
            if event.leg == CREDIT:
                assert identity not in credited, f"{identity} was credited twice"
                credited[identity] = entries
            else:
                assert event.reversal == (event.reverses is not None)
                booked = Outcome(
                    event.value_date,
                    debit=entries,
                    fee_minor=event.fee_minor,
                    rate=event.rate,
                    reverses=event.reverses,
                    reference=event.reference,
                )
                _once(found, identity, booked)
    for identity, entries in credited.items():
        assert identity in found, f"{identity} was credited and never debited"
        found[identity].credit = entries
    return found


def _once(found: dict[Identity, Outcome], identity: Identity, outcome: Outcome) -> None:
    assert identity not in found, f"{identity} was processed twice: {found[identity]} and {outcome}"
    found[identity] = outcome


def balances(accounts: Iterable[tuple[str, Account]]) -> dict[tuple[str, str], int]:
    """All balances but zeros, by account and currency."""
    return {
        (name, currency): amount
        for name, account in accounts
        for currency, amount in account.balances.items()
        if amount
    }
