"""The page's questions to the view's tables, for `Reader`'s threads; and payments' ways, from the monitor's steps.

Invariant: a look is of one snapshot of the database, and its cost does not grow with the history: totals have a row for
each holder, and events are counted from where they were counted last. Steps are another process's word: a way ends,
whatever they say.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sqlalchemy import Connection, Select, func, select

from services.balances.api import queries, statements
from services.balances.api.answers import Way, Ways
from services.balances.projection.database import events
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.headers import Coordinates
from shared.http.monitor import POSTINGS_MAX, STEPS_MAX, Step


class Look(NamedTuple):
    """What the tables say."""

    events: Mapping[str, int]  # by kind
    balances: Mapping[tuple[str, str], int]  # minor units by holder and currency


class Posted(NamedTuple):
    """A record of ledger.postings that names a payment."""

    partition: int
    offset: int
    debtor: str

    @property
    def at(self) -> Coordinates:
        return Coordinates(LEDGER_POSTINGS, self.partition, self.offset)


class Looking:
    """Looks at the tables again and again, one look at a time."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[int, dict[str, int]]] = {}  # up to which offset, by partition

    def look(self, connection: Connection) -> Look:
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
    """The number of events of each kind from `start` on and before `end`."""
    wanted = select(events.c.kind, func.count()).where(
        events.c.partition == partition, events.c.offset >= start, events.c.offset < end
    )
    return wanted.group_by(events.c.kind)


def posted(connection: Connection, payment_id: str, debtor: str | None) -> list[Posted]:
    """At most POSTINGS_MAX postings of a payment_id, of one debtor or all."""
    rows = connection.execute(statements.events_of(payment_id, debtor)).fetchmany(POSTINGS_MAX)
    return [Posted(row.partition, row.offset, row.debtor) for row in rows]


def ways_of(payment_id: str, posted: Iterable[Posted], steps: Mapping[str, Step]) -> Ways:
    """The ways of postings of one payment_id, by the steps at each place that they go back to. Pure."""
    by_debtor: dict[str, list[str]] = {}
    for one in posted:
        by_debtor.setdefault(one.debtor, []).append(str(one.at))
    return Ways(
        payment_id, tuple(Way(debtor, _in_order(places, steps)) for debtor, places in sorted(by_debtor.items()))
    )


def _in_order(places: Iterable[str], steps: Mapping[str, Step]) -> tuple[Step, ...]:
    """Each record behind the one that it was made from, the older one of two first."""
    depths: dict[str, int] = {}
    for place in places:
        at: str | None = place
        chain: list[str] = []
        while at is not None and at in steps and len(chain) < STEPS_MAX:
            chain.append(at)
            at = steps[at].source
        depths |= {at: depth for depth, at in enumerate(reversed(chain))}
    return tuple(
        sorted((steps[at] for at in depths), key=lambda step: (depths[step.at], step.timestamp_ms or 0, step.at))
    )
