"""The page's questions to the view's tables, for `Reader`'s threads; and a payment's way through the topics, backwards.

Invariant: a look is of one snapshot of the database, and its cost does not grow with the history: totals have a row for
each holder, and events are counted from where they were counted last.

Each record names the one that it was made from: ledger.postings <- ledger.transfers <- payments.accepted <-
payments.raw; a credit leg has one more record of ledger.transfers before it. Invariant: each step is one bounded fetch
of one committed record at known coordinates, so the cost does not grow with the topics. Only a `Step` of a record is
shown.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sqlalchemy import Connection, Select, func, select

from services.balances.api import queries, statements
from services.balances.api.answers import Step, Way, Ways
from services.balances.projection.database import events
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS, PAYMENTS_RAW, TOPICS
from shared.events.headers import SOURCE, Coordinates, header
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import unavailable
from shared.kafka.client.reader import record_at
from shared.kafka.lineage.trace import describe

FOLLOWED_MAX: Final = 20  # postings of one payment_id: of some ten debtors that chose the same one
DEADLINE_S: Final = 5.0
STEPS_MAX: Final = 8  # from a posting to its raw record there are four or five, both counted
_KNOWN: Final = frozenset(topic.name for topic in TOPICS)


class Look(NamedTuple):
    """What the tables say."""

    events: Mapping[str, int]  # by kind
    balances: Mapping[tuple[str, str], int]  # minor units by holder and currency


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
    """At most FOLLOWED_MAX postings of a payment_id, of one debtor or all."""
    rows = connection.execute(statements.events_of(payment_id, debtor)).fetchmany(FOLLOWED_MAX)
    return [Posted(row.partition, row.offset, row.debtor) for row in rows]


async def ways_of(
    bootstrap_servers: Bootstrap, payment_id: str, posted: Iterable[Posted], deadline_s: float = DEADLINE_S
) -> Ways:
    """Follow postings of one payment_id back to the raw records; KafkaUnavailableError if that takes too long."""
    by_debtor: dict[str, dict[Coordinates, Step]] = {}
    try:
        async with asyncio.timeout(deadline_s), Cluster(bootstrap_servers, deadline_s=deadline_s) as cluster:
            for one in posted:
                steps = by_debtor.setdefault(one.debtor, {})
                await _follow(cluster, Coordinates(LEDGER_POSTINGS, one.partition, one.offset), steps)
    except TimeoutError as error:
        raise unavailable(bootstrap_servers, f"the way was not found out within {deadline_s:g} s") from error
    return Ways(payment_id, tuple(Way(debtor, in_order(steps)) for debtor, steps in sorted(by_debtor.items())))


async def _follow(cluster: Cluster, at: Coordinates, steps: dict[Coordinates, Step]) -> None:
    """Add a record and all before it, up to one that is known already: both legs have one beginning."""
    for _ in range(STEPS_MAX):
        if at in steps:
            return
        record = await record_at(cluster, at) if at.topic in _KNOWN else None
        step = step_of(at, record)
        steps[at] = step
        if step.source is None:
            return
        at = Coordinates.decode(step.source.encode())  # written by a service of this project, in a committed record


def step_of(at: Coordinates, record: Record | None) -> Step:
    """What is shown of a record, or of one that is missing. Pure."""
    if record is None:
        return Step("not there", at.topic, at.partition, at.offset, str(at), None, None, found=False)
    source = None if at.topic == PAYMENTS_RAW else header(record.headers, SOURCE)
    return Step(
        describe(record),
        at.topic,
        at.partition,
        at.offset,
        str(at),
        record.timestamp_ms,
        None if source is None else source.decode(),
        found=True,
    )


def in_order(steps: dict[Coordinates, Step]) -> tuple[Step, ...]:
    """Each record behind the one that it was made from, the older one of two first. Pure."""
    depths: dict[str, int] = {}

    def depth(step: Step) -> int:
        if step.at not in depths:
            before = None if step.source is None else by_place.get(step.source)
            depths[step.at] = 0 if before is None else depth(before) + 1
        return depths[step.at]

    by_place = {step.at: step for step in steps.values()}
    return tuple(sorted(steps.values(), key=lambda step: (depth(step), step.timestamp_ms or 0, step.at)))
