"""The view's store against real databases: SQLite in a file, and a PostgreSQL server."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import URL, insert, select, update
from sqlalchemy.exc import DBAPIError

from deploy.local.kafka.cluster import LocalKafka
from services.balances.api import queries
from services.balances.api.reader import DatabaseUnavailableError, Reader
from services.balances.projection import database, lag, writing
from services.balances.projection.domain import Move, Plan, Position, plan
from services.balances.projection.store import DatabaseAwayError, ForeignDatabaseError, OvertakenError, Store
from services.balances.projection.writing import Writing
from shared.eos.crash import AFTER_DATABASE_COMMIT, BEFORE_DATABASE_COMMIT
from shared.eos.errors import FatalError
from shared.eos.sources import SeenSources
from shared.events.codec import InternalInputError
from shared.events.postings import DEBIT, Decline, Entry, Posting
from shared.events.transfers import AccountClosed, AccountOpened, TransferRecord
from shared.kafka.admin.scratch import create_topic, delete_topic
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.idempotent import IdempotentWriter
from shared.telemetry.server import Health
from tests.harness import eventually
from tests.ledgers import CREDITOR, DAY, DEBTOR, Ledger, P, Q, reversal, transfer
from tests.partitions import PARTITIONS
from tests.postgres import Postgres
from tests.view_tables import MemoryTables, made_from, page, record, topic, whole

pytestmark = pytest.mark.timeout(120)

CLUSTER = "cluster-1"
BEYOND_64_BITS = 2**63 - 1
DECLINE = Decline("p", DEBTOR, "insufficient_funds", DAY)


@pytest.fixture
def store(view_url: URL) -> Iterator[Store]:
    made = Store(view_url, PARTITIONS)
    assert made.open(CLUSTER) is None
    yield made
    made.close()


@pytest.fixture
def rival(view_url: URL, store: Store) -> Iterator[Store]:
    """Another instance's store of the same database."""
    made = Store(view_url, PARTITIONS)
    assert made.open(CLUSTER) is None
    yield made
    made.close()


def contents(url: URL) -> dict[str, list[dict[str, Any]]]:
    """Read all rows of all tables over a reader's connection."""
    engine = database.reading(url)
    with engine.connect() as connection, connection.begin():
        found = {
            name: sorted((dict(row._mapping) for row in connection.execute(select(table))), key=repr)
            for name, table in database.metadata.tables.items()
        }
    engine.dispose()
    return found


