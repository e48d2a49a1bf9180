"""Accounts' terms, owners and versions: who may debit an account, and who may open it. Pure.

Decisions take an account's state and return events; only `apply_terms` changes an account. An account without any state
is open with no overdraft, and is the operator's. A house account has no owner: the scope `house` debits it.
"""

import msgspec

from shared.events.clients import OWNER_UNNAMED, SubmittedBy
from shared.events.postings import Account, AccountTerms, Decline, NotifiedBy
from shared.events.transfers import AccountClosed, AccountOpened, DeclineReason


def is_house(account: str) -> bool:
    """Whether this is a house account: these name their partition and have no limit."""
    return "@" in account


def may_debit(submitted_by: SubmittedBy | None, name: str, account: Account | None) -> bool:
    """Whether a client may debit an account: its own, and a house account with the scope `house`."""
    if submitted_by is None:
        return False
    if is_house(name):
        return submitted_by.house
    return submitted_by.client == (OWNER_UNNAMED if account is None else account.owner)


def decide_opening(
    account: Account | None,
    event: AccountOpened,
    submitted_by: SubmittedBy | None,
    notified_by: NotifiedBy | None = None,
) -> AccountOpened | Decline:
    """Give an account terms and an owner, under its next version if that changes anything, or decline it.

    Args:
        account: None if it has no state.
        submitted_by: the client that the command counts for: OPERATOR for `once accounts`, whose events name none.
    """
    version = 0 if account is None else account.version
    if not _may_open(submitted_by, account, event):
        reason = DeclineReason.NOT_AUTHORISED
    elif event.expected_version is not None and event.expected_version != version:
        reason = DeclineReason.STALE_VERSION
    else:
        return msgspec.structs.replace(event, version=version + changes_terms(account, event))
    return Decline(
        event.command_id,
        event.account,
        reason,
        event.value_date,
        opening=True,
        notified_by=notified_by,
        submitted_by=event.submitted_by,
    )


def _may_open(submitted_by: SubmittedBy | None, account: Account | None, event: AccountOpened) -> bool:
    """Whether a client may open an account: for itself and without overdraft, unless it has the scope `house`."""
    if submitted_by is None or submitted_by.house:
        return submitted_by is not None
    client = submitted_by.client
    if event.owner != client or event.overdraft_minor != 0:
        return False
    return account is None or (account.owner == client and not account.closed)


def changes_terms(account: Account | None, event: AccountOpened | AccountClosed) -> bool:
    if isinstance(event, AccountClosed):
        return account is None or not account.closed
    if account is None or account.closed:
        return True
    return (account.overdraft_minor, account.owner) != (event.overdraft_minor, event.owner)


def decide_closing(account: Account | None, event: AccountClosed) -> AccountClosed:
    """Close an open account, under its next version."""
    return msgspec.structs.replace(event, version=(0 if account is None else account.version) + 1)


def apply_terms(account: Account, event: AccountOpened | AccountClosed) -> None:
    """Apply new terms, owner and version to the account. Its balances do not change."""
    account.version = event.version
    if isinstance(event, AccountOpened):
        account.overdraft_minor = event.overdraft_minor
        account.owner = event.owner
        account.closed = False
    else:
        account.closed = True


def terms_of(account: Account) -> AccountTerms:
    return AccountTerms(account.owner, account.version, account.overdraft_minor, account.closed)
