"""Who may submit what, by the scopes of a key and the owners of accounts. Pure.

The ledger decides by the same rules when it books. A refusal here is early: the client learns at once what to change.
The gateway knows owners from ledger.accounts, so it can be some records behind the ledger.

Invariant: a request that the rules refuse by what the gateway knows gets 403, and nothing of it is written.
"""

from services.gateway.domain import Refusal, RefusedError
from shared.events.clients import Scope
from shared.events.fields import is_client_account
from shared.events.payments import AccountOpening
from shared.events.postings import AccountTerms
from shared.http.keys import Principal


def check_scope(principal: Principal, scope: Scope) -> None:
    """Raise RefusedError unless the key has the scope."""
    if scope not in principal.scopes:
        raise _refused(f"the key has no scope {scope}: send another key, or ask the operator for one with it")


def check_debit(principal: Principal, debtor: str, owner: str) -> None:
    """Raise RefusedError unless the key may debit the account, or read its payments.

    Args:
        owner: of the account; any for a house account.
    """
    if has_account(principal, debtor, owner):
        return
    if is_client_account(debtor):
        raise _refused(
            f"account {debtor} belongs to another client: send an account of your own, or open one by POST /v1/accounts"
        )
    raise _refused(f"{debtor} is a house account, which needs the scope {Scope.HOUSE}: send another key")


def has_account(principal: Principal, account: str, owner: str) -> bool:
    """Whether the account is the principal's: its client's, or a house account for a key with the scope house."""
    return owner == principal.client if is_client_account(account) else Scope.HOUSE in principal.scopes


def may_see(principal: Principal, debtor: str, owner: str, sender: str | None) -> bool:
    """Whether the principal may read the state of a payment: its client has sent it, or has the account.

    Args:
        owner: of the debtor by the ledger's events. An opening under way could be declined, so it gives no right.
        sender: the client that submitted the payment; None if the record does not say.
    """
    return sender == principal.client or has_account(principal, debtor, owner)


def check_opening(principal: Principal, opening: AccountOpening, terms: AccountTerms | None) -> None:
    """Raise RefusedError unless the key may open the account with these terms.

    Args:
        terms: the account's present ones; None if it was never opened.
    """
    if Scope.HOUSE in principal.scopes:
        return
    if opening.overdraft_minor != 0:
        raise _refused(f"an overdraft needs the scope {Scope.HOUSE}: leave overdraft_minor out")
    if opening.owner not in {None, principal.client}:
        raise _refused(f"an account for another client needs the scope {Scope.HOUSE}: leave owner out")
    if terms is not None and terms.owner != principal.client:
        raise _refused(f"account {opening.debtor} belongs to another client: choose another name")
    if terms is not None and terms.closed:
        raise _refused(f"account {opening.debtor} is closed: the operator can open it again")


def _refused(detail: str) -> RefusedError:
    return RefusedError(Refusal.NOT_AUTHORISED, detail)