def in_memory(tables: MemoryTables) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of tables in memory."""
    positions = [
        {
            "partition": number,
            "next_offset": at.next_offset,
            "timestamp_ms": at.timestamp_ms,
            "sources": at.sources,
        }
        for number, at in tables.positions.items()
    ]
    rows = {name: list(found.values()) for name, found in tables.tables.items()}
    view = [{"version": database.VERSION, "cluster_id": CLUSTER}]
    return {name: sorted(found, key=repr) for name, found in (rows | {"positions": positions, "view": view}).items()}


def one(partition: int = P, start: int = 0) -> Plan:
    """Plan the insertion of one decline."""
    return plan([page(partition, start, start + 2, record(partition, start, DECLINE))], {partition: Position(start, 0)})


def business(seed: int) -> Ledger:
    """Make a ledger with payments, declines, reversals, terms and amounts beyond 32 bits."""
    chance = random.Random(seed)
    ledger = Ledger()
    ledger.send(AccountOpened(DEBTOR, None))
    for number in range(60):
        ledger.send(transfer(f"p-{number}", chance.randrange(1, 2**60), chance.randrange(3)))
        if number % 9 == 4:
            ledger.send(reversal(f"r-{number}", f"p-{chance.randrange(number)}"))
        if number % 20 == 10:
            changes: list[TransferRecord] = [
                AccountClosed(CREDITOR),
                AccountOpened(CREDITOR, 5),
                AccountOpened("704", 9),
            ]
            ledger.send(chance.choice(changes))
        if chance.random() < 0.7:
            ledger.drain()
    ledger.drain()
    return ledger


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_the_domain_for_any_division_into_pages(store: Store, view_url: URL, seed: int) -> None:
    chance = random.Random(seed)
    logs = topic(business(seed).events)
    tables = MemoryTables()
    while any(tables.positions[number].next_offset < 2 * len(log) for number, log in enumerate(logs)):
        pages = []
        for number in chance.sample(range(PARTITIONS), 3):
            start = tables.positions[number].next_offset
            end = min(start + chance.randrange(30), 2 * len(logs[number]))
            pages.append(page(number, start, end, *(found for found in logs[number] if start <= found.offset < end)))
        made = plan(pages, store.positions())
        store.write(made)
        tables.write(made)

    assert contents(view_url) == in_memory(tables)
    assert store.positions() == tables.positions


def test_sums_beyond_64_bits_are_exact(store: Store, view_url: URL) -> None:
    entries = (Entry(DEBTOR, "EUR", -BEYOND_64_BITS), Entry(f"in-transit@{P}", "EUR", BEYOND_64_BITS))
    for number in range(5):
        posted = record(P, number, Posting(f"p-{number}", DEBIT, DEBTOR, CREDITOR, entries, DAY))
        store.write(plan([page(P, number, number + 1, posted)], store.positions()))

    found = contents(view_url)
    balances = {row["account"]: row["balance_minor"] for row in found["balances"]}
    assert balances == {DEBTOR: -5 * BEYOND_64_BITS, f"in-transit@{P}": 5 * BEYOND_64_BITS}
    assert {row["debits_minor"] for row in found["totals"]} == {0, 5 * BEYOND_64_BITS}


def test_the_slower_of_two_owners_writes_nothing(store: Store, rival: Store, view_url: URL) -> None:
    logs = topic(business(1).events)
    mine = plan([whole(logs[P], P), whole(logs[Q], Q)], store.positions())
    rival.write(plan([whole(logs[Q], Q)], rival.positions()))
    before = contents(view_url)

    with pytest.raises(OvertakenError, match=f"partition {Q} is no longer 0"):
        store.write(mine)
    assert contents(view_url) == before
    store.write(plan([whole(logs[P], P), whole(logs[Q], Q)], store.positions()))
    tables = MemoryTables()
    tables.write(mine)
    assert contents(view_url) == in_memory(tables)


def test_exactly_one_of_two_concurrent_owners_writes(store: Store, rival: Store, view_url: URL) -> None:
    gate = threading.Barrier(2)

    def attempt(owner: Store, made: Plan) -> bool:
        gate.wait(30)
        try:
            owner.write(made)
        except OvertakenError:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        for number in range(20):
            won = list(threads.map(attempt, (store, rival), (one(P, 2 * number), one(P, 2 * number))))
            assert sorted(won) == [False, True]
    assert len(contents(view_url)["events"]) == 20


def test_owners_of_different_partitions_both_write(store: Store, rival: Store, view_url: URL) -> None:
    logs = topic(business(2).events)
    with ThreadPoolExecutor(2) as threads:
        positions = store.positions()
        list(
            threads.map(
                lambda owner, number: owner.write(plan([whole(logs[number], number)], positions)),
                (store, rival),
                (P, Q),
            )
        )
    tables = MemoryTables()
    tables.write(plan([whole(logs[P], P), whole(logs[Q], Q)], tables.positions))
    assert contents(view_url) == in_memory(tables)


def test_an_invalid_record_writes_nothing(store: Store, view_url: URL) -> None:
    before = contents(view_url)
    stolen = Posting("p", DEBIT, DEBTOR, CREDITOR, (Entry(CREDITOR, "EUR", -1), Entry(f"fees@{P}", "EUR", 1)), DAY)
    made = plan([page(P, 0, 4, record(P, 0, DECLINE), record(P, 2, stolen))], store.positions())

    with pytest.raises(InternalInputError, match=f"ledger.postings:{P}:2"):
        store.write(made)
    assert contents(view_url) == before


@pytest.mark.parametrize(("point", "written"), [(BEFORE_DATABASE_COMMIT, 0), (AFTER_DATABASE_COMMIT, 1)])
def test_the_crash_points_are_on_both_sides_of_the_commit(view_url: URL, point: str, written: int) -> None:
    class Died(BaseException):
        pass

    def reach(name: str) -> None:
        if name == point:
            raise Died

    doomed = Store(view_url, PARTITIONS, reach)
    doomed.open(CLUSTER)
    with pytest.raises(Died):
        doomed.write(one())
    doomed.close()
    found = contents(view_url)
    assert len(found["events"]) == written
    assert {row["partition"]: row["next_offset"] for row in found["positions"]}[P] == 2 * written


@pytest.mark.parametrize("partitions", [1, 3, 12])
def test_a_view_of_another_number_of_partitions_is_made_from_the_topic(
    store: Store, view_url: URL, partitions: int
) -> None:
    store.write(one())
    other = Store(view_url, partitions)
    assert other.open("cluster-2") == f"it is a view of {PARTITIONS} partitions, not of {partitions}"
    assert other.positions() == dict.fromkeys(range(partitions), Position(0, 0))
    assert other.open("cluster-2") is None
    other.close()
    assert contents(view_url)["events"] == []


def test_an_event_is_never_overwritten(store: Store, view_url: URL) -> None:
    store.write(one())
    engine = database.writing(view_url)
    with engine.begin() as connection:
        connection.execute(update(database.positions).values(next_offset=0))
    engine.dispose()

    with pytest.raises(DBAPIError, match=r"(?i)unique"):
        store.write(one())


def test_a_repeat_changes_only_the_position_even_after_a_restart(store: Store, view_url: URL) -> None:
    store.write(one())
    before = contents(view_url)
    again = page(P, 2, 5, record(P, 2, DECLINE, made_from(P, 0)))
    restarted = Store(view_url, PARTITIONS)
    assert restarted.open(CLUSTER) is None
    made = plan([again], restarted.positions())
    restarted.write(made)
    restarted.close()

    assert [found.offset for found in made.repeats[P]] == [2]
    after = contents(view_url)
    moved = store.positions()[P]
    assert (moved.next_offset, moved.sources) == (5, SeenSources({f"ledger.transfers:{P}": 0}))
    before.pop("positions")
    after.pop("positions")
    assert after == before


def test_sources_are_written_with_the_rows_or_not_at_all(view_url: URL) -> None:
    class Died(BaseException):
        pass

    def reach(name: str) -> None:
        if name == BEFORE_DATABASE_COMMIT:
            raise Died

    doomed = Store(view_url, PARTITIONS, reach)
    doomed.open(CLUSTER)
    with pytest.raises(Died):
        doomed.write(one())
    made = plan([page(P, 0, 2, record(P, 0, DECLINE))], doomed.positions())
    doomed.close()
    assert not made.repeats


def test_every_part_of_the_sources_is_kept(store: Store) -> None:
    kept = SeenSources({"ledger.transfers:2": 2**62, "é:1": 0}, {"ledger.transfers:2": ["", "a"]}, {"r-1": 3})
    store.write(Plan(moves={P: Move(Position(0, 0), Position(9, 1, kept))}))
    assert store.positions()[P] == Position(9, 1, kept)
    store.empty()
    assert store.positions()[P] == Position(0, 0)


@pytest.mark.parametrize("other", ["cluster-2", f"{CLUSTER}, topic 1"])  # a former release noted the cluster alone
def test_a_view_of_another_cluster_is_emptied_and_says_so(store: Store, view_url: URL, other: str) -> None:
    store.write(all_of(store.positions()))

    assert store.open(CLUSTER) is None
    assert store.open(other) == f"it is a view of cluster cluster-1, not of {other}"
    assert store.open(other) is None
    found = contents(view_url)
    assert found.pop("view") == [{"version": database.VERSION, "cluster_id": other}]
    assert {row["next_offset"] for row in found.pop("positions")} == {0}
    assert not any(found.values())


async def test_the_view_of_a_topic_that_was_created_again_is_emptied_and_says_so(
    scratch: LocalKafka, view_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new topic is longer than the view: its offsets alone do not show that it is another one."""
    name = f"view-{uuid.uuid4()}"
    monkeypatch.setattr(lag, "LEDGER_POSTINGS", name)
    store = Store(view_url, PARTITIONS)
    async with Cluster(scratch.bootstrap_servers) as cluster:
        await create_topic(cluster, name, PARTITIONS)
        first = await lag.topic_identity(cluster)
        assert store.open(first) is None
        store.write(one())
        assert store.open(await lag.topic_identity(cluster)) is None
        assert store.positions()[P].next_offset == 2

        await delete_topic(cluster, name)
        await create_topic(cluster, name, PARTITIONS)
        second = first

        async def is_known() -> bool:
            nonlocal second
            second = await lag.topic_identity(cluster)
            return second != first

        await eventually(is_known, "the brokers know the new topic")
    async with IdempotentWriter(scratch.bootstrap_servers) as writer:
        for _ in range(3):
            await writer.send(name, P, None, b"{}")
    async with Cluster(scratch.bootstrap_servers) as cluster:
        await lag.Ends(cluster, await cluster.partitions([name])).check(store.positions())
    assert store.open(second) == f"it is a view of cluster {first}, not of {second}"
    assert contents(view_url)["events"] == []
    assert store.positions() == dict.fromkeys(range(PARTITIONS), Position(0, 0))
    store.close()


