"""C5 and C7: what transactions do not cover: databases, and subscribers outside of them."""

import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from deploy import PROJECT_ROOT
from deploy.drills.clients.raw import values_of
from deploy.drills.clients.stock import stock_producer
from deploy.drills.clients.subscriber import COMMIT_EVERY, distinct
from deploy.drills.drill import Anomaly, drill
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.stage import Stage, until
from deploy.local.process import ManagedProcess

PATIENT_MS: Final = 20_000
"""For requests of transactions: an EndTxn that is repeated late ends the next transaction."""


@drill(
    "C5",
    "outbox-table",
    "By an outbox table each committed row is in the second database once; the topic between may have it twice",
    control=[Anomaly.DUPLICATE, Anomaly.LOSS],
    tags=["database", "crash"],
    reading=["docs/outbox-table.md"],
)
async def outbox_table(stage: Stage) -> None:
    """Write orders into a database, each with its event in the same transaction. Kill the relay after it has sent an
    event and before it has deleted it, and the view after it has written a row and before its commit. The topic has the
    event twice, the second database each order once. The control writes without an outbox table, and loses an event.
    """
    topic, brokers = await stage.topic(), stage.bootstrap_servers
    source, target = stage.directory / "source.sqlite", stage.directory / "target.sqlite"
    await _ended(_program(stage, "outbox_table", "order", source, 70), 0)
    committed = _rows(source, "SELECT id, amount_minor FROM orders ORDER BY id")
    stage.step(f"{len(committed)} orders committed, each with its event; every seventh transaction was rolled back")
    for name, path, after in (("relay", source, 25), ("view", target, 15)):
        await _ended(_program(stage, "outbox_table", name, path, brokers, topic, after), -signal.SIGKILL)
        stage.step(f"fault: the {name} died after event {after}, before it noted the event as done")
        stage.evidence(f"SIGKILL of the {name}", f"it ended by signal 9 after event {after}")
        _program(stage, "outbox_table", name, path, brokers, topic)
    await until(lambda: len(_rows(target, "SELECT 1 FROM orders")) == len(committed), "every order arrived")
    sent = await values_of(brokers, topic)
    stage.expect("orders lost", set(committed) - set(arrived := _rows(target, "SELECT * FROM orders")), set())
    stage.expect("orders in the second database", len(arrived), len(committed))
    stage.expect("order of the events, repeats left out", distinct(sent) == [b"%d" % one for _, one in committed], True)
    stage.anomaly(Anomaly.DUPLICATE, _twice(sent, topic))

    topic, naive, after = await stage.topic(), stage.directory / "naive.sqlite", 5
    await _ended(_program(stage, "outbox_table", "dual", naive, brokers, topic, 10, after), -signal.SIGKILL)
    stage.step(f"control: without an outbox table, the program died after it committed order {after}")
    stage.evidence("SIGKILL between commit and send", f"it ended by signal 9 at order {after}")
    sent_naive = set(await values_of(brokers, topic))
    committed = _rows(naive, "SELECT id, amount_minor FROM orders ORDER BY id")
    lost = [f"order {number}" for number, amount in committed if b"%d" % amount not in sent_naive]
    stage.anomaly(Anomaly.LOSS, lost)
    stage.journal.records = len(sent) + len(sent_naive)


@drill(
    "C7",
    "subscriber-outside-of-a-transaction",
    "A subscriber outside of any transaction may see a record twice; an identity lets it drop the repeat",
    control=[Anomaly.DUPLICATE],
    tags=["subscriber", "crash"],
    reading=["deploy/drills/clients/subscriber.py"],
)
async def subscriber_outside_of_a_transaction(stage: Stage) -> None:
    """Write records in transactions, and read them with a subscriber that works first and commits its offsets later.
    Kill it between the two: its successor works on the same records again, although each is in the topic once. Told
    apart by their identity, each record's work is done once.
    """
    topic, work, count = await stage.topic(), stage.directory / "work", 4 * COMMIT_EVERY
    async with stock_producer(
        stage.bootstrap_servers, transactional_id=f"{stage.name}-writer", request_timeout_ms=PATIENT_MS
    ) as producer:
        for first in range(0, count, COMMIT_EVERY):
            async with producer.transaction():
                for number in range(first, first + COMMIT_EVERY):
                    await producer.send(topic, b"payment", key=b"%d" % number, partition=0)
    arguments = (stage.bootstrap_servers, topic, f"{stage.name}-readers", work)
    subscriber = _program(stage, "subscriber", *arguments)
    due = range(COMMIT_EVERY + COMMIT_EVERY // 2, 2 * COMMIT_EVERY)
    await until(lambda: len(_lines(work)) in due, "it works since a commit")
    subscriber.kill()
    before = _lines(work)
    stage.step(f"fault: the subscriber died after {len(before)} records; it commits every {COMMIT_EVERY}")
    stage.evidence("SIGKILL of the subscriber", f"{len(before) % COMMIT_EVERY} records since its last commit")
    _program(stage, "subscriber", *arguments)
    await until(lambda: len(set(_lines(work))) == count, "all records are worked on")
    done, stored = _lines(work), await values_of(stage.bootstrap_servers, topic)
    stage.journal.records = len(stored)
    stage.expect("records in the topic", len(stored), count)
    stage.expect("records without work", [one for one in range(count) if b"%d" % one not in set(done)], [])
    stage.expect("work by identity", len(distinct(done)), count)
    stage.anomaly(Anomaly.DUPLICATE, _twice(done, "work"))


def _program(stage: Stage, module: str, *arguments: object) -> ManagedProcess:
    """Start a program of deploy.drills.clients, which is killed at the end of the drill."""
    name = "-".join([module, *(str(one) for one in arguments[:1] if "/" not in str(one) and ":" not in str(one))])
    argv = [sys.executable, "-m", f"deploy.drills.clients.{module}", *map(str, arguments)]
    process = ManagedProcess(name, argv, {}, stage.directory / f"{name}.log", cwd=PROJECT_ROOT)
    stage.resources.callback(process.kill)
    process.start()
    return process


async def _ended(process: ManagedProcess, code: int) -> None:
    """Wait until a program has ended; NoEvidenceError unless with this code, or this signal as a negative number."""
    await until(lambda: not process.running, f"{process.name} has ended")
    if process.returncode != code:
        raise NoEvidenceError(f"{process.name} ended with {process.returncode}, not {code}:\n{process.log_tail()}")


def _rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a SQLite database; none while its tables are not there."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
        return connection.execute(query).fetchall()


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file; none while it is not there."""
    return path.read_bytes().split() if path.exists() else []


def _twice(values: list[bytes], where: str) -> list[str]:
    """Return the values that are there more than once."""
    found = Counter(values)
    return [f"{where}: {value.decode()} {count} times" for value, count in found.items() if count > 1]
