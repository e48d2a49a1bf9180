"""What the page asks of the view's tables, as questions for `Reader`. Calls block: they are for its threads.

What holds: a look is of one snapshot of the database, and its cost does not grow with the history: totals have a row
for each holder, and events are counted from where they were counted last. It must not know how fresh the tables are.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from sqlalchemy import Connection, Select, func, select

from services.balances.api import queries, statements
from services.balances.projection.schema import events

FOLLOWED_MAX: Final = 20
"""Records of ledger.postings with one payment_id that are followed: of some ten debtors that chose the same one."""


class Look(NamedTuple):
    """What the tables say.

    Attributes:
        events: how many of each kind.
        balances: minor units by holder and currency.
    """

    events: Mapping[str, int]
    balances: Mapping[tuple[str, str], int]


class Posted(NamedTuple):
    """A record of ledger.postings that names a payment."""

    partition: int
    offset: int
    debtor: str


class Looking:
    """Looks at the tables again and again, one look at a time."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[int, dict[str, int]]] = {}  # up to which offset, by partition

    def look(self, connection: Connection) -> Look:
        """Look once, in a transaction."""
        ends = queries.positions(connection)
        balances: dict[tuple[str, str], int] = {}
        for row in connection.execute(statements.ALL_TOTALS):
            key = row.holder, row.currency
            balances[key] = balances.get(key, 0) + row.balance_minor
        self._counted = {partition: (end, self._count(connection, partition, end)) for partition, end in ends.items()}
        kinds: dict[str, int] = {}
        for _, by_kind in self._counted.values():
            for kind, count in by_kind.items():
                kinds[kind] = kinds.get(kind, 0) + count
        return Look(kinds, balances)

    def _count(self, connection: Connection, partition: int, end: int) -> dict[str, int]:
        start, known = self._counted.get(partition, (0, {}))
        if end < start:  # the view is rebuilt
            start, known = 0, {}
        found = dict(known)
        if end > start:
            for kind, count in connection.execute(events_between(partition, start, end)):
                found[kind] = found.get(kind, 0) + count
        return found


def events_between(partition: int, start: int, end: int) -> Select[str, int]:
    """How many events of each kind stand from `start` on and before `end`."""
    wanted = select(events.c.kind, func.count()).where(
        events.c.partition == partition, events.c.offset >= start, events.c.offset < end
    )
    return wanted.group_by(events.c.kind)


def posted(connection: Connection, payment_id: str, debtor: str | None) -> list[Posted]:
    """What was posted of a payment_id, at most FOLLOWED_MAX records.

    Args:
        connection: in a transaction.
        payment_id: as its debtors chose it.
        debtor: only this one's; None for all.
    """
    rows = connection.execute(statements.events_of(payment_id, debtor)).fetchmany(FOLLOWED_MAX)
    return [Posted(row.partition, row.offset, row.debtor) for row in rows]