def change(url: URL, *statements: sqlalchemy.Executable) -> None:
    """Change the database without a store."""
    engine = database.writing(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(statement)
    engine.dispose()


def as_of_version(url: URL, version: int) -> None:
    """Make the tables those of another version."""
    added = sqlalchemy.text("ALTER TABLE balances ADD COLUMN of_that_version TEXT")
    change(url, update(database.view).values(version=version), added)


def test_tables_of_an_older_version_are_created_again(store: Store, view_url: URL) -> None:
    store.write(one())
    as_of_version(view_url, database.VERSION - 1)

    assert store.open(CLUSTER) == f"its tables are of version {database.VERSION - 1}, not {database.VERSION}"
    assert contents(view_url) == in_memory(MemoryTables())
    store.write(one())


def test_tables_of_a_newer_version_are_kept_until_they_are_emptied(store: Store, view_url: URL) -> None:
    store.write(one())
    as_of_version(view_url, database.VERSION + 1)
    before = contents(view_url)

    with pytest.raises(ForeignDatabaseError, match=f"of version {database.VERSION + 1}, newer than {database.VERSION}"):
        store.open(CLUSTER)
    assert contents(view_url) == before
    store.empty()
    assert store.open(CLUSTER) is None
    assert contents(view_url) == in_memory(MemoryTables())


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"version": database.VERSION + 1}, f"version {database.VERSION + 1} and cluster {CLUSTER}"),
        ({"cluster_id": "cluster-2"}, f"version {database.VERSION} and cluster cluster-2"),
    ],
)
@pytest.mark.parametrize("next_offset", [0, 9])
def test_a_view_whose_tables_became_another_ones_is_fenced(
    store: Store, view_url: URL, changed: dict[str, object], says: str, next_offset: int
) -> None:
    moved = update(database.positions).values(next_offset=next_offset)
    change(view_url, moved, update(database.view).values(changed))
    before = contents(view_url)

    with pytest.raises(ForeignDatabaseError, match=says):
        store.write(one())
    with pytest.raises(ForeignDatabaseError, match=says):
        store.positions()
    assert contents(view_url) == before


