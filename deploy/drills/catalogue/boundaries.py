"""C4 to C7: what transactions do not cover: databases, other clusters, and subscribers outside of them."""

import asyncio
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from deploy import PROJECT_ROOT
from deploy.drills import opinions
from deploy.drills.admin import create_topic
from deploy.drills.clients.raw import RawProducer, values_of
from deploy.drills.clients.stock import stock_producer
from deploy.drills.clients.subscriber import COMMIT_EVERY, distinct
from deploy.drills.drill import Anomaly, Needs, drill
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.faults.processes import Kill
from deploy.drills.judge import verified
from deploy.drills.mirror import mirror
from deploy.drills.stage import Stage
from deploy.drills.waiting import until
from deploy.drills.workload import flowing
from deploy.local.kafka.cluster import LocalKafka
from deploy.local.process import ManagedProcess
from deploy.local.supervisor.component import Component
from deploy.local.supervisor.topology import VIEW
from shared.eos import crash
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.headers import SOURCE, header
from shared.events.postings import Posting, decode_ledger_event
from shared.kafka.client.reader import read_topics

MIRRORED: Final = 40
PATIENT_MS: Final = 20_000
"""For requests of transactions: an EndTxn that is repeated late ends the next transaction."""
_POLL_S: Final = 0.2


@drill(
    "C4",
    "view-killed-while-it-writes",
    "The view has each posting once, wherever it is killed: rows and offsets are in one database transaction",
    needs=Needs.SERVICES,
    tags=["view", "crash"],
    within_s=240,
    reading=["services/balances/README.md", "docs/adr/0012-view.md"],
)
async def view_killed_while_it_writes(stage: Stage) -> None:
    """Kill the view before and after its database commits, while it takes its partitions over, and at a random moment
    under load. It begins again at the offset in the database. Then the number of postings that its database counts for
    each account is compared with ledger.postings, and its balances with those that `once verify` folds.
    """
    view = stage.target.component(VIEW)
    async with flowing(stage, 50):
        for point in crash.VIEW_POINTS:
            await _die_at(stage, view, f"{point}=kill:{1 if point == crash.TAKING_OVER else 2}")
        await stage.target.ready(VIEW)
        await asyncio.sleep(stage.random.random())  # the claim is about any moment
        async with stage.fault(Kill(VIEW)):
            pass
    verdict = await verified(stage, at_least=stage.journal.records)
    viewed = await opinions.view(view.endpoint)
    stage.expect("digest of the view's balances", viewed.balances, verdict.balances_digest)
    posted, counted = await _posted(stage), _counted(stage.target.directory / "data" / "view" / "balances.sqlite")
    stage.expect("postings counted, over all accounts", counted.total(), posted.total())
    stage.anomaly(Anomaly.LOSS, [f"{one}: {posted[one]} postings, {counted[one]} counted" for one in posted - counted])
    more = [f"{one}: {posted[one]} postings, {counted[one]} counted" for one in counted - posted]
    stage.anomaly(Anomaly.DUPLICATE, more)


async def _die_at(stage: Stage, service: Component, point: str) -> None:
    """Start a service of the stack again with a crash point, and wait until it has died there."""
    restarts, environment = service.restarts, service.process.env
    environment["ONCE_CRASH_POINT"] = point
    try:
        service.kill()
        await until(lambda: service.restarts > restarts and not service.process.running, f"{point} is reached", 90.0)
    finally:
        del environment["ONCE_CRASH_POINT"]
    if service.process.returncode != -signal.SIGKILL:
        raise NoEvidenceError(f"{service.name} ended with {service.process.returncode}, not at {point}")
    stage.step(f"{service.name} died at {point}")
    stage.evidence(f"SIGKILL of {service.name} at {point}", f"it ended by signal 9, {service.restarts} restarts so far")


async def _posted(stage: Stage) -> Counter[str]:
    """Count the postings of each account and currency in ledger.postings; a repeated source counts once."""
    found: Counter[str] = Counter()
    sources: set[tuple[int, bytes]] = set()

    def take(_topic: str, partition: int, records: list[Record]) -> None:
        for record in records:
            source = partition, header(record.headers, SOURCE) or b""
            event = decode_ledger_event(record.value or b"")
            if source not in sources and isinstance(event, Posting):
                found.update({f"{entry.account} {entry.currency}" for entry in event.entries})
            sources.add(source)

    await read_topics(stage.access, [LEDGER_POSTINGS], take)
    return found


