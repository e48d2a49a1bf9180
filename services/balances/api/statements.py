"""Statements for the view's database. Pure."""

from typing import Any, Final, Literal

from sqlalchemy import Select, select, tuple_

from services.balances.api.parameters import Place
from services.balances.projection.database import POSTGRESQL, accounts, balances, entries, events, positions, totals
from services.balances.projection.rows import Terms

PAYMENT_EVENTS_MAX: Final = 100  # for one payment_id: some 50 payments of as many debtors

ALL_POSITIONS: Final = select(positions.c.partition, positions.c.next_offset)
ALL_TOTALS: Final = select(
    totals.c.holder, totals.c.currency, totals.c.balance_minor, totals.c.debits_minor, totals.c.credits_minor
)


def terms_of(account: str) -> Select[*tuple[Any, ...]]:
    """An account's `Terms`. Every account that was opened or posted to has a row."""
    return select(*(accounts.c[name] for name in Terms._fields)).where(accounts.c.account == account)


def balances_of(account: str) -> Select[str, int, int, int]:
    """An account's balances: currency, balance, postings, last offset."""
    return (
        select(balances.c.currency, balances.c.balance_minor, balances.c.postings, balances.c.last_offset)
        .where(balances.c.account == account)
        .order_by(balances.c.currency)
    )


def currencies_of(account: str) -> Select[str]:
    """The currencies that an account has entries in."""
    return select(balances.c.currency).where(balances.c.account == account)


def entries_of(
    account: str, currency: str, order: Literal["newest", "oldest"], after: Place | None, limit: int
) -> Select[*tuple[Any, ...]]:
    """An account's entries in one currency, each with its event.

    They begin behind the entry `after`, or at the end that `order` names.
    """
    place = entries.c.offset, entries.c.line
    found = entries_and_events(account, currency).limit(limit)
    if order == "newest":
        found = found.order_by(*(column.desc() for column in place))
        return found if after is None else found.where(tuple_(*place) < tuple_(*after))
    found = found.order_by(*place)
    return found if after is None else found.where(tuple_(*place) > tuple_(*after))


def entries_and_events(account: str, currency: str) -> Select[*tuple[Any, ...]]:
    """An account's entries in one currency, each with its event, in no order."""
    return (
        select(
            *(entries.c[name] for name in ("partition", "offset", "line", "currency", "amount_minor", "balance_minor")),
            *(events.c[name] for name in ("timestamp_ms", "payment_id", "kind", "reversal", "debtor", "creditor")),
            *(events.c[name] for name in ("value_date", "reference")),
        )
        .join(events, (events.c.partition == entries.c.partition) & (events.c.offset == entries.c.offset))
        .where(entries.c.account == account, entries.c.currency == currency)
    )


def events_of(payment_id: str, debtor: str | None) -> Select[*tuple[Any, ...]]:
    """The events of a payment_id, all of one debtor's together; one row more than PAYMENT_EVENTS_MAX."""
    found = select(events).where(events.c.payment_id == payment_id)
    if debtor is not None:
        found = found.where(events.c.debtor == debtor)
    return found.order_by(events.c.debtor).limit(PAYMENT_EVENTS_MAX + 1)


def lines_of(partition: int, offset: int) -> Select[str, str, int, int]:
    return (
        select(entries.c.account, entries.c.currency, entries.c.amount_minor, entries.c.balance_minor)
        .where(entries.c.partition == partition, entries.c.offset == offset)
        .order_by(entries.c.line)
    )


def reversal_of(payment_id: str, debtor: str) -> Select[str]:
    """The payment_id of the reversal that took a payment back."""
    return select(events.c.payment_id).where(events.c.reverses == payment_id, events.c.debtor == debtor).limit(1)


def all_balances(dialect: str) -> Select[str, str, int]:
    """Account, currency and balance of all, sorted by bytes: PostgreSQL sorts by its locale unless asked otherwise."""
    key = balances.c.account, balances.c.currency
    by_bytes = [column.collate("C") for column in key] if dialect == POSTGRESQL else key
    return select(*key, balances.c.balance_minor).order_by(*by_bytes)