def test_a_writer_that_waited_for_another_clusters_view_is_fenced(view_url: URL, store: Store, rival: Store) -> None:
    """Positions of both clusters are 0: only the view's row differs."""
    emptied, written = threading.Event(), threading.Event()

    @sqlalchemy.event.listens_for(rival._engine, "after_cursor_execute")
    def executed(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM events"):
            emptied.set()
            written.wait(1)  # the writer waits for the positions' rows meanwhile

    with ThreadPoolExecutor(1) as thread:
        opening = thread.submit(rival.open, "cluster-2")
        assert emptied.wait(30)
        with pytest.raises(ForeignDatabaseError, match="cluster cluster-2"):
            store.write(one())
        written.set()
        opening.result(30)
    assert contents(view_url)["events"] == []


@pytest.mark.timeout(60)
def test_a_large_view_is_emptied_however_long_it_takes(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.create("large")
    store = Store(url, PARTITIONS)
    store.open(CLUSTER)
    store.write(one())
    slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'"
    on_events = "CREATE TRIGGER slow BEFORE DELETE ON events FOR EACH STATEMENT EXECUTE FUNCTION slow()"
    change(url, sqlalchemy.text(slow), sqlalchemy.text(on_events))
    store.close()

    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_S", 0.5)
    store = Store(url, PARTITIONS)
    store.empty()
    assert contents(url) == in_memory(MemoryTables())
    with pytest.raises(DatabaseAwayError, match="statement timeout"), store._transaction() as connection:
        connection.execute(sqlalchemy.text("SELECT pg_sleep(5)"))
    assert store.open("cluster-2") == "it is a view of cluster cluster-1, not of cluster-2"
    store.close()


def test_foreign_tables_are_refused_and_kept(view_url: URL) -> None:
    engine = database.writing(view_url)
    accounts = sqlalchemy.Table("accounts", sqlalchemy.MetaData(), sqlalchemy.Column("owner", sqlalchemy.Text))
    with engine.begin() as connection:
        accounts.create(connection)
        connection.execute(insert(accounts).values(owner="somebody"))
    store = Store(view_url, PARTITIONS)
    with pytest.raises(ForeignDatabaseError, match=r"has tables accounts that are not a view's"):
        store.open(CLUSTER)
    with pytest.raises(ForeignDatabaseError, match=r"has tables accounts that are not a view's"):
        store.empty()
    with engine.begin() as connection:
        assert connection.execute(select(accounts)).scalar_one() == "somebody"
    store.close()
    engine.dispose()


def test_an_emptied_view_begins_at_0_and_fences_its_writer(store: Store, rival: Store, view_url: URL) -> None:
    store.write(one())
    rival.empty()

    assert contents(view_url) == in_memory(MemoryTables())
    with pytest.raises(OvertakenError):
        store.write(one(P, 2))
    store.write(one())


def test_an_empty_database_may_be_emptied(view_url: URL) -> None:
    store = Store(view_url, PARTITIONS)
    store.empty()
    assert store.open(CLUSTER) is None
    store.close()


def test_concurrent_opens_of_an_empty_database_all_succeed(view_url: URL) -> None:
    gate = threading.Barrier(4)

    def attempt(_: int) -> str | None:
        store = Store(view_url, PARTITIONS)
        gate.wait(30)
        try:
            while True:
                # SQLite does not wait for a change of the journal mode; this test retries, as the view does
                with contextlib.suppress(DatabaseAwayError):
                    return store.open(CLUSTER)
        finally:
            store.close()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(attempt, range(4))) == [None] * 4


def test_a_reader_sees_one_snapshot_and_cannot_write(store: Store, view_url: URL) -> None:
    engine = database.reading(view_url)
    with engine.connect() as connection:
        with connection.begin():
            assert connection.execute(select(database.events)).all() == []
            store.write(one())
            assert connection.execute(select(database.events)).all() == []
        with connection.begin():
            assert len(connection.execute(select(database.events)).all()) == 1
            with pytest.raises(DBAPIError, match=r"(?i)read-?only"):
                connection.execute(insert(database.view).values(version=9, cluster_id="x"))
    engine.dispose()


def all_of(positions: dict[int, Position]) -> Plan:
    """Plan the insertion of a whole ledger."""
    return plan([whole(log, number) for number, log in enumerate(topic(business(1).events))], positions)


def held_in_transaction(url: URL, during: Callable[[], None]) -> BaseException | None:
    """Call `during` while another owner waits before its commit; return that owner's failure."""
    inside, go_on = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == BEFORE_DATABASE_COMMIT:
            inside.set()
            assert go_on.wait(60)

    stopped = Store(url, PARTITIONS, hold)
    stopped.open(CLUSTER)
    with ThreadPoolExecutor(1) as thread:
        attempt = thread.submit(stopped.write, all_of(stopped.positions()))
        try:
            assert inside.wait(30)
            during()
        finally:
            go_on.set()
        failure = attempt.exception(60)
    stopped.close()
    return failure


def test_an_owner_that_was_stopped_in_a_transaction_does_not_block_its_successor_for_ever(
    monkeypatch: pytest.MonkeyPatch, view_url: URL
) -> None:
    monkeypatch.setattr(database, "LOCK_TIMEOUT_S", 3)
    monkeypatch.setattr(database, "SILENT_TIMEOUT_S", 1)
    successor = Store(view_url, PARTITIONS)
    successor.open(CLUSTER)
    is_server = view_url.get_backend_name() == database.POSTGRESQL

    made = all_of(successor.positions())

    def take_over() -> None:
        if is_server:
            successor.write(made)  # the server ends the other owner's session
        else:
            with pytest.raises(DatabaseAwayError, match="locked"):
                successor.write(made)

    failure = held_in_transaction(view_url, take_over)
    assert isinstance(failure, DatabaseAwayError) if is_server else failure is None
    tables = MemoryTables()
    tables.write(made)
    assert contents(view_url) == in_memory(tables)
    successor.close()


@pytest.mark.timeout(60)
def test_a_killed_server_is_unreachable_and_keeps_committed_rows(postgres: Postgres) -> None:
    url = postgres.create("killed")
    store = Store(url, PARTITIONS)
    store.open(CLUSTER)
    store.write(one())
    postgres.kill()
    try:
        with pytest.raises(DatabaseAwayError):
            store.positions()
        with pytest.raises(DatabaseAwayError, match=r"(?i)refused"):
            store.write(one(P, 2))
    finally:
        postgres.start()

    assert store.positions()[P].next_offset == 2
    store.write(one(P, 2))
    assert len(contents(url)["events"]) == 2
    store.close()


@contextlib.contextmanager
def frozen(server: Postgres, url: URL) -> Iterator[None]:
    """Stop the backends of a database."""
    asked = sqlalchemy.text("SELECT pid FROM pg_stat_activity WHERE datname = :name")
    engine = database.reading(server.url())
    with engine.connect() as connection:
        pids = connection.execute(asked, {"name": url.database}).scalars().all()
    engine.dispose()
    assert pids
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it belongs to a connection that was closed
                os.kill(pid, signal.SIGCONT)


@pytest.mark.timeout(60)
async def test_calls_of_a_frozen_backend_are_aborted_and_retried(postgres: Postgres) -> None:
    url = postgres.create("frozen")
    store = Store(url, PARTITIONS)
    health = Health()
    hands = Writing(health, store.abort)
    await hands.call(partial(store.open, CLUSTER))
    with frozen(postgres, url):
        call = asyncio.create_task(hands.call(partial(store.write, one()), timeout_s=1))
        await eventually(lambda: asyncio.sleep(0, not health.ready), "the database is missing")
        await call  # over another connection
        assert health.ready
    await hands.end()
    assert store.positions()[P].next_offset == 2
    store.close()


@pytest.mark.timeout(60)
async def test_a_frozen_server_ends_the_view_and_delays_no_stop(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CONNECT_TIMEOUT_S", 2)
    monkeypatch.setattr(writing, "END_S", 0.5)
    url = postgres.create("frozen-server")
    store = Store(url, PARTITIONS)
    hands = Writing(Health(), store.abort, deadline_s=1)
    await hands.call(partial(store.open, CLUSTER))
    reader = Reader(database.reading(url))
    await reader.read(queries.positions)
    with frozen(postgres, url):
        postgres.process.pause()
        try:
            asked = asyncio.create_task(reader.read(queries.positions))
            with pytest.raises(FatalError, match="was away for 1 s"):
                await hands.call(store.positions, timeout_s=0.5)
            call = asyncio.create_task(hands.call(store.positions))
            await asyncio.sleep(0.1)
            call.cancel()
            async with asyncio.timeout(10):
                await hands.end()
                await reader.close()
            with pytest.raises(DatabaseUnavailableError):
                await asked
            store.close()
        finally:
            postgres.process.resume()


async def test_a_connection_to_a_lost_host_ends_after_seconds(postgres: Postgres) -> None:
    engine = database.reading(postgres.url())
    with engine.connect() as connection, socket.socket(fileno=os.dup(connection.connection.fileno())) as shared:
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        assert [shared.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [5, 2, 3, 10_000]
        assert shared.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    engine.dispose()
