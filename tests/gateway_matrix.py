"""Expected answers of the gateway by route, scopes and kind of account: written from the rules, not from the code.

The client SHOP sends every request. RULES says for each route which scope it needs and, with that scope, the status for
each kind of account: first for a key without the scope house, then for one with it.
"""

from itertools import chain, combinations
from typing import Final

SHOP: Final = "shop"
RIVAL: Final = "rival"
SCOPES: Final = ("payments:write", "accounts:write", "read", "house")
EVERY_SCOPE_SET: Final = tuple(
    frozenset(some) for some in chain.from_iterable(combinations(SCOPES, number) for number in range(5))
)

KINDS: Final = {
    # kind: account, its owner, whether it is closed; None for an account that was never opened
    "own": ("shop-open", SHOP, False),
    "own, closed": ("shop-closed", SHOP, True),
    "another's": ("rival-open", RIVAL, False),
    "another's, closed": ("rival-closed", RIVAL, True),
    "never opened": ("unopened-1", None, False),
    "house": ("cash@0", None, False),
}

_DEBIT: Final = {
    "own": (202, 202),
    "own, closed": (202, 202),  # the ledger declines it as account_closed
    "another's": (403, 403),
    "another's, closed": (403, 403),
    "never opened": (403, 403),  # the operator's
    "house": (403, 202),
}

RULES: Final = {
    "POST /v1/payments": ("payments:write", _DEBIT),
    "POST /v1/payments/batch": ("payments:write", _DEBIT),
    "POST /payments": ("payments:write", _DEBIT),
    "POST /v1/accounts": (
        "accounts:write",
        {
            "own": (202, 202),
            "own, closed": (403, 202),
            "another's": (403, 202),
            "another's, closed": (403, 202),
            "never opened": (202, 202),
            "house": (422, 422),
        },
    ),
    "POST /v1/accounts, overdraft": (
        "accounts:write",
        dict.fromkeys(KINDS, (403, 202)) | {"house": (422, 422)},
    ),
    "POST /v1/accounts, owner": (
        "accounts:write",
        dict.fromkeys(KINDS, (403, 202)) | {"house": (422, 422)},
    ),
    "GET /v1/payments": (
        "read",
        {
            "own": (200, 200),
            "own, closed": (200, 200),
            "another's": (403, 403),
            "another's, closed": (403, 403),
            "never opened": (403, 403),
            "house": (403, 200),
        },
    ),
    "GET /payments": (  # of a payment that another client has sent
        "read",
        {
            "own": (200, 200),
            "own, closed": (200, 200),
            "another's": (404, 404),
            "another's, closed": (404, 404),
            "never opened": (404, 404),
            "house": (404, 200),
        },
    ),
}


def expected(route: str, scopes: frozenset[str], kind: str) -> int:
    """Return the status of a request."""
    needed, statuses = RULES[route]
    return statuses[kind]["house" in scopes] if needed in scopes else 403
