"""Answers of the view's database to each question. Calls block: they are for a thread.

Invariant: a question is answered from the one transaction that it is given, so the rows and the positions that go with
them are of one moment. Each statement is served by an index, whatever the tables' size, and has a bound on its rows.
Two are about all balances: totals have a row for each holder, and the digest's rows are streamed. So memory does not
grow with the number of accounts, entries or payments. Money is added up in Python, see `database.Minor`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, Select

from services.balances.api import statements
from services.balances.api.answers import Balance, CurrencyTotal, Entry, Event, Holding, Line, Payment, Status, place
from services.balances.api.parameters import EntriesQuery, Place
from services.balances.api.statements import PAYMENT_EVENTS_MAX
from services.balances.api.v1.parameters import DatedEntriesQuery
from services.balances.projection.rows import CLIENTS, DECLINE, OPENED, Terms
from shared.events.postings import CREDIT, DEBIT

Statement = Select[*tuple[Any, ...]]

FETCHED_ROWS: Final = 1000  # of the digest, in memory at once


class AccountFound(NamedTuple):
    terms: Terms
    balances: tuple[Balance, ...]


class PageFound(NamedTuple):
    """Entries, and the place of the last one if others follow it."""

    entries: tuple[Entry, ...]
    last: Place | None


class PaymentsFound(NamedTuple):
    """Payments of one payment_id, and whether there are others."""

    payments: tuple[Payment, ...]
    more: bool


class DigestFound(NamedTuple):
    """The digest of all balances that are not 0, and their number."""

    digest: str
    balances: int


def positions(connection: Connection) -> dict[int, int]:
    """The next offset to be read, by partition, of those that were read."""
    return {row.partition: row.next_offset for row in connection.execute(statements.ALL_POSITIONS)}


def account(connection: Connection, name: str) -> AccountFound | None:
    terms = connection.execute(statements.terms_of(name)).one_or_none()
    if terms is None:
        return None
    rows = connection.execute(statements.balances_of(name))
    found = (Balance(row.currency, str(row.balance_minor), row.postings, row.last_offset) for row in rows)
    return AccountFound(Terms(*terms), tuple(found))


def owner(connection: Connection, name: str) -> str | None:
    """The owner of an account; None if there is no such account."""
    terms = connection.execute(statements.terms_of(name)).one_or_none()
    return None if terms is None else str(terms.owner)


def entries(connection: Connection, name: str, query: EntriesQuery, after: Place | None) -> PageFound | None:
    """A page of an account's history; None if there is no such account.

    The history of all currencies is merged from a page of each: one index serves both.
    """
    if connection.execute(statements.terms_of(name)).one_or_none() is None:
        return None

    def page_of(currency: str) -> Statement:
        return statements.entries_of(name, currency, query.order, after, query.limit + 1)

    shown, end = merged(connection, name, query, page_of, ("offset", "line"))
    return PageFound(tuple(entry(name, row) for row in shown), None if end is None else Place(end.offset, end.line))


def merged(
    connection: Connection,
    name: str,
    query: EntriesQuery | DatedEntriesQuery,
    page_of: Callable[[str], Statement],
    key: Sequence[str],
) -> tuple[Sequence[Row[Any]], Row[Any] | None]:
    """Merge a page of an account's entries from a page and one row more of each currency.

    Args:
        page_of: makes the statement for a currency's page.
        key: columns that the pages are ordered by.

    Returns the page, and its last row if others follow it.
    """
    currencies = connection.scalars(statements.currencies_of(name)) if query.currency is None else [query.currency]
    pages = [connection.execute(page_of(currency)).all() for currency in currencies]
    rows = list(islice(merge(*pages, key=attrgetter(*key), reverse=query.order == "newest"), query.limit + 1))
    shown = rows[: query.limit]
    return shown, shown[-1] if len(rows) > query.limit else None


def entry(name: str, row: Row[Any]) -> Entry:
    return Entry(
        at=place(row.partition, row.offset),
        line=row.line,
        timestamp_ms=row.timestamp_ms,
        payment_id=row.payment_id,
        leg=row.kind,
        reversal=row.reversal,
        counterparty=row.creditor if name == row.debtor else row.debtor,
        value_date=row.value_date,
        reference=row.reference,
        currency=row.currency,
        amount_minor=str(row.amount_minor),
        balance_minor=str(row.balance_minor),
    )


def totals(connection: Connection) -> tuple[CurrencyTotal, ...]:
    sums: dict[str, dict[str, tuple[int, int, int]]] = {}
    for row in connection.execute(statements.ALL_TOTALS):
        holders = sums.setdefault(row.currency, {})
        balance, left, came = holders.get(row.holder, (0, 0, 0))
        holders[row.holder] = balance + row.balance_minor, left + row.debits_minor, came + row.credits_minor
    return tuple(_currency_total(currency, holders) for currency, holders in sorted(sums.items()))


def _currency_total(currency: str, holders: dict[str, tuple[int, int, int]]) -> CurrencyTotal:
    sum_minor = sum(balance for balance, _, _ in holders.values())
    clients = holders.pop(CLIENTS, (0, 0, 0))
    return CurrencyTotal(
        currency,
        Holding(CLIENTS, *map(str, clients)),
        tuple(Holding(holder, *map(str, figures)) for holder, figures in sorted(holders.items())),
        str(sum_minor),
        sum_minor == 0,
    )


def payments(connection: Connection, payment_id: str, debtor: str | None) -> PaymentsFound:
    """The payments of one payment_id, of one debtor or all."""
    rows = connection.execute(statements.events_of(payment_id, debtor)).all()
    by_debtor = [list(group) for _, group in groupby(rows, attrgetter("debtor"))]
    more = len(rows) > PAYMENT_EVENTS_MAX
    if more and len(by_debtor) > 1:
        by_debtor.pop()  # it may be torn
    found = [_payment(connection, group) for group in by_debtor]
    return PaymentsFound(tuple(sorted(found, key=attrgetter("debtor"))), more)


_KINDS: Final = {DEBIT: 0, CREDIT: 1, DECLINE: 2, OPENED: 3}


def _payment(connection: Connection, rows: Sequence[Row[Any]]) -> Payment:
    events = sorted(rows, key=lambda row: (_KINDS[row.kind], row.partition, row.offset))
    first = events[0]
    reversed_by = connection.scalar(statements.reversal_of(first.payment_id, first.debtor))
    status, settled = _status(Counter(row.kind for row in events), is_reversed=reversed_by is not None)
    return Payment(
        payment_id=first.payment_id,
        debtor=first.debtor,
        creditor=first.creditor,
        status=status,
        settled=settled,
        reason=first.reason,
        reversal=first.reversal,
        reverses=first.reverses,
        reversed_by=reversed_by,
        value_date=first.value_date,
        reference=first.reference,
        fee_minor=str(first.fee_minor),
        rate=first.rate,
        client=first.client,
        key_id=first.key_id,
        events=tuple(_event(connection, row) for row in events),
    )


def _status(kinds: Counter[str], *, is_reversed: bool) -> tuple[Status, bool]:
    """The status, and whether nothing is under way."""
    settled = kinds[DEBIT] == kinds[CREDIT]
    if is_reversed:
        return Status.REVERSED, settled
    if not kinds[DEBIT] and not kinds[CREDIT]:
        return (Status.DECLINED if kinds[DECLINE] else Status.OPENED), True
    if settled:
        return Status.COMPLETED, True
    return (Status.DEBITED if kinds[DEBIT] > kinds[CREDIT] else Status.CREDITED), False


def _event(connection: Connection, row: Row[Any]) -> Event:
    lines = connection.execute(statements.lines_of(row.partition, row.offset))
    return Event(
        kind=row.kind,
        at=place(row.partition, row.offset),
        timestamp_ms=row.timestamp_ms,
        origin=row.origin,
        source=row.source,
        lines=tuple(
            Line(line.account, line.currency, str(line.amount_minor), str(line.balance_minor)) for line in lines
        ),
    )


def digest(connection: Connection) -> DigestFound:
    statement = statements.all_balances(connection.dialect.name)
    rows = connection.execution_options(yield_per=FETCHED_ROWS).execute(statement)
    found = hashlib.sha256()
    count = 0
    for name, currency, balance_minor in rows:
        if balance_minor != 0:
            found.update(f"{name} {currency} {balance_minor}\n".encode())
            count += 1
    return DigestFound(found.hexdigest(), count)