def _counted(path: Path) -> Counter[str]:
    """Return the postings that the view's database counts for each account and currency."""
    return Counter(dict(_rows(path, "SELECT account || ' ' || currency, postings FROM balances")))


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
    "C6",
    "replication-to-a-second-cluster",
    "MirrorMaker 2 does not carry a transaction's atomicity to a second cluster: a reconciliation finds the difference",
    control=[Anomaly.TORN, Anomaly.ABORTED_READ],
    tags=["replication"],
    within_s=180,
    reading=["KIP-382", "deploy/drills/mirror.py"],
)
async def replication_to_a_second_cluster(stage: Stage) -> None:
    """Write each payment's debit and credit in one transaction, to two topics, and abort some. On the first cluster a
    read_committed reader has both or none. MirrorMaker 2 copies record by record, and the second cluster refuses those
    of one topic, whose max.message.bytes is smaller there. Its readers see debits without credits, and aborted ones.
    """
    debits, credits_, aborted = await stage.topic(), await stage.topic(), range(0, MIRRORED, 5)
    async with stock_producer(
        stage.bootstrap_servers, transactional_id=f"{stage.name}-writer", request_timeout_ms=PATIENT_MS
    ) as producer:
        for number in range(MIRRORED):
            await producer.begin_transaction()
            for topic in (debits, credits_):
                await producer.send_and_wait(topic, b"payment-%d" % number, partition=0)
            await (producer.abort_transaction() if number in aborted else producer.commit_transaction())
    stage.step(f"{MIRRORED} payments written, {len(aborted)} of them aborted; starting a second cluster of one broker")
    second = LocalKafka(stage.directory / "second", 1, heap_mb=256)
    stage.resources.callback(second.kill)
    await asyncio.to_thread(second.start)
    await asyncio.to_thread(second.wait_ready, 90)
    await create_topic(second.bootstrap_servers, debits)
    await create_topic(second.bootstrap_servers, credits_, max_message_bytes="10")
    async with RawProducer(second.bootstrap_servers) as client:
        refused = (await client.produce(credits_, [b"payment"])).error
    if not refused:
        raise NoEvidenceError(f"the second cluster takes records of {credits_}")
    stage.evidence("records of one topic refused", f"the second cluster's broker answers {refused} for {credits_}")
    mirroring = mirror(stage.bootstrap_servers, second.bootstrap_servers, [debits, credits_], stage.directory)
    stage.resources.callback(mirroring.kill)
    mirroring.start()
    await _copied(second.bootstrap_servers, debits, MIRRORED, mirroring)
    there = [await values_of(second.bootstrap_servers, topic) for topic in (debits, credits_)]
    here = [await values_of(stage.bootstrap_servers, topic) for topic in (debits, credits_)]
    stage.journal.records = sum(map(len, (*here, *there)))
    stage.expect("first cluster: payments", len(here[0]), MIRRORED - len(aborted))
    stage.expect("first cluster: debits and credits that lack the other", set(here[0]) ^ set(here[1]), set())
    stage.step("the second cluster reconciled with the first, payment by payment")
    committed = set(here[0])
    stage.anomaly(Anomaly.ABORTED_READ, [f"{one.decode()} in {debits}" for one in there[0] if one not in committed])
    torn = sorted(committed & (set(there[0]) ^ set(there[1])))
    stage.anomaly(Anomaly.TORN, [f"{one.decode()}: of debit and credit one is there" for one in torn])


async def _copied(brokers: str, topic: str, count: int, mirroring: ManagedProcess) -> None:
    """Wait until a topic has so many records.

    Raises:
        NoEvidenceError: MirrorMaker has ended before; the message has the end of its log.
    """
    while len(await values_of(brokers, topic)) < count:
        if not mirroring.running:
            raise NoEvidenceError(f"MirrorMaker ended with {mirroring.returncode}:\n{mirroring.log_tail()}")
        await asyncio.sleep(_POLL_S)


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
    Kill it between the two: its successor works on the same records again, although each is in the topic once.
    Deduplicated by the records' identity, each one's work is done once.
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
