"""The rows of the view's tables, by the columns of `database.py`. Pure."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from shared.events.clients import OWNER_UNNAMED, SubmittedBy
from shared.events.headers import ORIGIN, SOURCE, Coordinates, Headers, header
from shared.events.postings import Decline, Entry, Posting
from shared.events.transfers import AccountOpened

CLIENTS: Final = "clients"  # holder of all client accounts together; house accounts are held by their names
DECLINE: Final = "decline"  # kind of an event that is not a leg of a payment, likewise below
OPENED: Final = "opened"

Row = dict[str, object]  # to be written, by column


@dataclass(slots=True)
class Balance:
    """A row of `balances`, without its key."""

    partition: int
    balance_minor: int = 0
    postings: int = 0
    last_offset: int = -1


@dataclass(slots=True)
class Total:
    """A row of `totals`, without its key."""

    balance_minor: int = 0
    debits_minor: int = 0
    credits_minor: int = 0


class Terms(NamedTuple):
    """An account's terms and owner; an overdraft of None is unlimited."""

    overdraft_minor: int | None
    closed: bool
    owner: str = OWNER_UNNAMED
    version: int = 0


def is_house(account: str) -> bool:
    """Whether it is a house account: these name their partition."""
    return "@" in account


def unopened(account: str) -> Terms:
    """The terms of an account that was never opened, as the ledger has them."""
    return Terms(None if is_house(account) else 0, closed=False)


def holder(account: str) -> str:
    """The holder of an account's total: CLIENTS, or a house account's name without its partition."""
    name, at, _ = account.rpartition("@")
    return name if at else CLIENTS


def posting_row(at: Coordinates, timestamp_ms: int, headers: Headers, posting: Posting) -> Row:
    """A leg in `events`."""
    submitted_by = posting.submitted_by
    return {  # in one piece: these are nearly all rows
        "partition": at.partition,
        "offset": at.offset,
        "payment_id": posting.payment_id,
        "kind": posting.leg,
        "debtor": posting.debtor,
        "creditor": posting.creditor,
        "value_date": posting.value_date,
        "reversal": posting.reversal,
        "reverses": posting.reverses,
        "opening": False,
        "reason": None,
        # Any client may send U+0000, which PostgreSQL does not take
        "reference": posting.reference.replace("\0", "\N{REPLACEMENT CHARACTER}"),
        "fee_minor": posting.fee_minor,
        "rate": posting.rate,
        "client": submitted_by and submitted_by.client,
        "key_id": submitted_by and submitted_by.key_id,
        "version": None,
        "timestamp_ms": timestamp_ms,
        "origin": _text(headers, ORIGIN),
        "source": _text(headers, SOURCE),
    }


def decline_row(at: Coordinates, timestamp_ms: int, headers: Headers, decline: Decline) -> Row:
    return _event_row(at, timestamp_ms, headers, decline.submitted_by) | {
        "payment_id": decline.payment_id,
        "kind": DECLINE,
        "debtor": decline.debtor,
        "value_date": decline.value_date,
        "reversal": decline.reversal,
        "opening": decline.opening,
        "reason": decline.reason,
    }


def opened_row(at: Coordinates, timestamp_ms: int, headers: Headers, event: AccountOpened) -> Row:
    """A client's command that opened an account, in `events`."""
    return _event_row(at, timestamp_ms, headers, event.submitted_by) | {
        "payment_id": event.command_id,
        "kind": OPENED,
        "debtor": event.account,
        "value_date": event.value_date,
        "opening": True,
        "version": event.version,
    }


def _event_row(at: Coordinates, timestamp_ms: int, headers: Headers, submitted_by: SubmittedBy | None) -> Row:
    """The columns of every event, and the values of those that only postings have."""
    return {
        "partition": at.partition,
        "offset": at.offset,
        "creditor": None,
        "reversal": False,
        "reverses": None,
        "opening": False,
        "reason": None,
        "reference": "",
        "fee_minor": 0,
        "rate": None,
        "client": submitted_by and submitted_by.client,
        "key_id": submitted_by and submitted_by.key_id,
        "version": None,
        "timestamp_ms": timestamp_ms,
        "origin": _text(headers, ORIGIN),
        "source": _text(headers, SOURCE),
    }


def entry_row(at: Coordinates, line: int, entry: Entry, balance_minor: int, value_date: str) -> Row:
    """A line of a posting in `entries`, with the balance after it."""
    return {
        "partition": at.partition,
        "offset": at.offset,
        "line": line,
        "account": entry.account,
        "currency": entry.currency,
        "amount_minor": entry.amount_minor,
        "balance_minor": balance_minor,
        "value_date": None if is_house(entry.account) else value_date,
    }


def balance_row(account: str, currency: str, balance: Balance) -> Row:
    return {
        "account": account,
        "currency": currency,
        "partition": balance.partition,
        "balance_minor": balance.balance_minor,
        "postings": balance.postings,
        "last_offset": balance.last_offset,
    }


def total_row(partition: int, held_by: str, currency: str, total: Total) -> Row:
    return {
        "partition": partition,
        "holder": held_by,
        "currency": currency,
        "balance_minor": total.balance_minor,
        "debits_minor": total.debits_minor,
        "credits_minor": total.credits_minor,
    }


def terms_row(account: str, partition: int, terms: Terms) -> Row:
    return {"account": account, "partition": partition, **terms._asdict()}


def _text(headers: Headers, name: str) -> str | None:
    value = header(headers, name)
    return None if value is None else value.decode()
