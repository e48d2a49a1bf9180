"""Postings that flow into a real ledger.postings, and the expected view, folded from the topic itself.

The postings are those of a ledger in memory. Some are first written in an aborted transaction: a reader of aborted
records has them twice. The fold knows the event schemas, and of the view only its tables.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import URL, Engine, func, select

from services.balances.projection import database
from shared.eos.records import Output, Record
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.clients import OPERATOR
from shared.events.headers import SOURCE, Headers, header
from shared.events.postings import Posting, decode_ledger_event, encode_ledger_event
from shared.events.transfers import AccountClosed, AccountOpened, Transfer
from shared.kafka.client.reader import read_topics, stable_offsets
from shared.kafka.runtime.producer import TransactionalProducer
from tests.harness import eventually, settled
from tests.ledgers import DAY, Ledger
from tests.topics import TIMEOUT_MS, producing

HOUSE = 6
ABORTED_SHARE = 0.2

_upstreams = itertools.count()
"""The source partition of each flow's postings: sources ascend within one partition only."""


class Flow:
    """Writes a ledger's postings.

    Args:
        producer: initialised.
        seed: of the payments.
        accounts: how many client accounts there are.

    Attributes:
        aborted: records that were written and aborted.
    """

    def __init__(self, producer: TransactionalProducer, seed: int = 1, accounts: int = 40) -> None:
        self._producer = producer
        self._chance = random.Random(seed)
        self._accounts = accounts
        self._ledger = Ledger()
        self._upstream = next(_upstreams)
        self._given = 0
        self._number = 0
        self.aborted = 0

    def some(self, payments: int) -> list[Output]:
        """The postings of further payments."""
        chance = self._chance
        for _ in range(payments):
            self._number += 1
            creditor = f"client-{chance.randrange(self._accounts)}"
            amount = chance.randrange(1, 10**6)
            currency = chance.choice(["EUR", "EUR", "USD"])
            debtor = f"cash@{chance.randrange(HOUSE)}"
            if chance.random() < 0.3:
                debtor = f"client-{self._accounts + chance.randrange(5)}"  # without money: a decline
            paid = amount, currency
            name = f"p-{self._number}"
            self._ledger.send(
                Transfer(name, debtor, creditor, *paid, *paid, DAY, reference="rent", submitted_by=OPERATOR)
            )
            if chance.random() < 0.05:
                closes = chance.random() < 0.5
                self._ledger.send(AccountClosed(creditor) if closes else AccountOpened(creditor, amount))
        self._ledger.drain()
        events, self._given = self._ledger.events[self._given :], len(self._ledger.events)
        return [
            Output(LEDGER_POSTINGS, partition, None, encode_ledger_event(event), self._headers(number))
            for number, (partition, event) in enumerate(events, start=len(self._ledger.events) - len(events))
        ]

    def _headers(self, number: int) -> Headers:
        return ("origin", b"payments.raw:0:1"), ("source", b"ledger.transfers:%d:%d" % (self._upstream, number))

    async def write(self, outputs: list[Output], *, commit: bool = True) -> None:
        """Write one transaction."""
        await self._producer.begin()
        self._producer.append(outputs, time.time_ns() // 1_000_000)
        await self._producer.flush()
        await (self._producer.commit() if commit else self._producer.abort())

    @asynccontextmanager
    async def opened(self, outputs: list[Output]) -> AsyncIterator[None]:
        """A transaction that stays open in the context, and is aborted at its end."""
        await self._producer.begin()
        self._producer.append(outputs, time.time_ns() // 1_000_000)
        await self._producer.flush()
        yield
        await self._producer.abort()

    async def pour(self, transactions: int, payments: int = 20) -> None:
        """Write transactions of payments, some of them aborted first."""
        for _ in range(transactions):
            outputs = self.some(payments)
            if self._chance.random() < ABORTED_SHARE:
                await self.write(outputs, commit=False)
                self.aborted += len(outputs)
            await self.write(outputs)


@asynccontextmanager
async def flowing(
    bootstrap_servers: str, seed: int = 1, accounts: int = 40, timeout_ms: int = TIMEOUT_MS
) -> AsyncIterator[Flow]:
    """A flow with a producer of its own; `timeout_ms` as for `producing`."""
    producer = await producing(bootstrap_servers, timeout_ms)
    try:
        yield Flow(producer, seed, accounts)
    finally:
        await producer.discard()


@dataclass
class Books:
    """Content of a view, actual or expected."""

    balances: dict[tuple[str, str], int] = field(default_factory=dict)
    totals: dict[tuple[int, str, str], tuple[int, int, int]] = field(default_factory=dict)
    terms: dict[str, tuple[int | None, bool]] = field(default_factory=dict)
    entries: dict[tuple[int, int, int], tuple[str, str, int, int]] = field(default_factory=dict)
    events: Counter[tuple[int, str]] = field(default_factory=Counter)
    postings: Counter[tuple[str, str]] = field(default_factory=Counter)
    repeats: int = field(default=0, compare=False)
    _sources: set[tuple[int, bytes]] = field(default_factory=set, compare=False)

    def take(self, record: Record) -> None:
        """Fold one record of the topic; a record with a repeated source on its partition is only counted."""
        source = record.partition, header(record.headers, SOURCE) or b""
        if source in self._sources:
            self.repeats += 1
            return
        self._sources.add(source)
        event = decode_ledger_event(record.value or b"")
        partition, offset = record.partition, record.offset
        if isinstance(event, AccountOpened):
            self.terms[event.account] = (event.overdraft_minor, False)
        elif isinstance(event, AccountClosed):
            self.terms[event.account] = (self.terms.get(event.account, (0, False))[0], True)
        elif not isinstance(event, Posting):
            self.events[partition, "decline"] += 1
        else:
            self.events[partition, event.leg] += 1
            for line, (account, currency, amount) in enumerate(map(_fields, event.entries)):
                balance = self.balances.get((account, currency), 0) + amount
                self.balances[account, currency] = balance
                self.entries[partition, offset, line] = (account, currency, amount, balance)
                house, is_house, _ = account.rpartition("@")
                key = (partition, house if is_house else "clients", currency)
                total, debits, credited = self.totals.get(key, (0, 0, 0))
                self.totals[key] = (total + amount, debits + max(-amount, 0), credited + max(amount, 0))
                self.terms.setdefault(account, (None if is_house else 0, False))
            self.postings.update({(entry.account, entry.currency) for entry in event.entries})


def _fields(entry: Any) -> tuple[str, str, int]:
    return entry.account, entry.currency, entry.amount_minor


async def folded(bootstrap_servers: str) -> tuple[Books, dict[int, int]]:
    """The topic folded, and each partition's last stable offset."""
    books = Books()
    ends = await read_topics(bootstrap_servers, [LEDGER_POSTINGS], lambda _topic, _number, found: _take(books, found))
    return books, {number: end for (_, number), end in ends.items()}


def _take(books: Books, records: list[Record]) -> None:
    for record in records:
        books.take(record)


def held(url: URL) -> tuple[Books, dict[int, int]]:
    """The view's database and its positions, in one snapshot."""
    engine = database.reading(url)
    with engine.connect() as connection, connection.begin():
        rows = {
            table: [row._mapping for row in connection.execute(select(table))]
            for table in (database.balances, database.totals, database.accounts, database.entries, database.positions)
        }
        kinds = connection.execute(
            select(database.events.c.partition, database.events.c.kind, func.count()).group_by(
                database.events.c.partition, database.events.c.kind
            )
        ).all()
    engine.dispose()
    books = Books(
        {(row["account"], row["currency"]): row["balance_minor"] for row in rows[database.balances]},
        {
            (row["partition"], row["holder"], row["currency"]): (
                row["balance_minor"],
                row["debits_minor"],
                row["credits_minor"],
            )
            for row in rows[database.totals]
        },
        {row["account"]: (row["overdraft_minor"], row["closed"]) for row in rows[database.accounts]},
        {
            (row["partition"], row["offset"], row["line"]): (
                row["account"],
                row["currency"],
                row["amount_minor"],
                row["balance_minor"],
            )
            for row in rows[database.entries]
        },
        Counter({(partition, kind): count for partition, kind, count in kinds}),
        Counter({(row["account"], row["currency"]): row["postings"] for row in rows[database.balances]}),
    )
    return books, {row["partition"]: row["next_offset"] for row in rows[database.positions]}


def positions(engine: Engine) -> dict[int, int]:
    """Positions of the view's database, over a reader's connections."""
    with engine.connect() as connection, connection.begin():
        found = connection.execute(select(database.positions.c.partition, database.positions.c.next_offset)).all()
        return {row.partition: row.next_offset for row in found}


async def wait_caught_up(bootstrap_servers: str, url: URL, deadline_s: float = 60.0) -> None:
    """Wait until the database is at each partition's last stable offset, markers passed, no transaction open."""

    engine = database.reading(url)

    async def caught_up() -> bool:
        stable = await stable_offsets(bootstrap_servers, [LEDGER_POSTINGS])
        return positions(engine) == {number: end for (_, number), end in stable.items()}

    await eventually(lambda: settled(bootstrap_servers, [LEDGER_POSTINGS]), "markers written")
    try:
        await eventually(caught_up, "the view caught up", deadline_s)
    finally:
        engine.dispose()


async def assert_view_is_the_topic(bootstrap_servers: str, url: URL) -> Books:
    """Check every balance, total, account, entry and count against the folded topic, at the same offsets."""
    expected, ends = await folded(bootstrap_servers)
    found, at = held(url)
    assert at == ends
    assert found.entries == expected.entries
    assert found == expected
    assert expected.entries
    return found
