"""The records of ledger.postings, and the account state folded from them. Pure."""

from collections.abc import Callable

import msgspec

from shared.events.clients import OWNER_UNNAMED, SubmittedBy
from shared.events.codec import decoder
from shared.events.transfers import AccountClosed, AccountOpened

DEBIT = "debit"
CREDIT = "credit"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One line of a posting, in JSON [account, currency, amount_minor]; positive raises the balance."""

    account: str
    currency: str
    amount_minor: int


OF_ORIGIN = "1"
OF_INSTALLATION = "2"


class NotifiedBy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How an event was notified, in JSON [account, every_account, effect_ids].

    Attributes:
        account, every_account: the records of reference.subscriptions, `partition:offset`, under the acting account's
            key and under `*`; null where none was in force.
        effect_ids: the form of the ids of its effects: OF_INSTALLATION with the installation's id, or OF_ORIGIN without
            it, as in records of former versions.
    """

    account: str | None
    every_account: str | None
    effect_ids: str = OF_ORIGIN


class Posting(msgspec.Struct, frozen=True, tag="posting", tag_field="type", omit_defaults=True):
    """One leg of a payment or reversal. Its entries sum to 0 in each currency and touch one partition only."""

    payment_id: str
    leg: str  # DEBIT (on the debtor's partition) or CREDIT (on the creditor's)
    debtor: str
    creditor: str
    entries: tuple[Entry, ...]  # at least two
    value_date: str
    reversal: bool = False  # whether it belongs to a reversal, on both legs
    reverses: str | None = None  # for the debit leg of a reversal, the payment_id that it reverses
    fee_minor: int = 0  # as priced by transform, on the debit leg; likewise `rate`
    rate: str | None = None
    reference: str = ""
    notified_by: NotifiedBy | None = None  # None in records of former versions, and for house accounts
    submitted_by: SubmittedBy | None = None  # on the debit leg, as in Transfer


class Decline(msgspec.Struct, frozen=True, tag="decline", tag_field="type", omit_defaults=True):
    """A declined payment, reversal or opening of an account; `reason` is a DeclineReason."""

    payment_id: str
    debtor: str
    reason: str
    value_date: str
    reversal: bool = False
    opening: bool = False  # whether it was a command to open the account `debtor`
    notified_by: NotifiedBy | None = None  # as in Posting
    submitted_by: SubmittedBy | None = None  # likewise


LedgerEvent = Posting | Decline | AccountOpened | AccountClosed

encode_ledger_event = msgspec.json.Encoder().encode
decode_ledger_event: Callable[[bytes], LedgerEvent] = decoder(LedgerEvent)
"""Decodes a record of ledger.postings."""


class Account(msgspec.Struct, omit_defaults=True, gc=False):  # holds no cycle; there may be a million
    """One account's state: a record of ledger.balances under the key `account/<account>`."""

    balances: dict[str, int] = {}  # minor units by currency
    overdraft_minor: int | None = 0  # how far below zero each currency may go; None is unlimited
    closed: bool = False  # takes no more debits; credits go to suspense
    owner: str = OWNER_UNNAMED  # the client whose keys may debit it
    version: int = 0  # how often its terms or owner changed


class AccountTerms(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A record of ledger.accounts under the account's name: its owner and terms after its latest event."""

    owner: str
    version: int
    overdraft_minor: int | None = 0  # as in Account
    closed: bool = False


encode_terms = msgspec.json.Encoder().encode
decode_terms = decoder(AccountTerms)

ACCOUNT_PREFIX = b"account/"
encode_account = msgspec.json.Encoder().encode
decode_account: Callable[[bytes], Account] = decoder(Account)
"""Decodes an account's state from the changelog."""
