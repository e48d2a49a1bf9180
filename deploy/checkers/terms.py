"""Accounts' terms, owners and versions, and who may change or debit them: the ledger's rules, written down again. Pure.

A client's keys debit its own accounts only, a house account needs the scope `house`. Every other change of an account's
terms needs that scope as well, except that a client opens accounts for itself, without an overdraft.
"""

from typing import NamedTuple

from shared.events.clients import OWNER_UNNAMED, SubmittedBy
from shared.events.transfers import AccountClosed, AccountOpened, DeclineReason


class Terms(NamedTuple):
    """An account's terms after its last event; the version is the event's own."""

    overdraft_minor: int | None = 0  # None is unlimited
    closed: bool = False
    owner: str = OWNER_UNNAMED
    version: int = 0


def terms_at_first(account: str) -> Terms:
    """Return the terms of an account without events; a house account has no limit."""
    return Terms(None) if "@" in account else Terms()


def terms_after(terms: Terms, event: AccountOpened | AccountClosed) -> Terms:
    if isinstance(event, AccountOpened):
        return Terms(event.overdraft_minor, False, event.owner, event.version)
    return terms._replace(closed=True, version=event.version)


def changes(terms: Terms, event: AccountOpened | AccountClosed) -> bool:
    """Whether an event gives an account other terms or another owner."""
    return terms_after(terms, event)._replace(version=terms.version) != terms


def version_after(terms: Terms | None, event: AccountOpened | AccountClosed) -> int:
    """Return the version that an event gives an account; terms are None where it has no state yet."""
    if terms is None:
        return 1
    return terms.version + changes(terms, event)


def may_debit(by: SubmittedBy | None, account: str, owner: str) -> bool:
    if by is None:
        return False
    return by.house if "@" in account else by.client == owner


def reason_to_decline(by: SubmittedBy | None, event: AccountOpened, terms: Terms | None) -> DeclineReason | None:
    """Return why an opening of payments.raw has to be declined; None if it has to be done.

    Args:
        by: who submitted it.
        terms: before it; None where the account has no state.
    """
    if by is None or not (by.house or _may_open(by.client, event, terms)):
        return DeclineReason.NOT_AUTHORISED
    return DeclineReason.STALE_VERSION if is_stale(event, terms) else None


def _may_open(client: str, event: AccountOpened, terms: Terms | None) -> bool:
    own = terms is None or (terms.owner == client and not terms.closed)
    return own and event.owner == client and event.overdraft_minor == 0


def is_stale(event: AccountOpened, terms: Terms | None) -> bool:
    """Whether a command expects another version than the account has, 0 where it has no state."""
    return event.expected_version not in {None, 0 if terms is None else terms.version}


def shown(by: SubmittedBy | None) -> str:
    """Name who submitted a record, for people."""
    if by is None:
        return "no client"
    key = f" with key {by.key_id}" if by.key_id else ""
    return f"{by.client}{key}{' and the scope house' if by.house else ''}"
