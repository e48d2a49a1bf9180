"""Answers of the view's database to the questions of /v1 that /api does not have, as in `api/queries.py`."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, select, tuple_

from services.balances.api import queries, statements
from services.balances.api.answers import Entry, place
from services.balances.api.queries import Statement, entry, merged
from services.balances.api.v1.answers import Outcome, State
from services.balances.api.v1.parameters import DatedEntriesQuery, DatedPlace, DatedQuery, OutcomesQuery
from services.balances.projection.database import IS_OUTCOME, entries, events
from services.balances.projection.rows import DECLINE, OPENED, is_house
from shared.events.clients import OWNER_UNNAMED
from shared.events.postings import CREDIT, DEBIT

_FEES: Final = "fees@"
_LEGS_MAX: Final = 1000  # credit legs and reversals of one page: one each, unless an identity was used again


class EntriesFound(NamedTuple):
    """The account's owner, entries, and the place of the last one if others follow it."""

    owner: str
    entries: tuple[Entry, ...]
    last: DatedPlace | None


class OutcomesFound(NamedTuple):
    """Outcomes, and the place of the last one if others follow it."""

    outcomes: tuple[Outcome, ...]
    last: DatedPlace | None


def dated_entries(
    connection: Connection, name: str, query: DatedEntriesQuery, after: DatedPlace | None
) -> EntriesFound | None:
    """A page of an account's history by value date; None if there is no such account.

    That of a house account is in the ledger's order: it may have many entries of one day, and no index by day.
    """
    owner = queries.owner(connection, name)
    if owner is None:
        return None
    key = ("offset", "line") if is_house(name) else ("value_date", "offset", "line")
    page_of = partial(dated_entries_of, name, query=query, after=after)
    shown, end = merged(connection, name, query, page_of, key)
    last = None if end is None else DatedPlace(end.value_date, end.offset, end.line)
    return EntriesFound(owner, tuple(entry(name, row) for row in shown), last)


def outcomes(
    connection: Connection, query: OutcomesQuery, after: DatedPlace | None, reader: str | None = None
) -> OutcomesFound:
    """A page of the outcomes of a debtor's commands, or those of one payment_id.

    A client that is not the owner of the account sees what it submitted; a `reader` of None sees all. One statement
    finds the credit legs of all of them, and another one the reversals.
    """
    statement = outcomes_of(query, after)
    if reader is not None and reader != (queries.owner(connection, query.debtor) or OWNER_UNNAMED):
        statement = statement.where(events.c.client == reader)
    rows = connection.execute(statement).all()
    shown = rows[: query.limit]
    last = DatedPlace(shown[-1].value_date, shown[-1].offset, 0) if len(rows) > query.limit else None
    names = sorted({row.payment_id for row in shown})
    legs = {(leg.payment_id, leg.origin): leg for leg in connection.execute(credit_legs_of(query.debtor, names))}
    reversals = {row.reverses: row.payment_id for row in connection.execute(reversals_of(query.debtor, names))}
    lines: dict[tuple[int, int], list[Row[Any]]] = {}
    for line in connection.execute(lines_of([*shown, *legs.values()])):
        lines.setdefault((line.partition, line.offset), []).append(line)
    found = (
        _outcome(row, legs.get((row.payment_id, row.origin)), reversals.get(row.payment_id), lines) for row in shown
    )
    return OutcomesFound(tuple(found), last)


def dated_entries_of(account: str, currency: str, query: DatedEntriesQuery, after: DatedPlace | None) -> Statement:
    """An account's entries in one currency, each with its event: a page and one row more."""
    found = statements.entries_and_events(account, currency)
    place = entries.c.offset, entries.c.line
    if is_house(account):
        return _page(found, place, query, after and after[1:])
    return _page(found.where(entries.c.value_date.is_not(None)), (entries.c.value_date, *place), query, after)


