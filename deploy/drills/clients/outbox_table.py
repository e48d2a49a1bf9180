"""A database to Kafka to a database, by an outbox table: three programs of a page, and the dual write for comparison.

    python -m deploy.drills.clients.outbox_table order  SOURCE COUNT
    python -m deploy.drills.clients.outbox_table relay  SOURCE BROKERS TOPIC [DIE_AFTER]
    python -m deploy.drills.clients.outbox_table view   TARGET BROKERS TOPIC [DIE_AFTER]
    python -m deploy.drills.clients.outbox_table dual   SOURCE BROKERS TOPIC COUNT DIE_AFTER

`order` writes each order and its event in one database transaction: both are there, or none. `relay` reads the events
in their order, sends them, and deletes them once all in-sync replicas have them. `view` writes each event's row and the
offset after it in one database transaction, and begins at the offset in the database.

What it promises: each committed order is in the topic at least once, in order, and in the second database exactly once.
What it does not: the topic may have an event twice, because database and Kafka have no common transaction. So an event
carries the number that the database gave it, and readers ignore a number that they have. Nor are the orders of one
transaction visible at once to readers of the topic.

`dual` is the naive way: it commits the order, and then sends the event. A crash between the two loses the event.
DIE_AFTER makes a process end by SIGKILL in the gap after so many events.
"""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from deploy.drills.clients.stock import stock_producer, stock_records

BATCH = 10
POLL_S = 0.1
CANCELLED_EVERY = 7
_SOURCE = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, amount_minor INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, amount_minor INTEGER NOT NULL);
"""
_TARGET = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, amount_minor INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS repeats (topic_offset INTEGER PRIMARY KEY, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS position (id INTEGER PRIMARY KEY CHECK (id = 0), next_offset INTEGER NOT NULL);
"""


@contextmanager
def database(path: str, schema: str) -> Iterator[sqlite3.Connection]:
    """Open a database whose transactions begin and end where the program says."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(schema)
        yield connection


def order(source: str, count: int) -> None:
    """Write orders, each with its event; each seventh transaction is rolled back."""
    with database(source, _SOURCE) as connection:
        for number in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO orders (amount_minor) VALUES (?)", (100 + number,))
            connection.execute("INSERT INTO outbox (amount_minor) VALUES (?)", (100 + number,))
            connection.execute("ROLLBACK" if number % CANCELLED_EVERY == 0 else "COMMIT")


async def relay(source: str, brokers: str, topic: str, die_after: int) -> None:
    """Send the events of the outbox table, and delete what was acknowledged."""
    sent = 0
    with database(source, _SOURCE) as connection:
        async with stock_producer(brokers, enable_idempotence=True, request_timeout_ms=10_000) as producer:
            while True:
                query = "SELECT number, amount_minor FROM outbox ORDER BY number LIMIT ?"
                events = connection.execute(query, (BATCH,)).fetchall()
                for number, amount_minor in events:
                    await producer.send_and_wait(topic, b"%d" % amount_minor, key=b"%d" % number, partition=0)
                    sent += 1
                    if sent == die_after:
                        os.kill(os.getpid(), signal.SIGKILL)  # sent, and not yet deleted
                connection.executemany("DELETE FROM outbox WHERE number = ?", [(number,) for number, _ in events])
                if not events:
                    await asyncio.sleep(POLL_S)


async def view(target: str, brokers: str, topic: str, die_after: int) -> None:
    """Write each event's row and the next offset in one transaction, from the offset in the database on."""
    taken = 0
    with database(target, _TARGET) as connection:
        [(start,)] = connection.execute("SELECT coalesce(max(next_offset), 0) FROM position").fetchall()
        async for record in stock_records(brokers, topic, 0, start):
            event = int(record.key), int(record.value)
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute("INSERT OR IGNORE INTO orders VALUES (?, ?)", event).rowcount:
                connection.execute("INSERT INTO repeats VALUES (?, ?)", (record.offset, event[0]))
            taken += 1
            if taken == die_after:
                os.kill(os.getpid(), signal.SIGKILL)  # written, and not yet committed
            connection.execute("INSERT OR REPLACE INTO position VALUES (0, ?)", (record.offset + 1,))
            connection.execute("COMMIT")


async def dual(source: str, brokers: str, topic: str, count: int, die_after: int) -> None:
    """Write orders, and send each event after its order was committed."""
    with database(source, _SOURCE) as connection:
        async with stock_producer(brokers, enable_idempotence=True, request_timeout_ms=10_000) as producer:
            for number in range(1, count + 1):
                connection.execute("INSERT INTO orders (amount_minor) VALUES (?)", (100 + number,))
                if number == die_after:
                    os.kill(os.getpid(), signal.SIGKILL)  # committed, and not yet sent
                await producer.send_and_wait(topic, b"%d" % (100 + number), key=b"%d" % number, partition=0)


def main(words: list[str]) -> None:
    """Run one of the programs."""
    match words:
        case ["order", source, count]:
            order(source, int(count))
        case ["relay", source, brokers, topic, *rest]:
            asyncio.run(relay(source, brokers, topic, int(rest[0]) if rest else 0))
        case ["view", target, brokers, topic, *rest]:
            asyncio.run(view(target, brokers, topic, int(rest[0]) if rest else 0))
        case ["dual", source, brokers, topic, count, die_after]:
            asyncio.run(dual(source, brokers, topic, int(count), int(die_after)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