def outcomes_of(query: OutcomesQuery, after: DatedPlace | None) -> Statement:
    """The events that decided a debtor's commands: a page and one row more; of one payment_id, by offset."""
    found = select(events).where(events.c.debtor == query.debtor, IS_OUTCOME)
    if query.payment_id is None:
        return _page(found, (events.c.value_date, events.c.offset), query, after and after[:2])
    return found.where(events.c.payment_id == query.payment_id).order_by(events.c.offset).limit(query.limit)


def credit_legs_of(debtor: str, payment_ids: Sequence[str]) -> Statement:
    """The credit legs of a debtor's payments, the first one of each last."""
    found = select(events).where(events.c.payment_id.in_(payment_ids), events.c.debtor == debtor)
    return found.where(events.c.kind == CREDIT).order_by(events.c.offset.desc()).limit(_LEGS_MAX)


def lines_of(rows: Sequence[Row[Any]]) -> Statement:
    """The lines of the postings among these events."""
    places = [(row.partition, row.offset) for row in rows if row.kind in {DEBIT, CREDIT}]
    found = select(entries).where(tuple_(entries.c.partition, entries.c.offset).in_(places))
    return found.order_by(entries.c.partition, entries.c.offset, entries.c.line)


def reversals_of(debtor: str, payment_ids: Sequence[str]) -> Statement:
    """The events of reversals of a debtor's payments, the first one of each last."""
    found = select(events.c.reverses, events.c.payment_id)
    found = found.where(events.c.reverses.in_(payment_ids), events.c.debtor == debtor)
    return found.order_by(events.c.offset.desc()).limit(_LEGS_MAX)


def _page(found: Statement, key: tuple[Any, ...], query: DatedQuery, after: tuple[Any, ...] | None) -> Statement:
    """Limit a statement to a page in the order of `key`, and one row more; a question with dates begins the key."""
    if query.since is not None:
        found = found.where(key[0] >= query.since)
    if query.to is not None:
        found = found.where(key[0] <= query.to)
    if query.order == "newest":
        found = found.order_by(*(column.desc() for column in key))
        found = found if after is None else found.where(tuple_(*key) < tuple_(*after))
    else:
        found = found.order_by(*key)
        found = found if after is None else found.where(tuple_(*key) > tuple_(*after))
    return found.limit(query.limit + 1)


def _outcome(
    row: Row[Any],
    credit: Row[Any] | None,
    reversed_by: str | None,
    lines: Mapping[tuple[int, int], Sequence[Row[Any]]],
) -> Outcome:
    amount_minor, currency = _debited(lines[row.partition, row.offset]) if row.kind == DEBIT else (None, None)
    credited = None if credit is None else lines[credit.partition, credit.offset][-1]  # the creditor's, or suspense's
    return Outcome(
        payment_id=row.payment_id,
        debtor=row.debtor,
        creditor=row.creditor,
        state=_state(row.kind, is_credited=credit is not None),
        reason=row.reason,
        reversal=row.reversal,
        opening=row.opening,
        reverses=row.reverses,
        reversed_by=reversed_by,
        amount_minor=amount_minor,
        currency=currency,
        fee_minor=row.fee_minor,
        credit_minor=None if credited is None else abs(credited.amount_minor),
        credit_currency=None if credited is None else credited.currency,
        rate=row.rate,
        value_date=row.value_date,
        reference=row.reference,
        client=row.client,
        key_id=row.key_id,
        version=row.version,
        timestamp_ms=row.timestamp_ms,
        at=place(row.partition, row.offset),
        credited_at=None if credit is None else place(credit.partition, credit.offset),
        origin=row.origin,
    )


def _debited(lines: Sequence[Row[Any]]) -> tuple[int, str]:
    """The amount of a debit leg without the fee, and its currency.

    The debtor's line is the first and includes the fee; the one in transit is the second; that of the fee may follow.
    """
    fee = sum(line.amount_minor for line in lines[2:] if line.account.startswith(_FEES))
    return abs(lines[0].amount_minor + fee), lines[0].currency


def _state(kind: str, *, is_credited: bool) -> State:
    if kind == DECLINE:
        return State.DECLINED
    if kind == OPENED:
        return State.OPENED
    return State.COMPLETED if is_credited else State.POSTED
