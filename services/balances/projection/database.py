"""The view's database: its tables, and connections to SQLite in a file or to PostgreSQL. One setting chooses.

Invariants:
- Rows and the position up to which they were made are written in one database transaction. Every row is made from a
  committed record of ledger.postings and belongs to that record's partition, so two partitions never write the same
  row. Money is exact whatever its size. All of it can be rebuilt from the topic.
- Every wait has a bound, for a connection, a lock and a statement. A frozen server keeps none of them: its caller
  aborts the connections. A writer begins as a writer. A reader cannot write, and sees one snapshot for each
  transaction.
"""

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import (
    URL,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Dialect,
    Engine,
    Index,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import ArgumentError
from sqlalchemy.types import TypeDecorator, TypeEngine

from shared.addresses import is_loopback
from shared.eos.sources import SeenSources
from shared.settings import ViewSettings

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
_DRIVERS: Final = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}

CONNECT_TIMEOUT_S: Final = 5
LOCK_TIMEOUT_S: Final = 10
STATEMENT_TIMEOUT_S: Final = 30
SILENT_TIMEOUT_S: Final = 10
KEEPALIVE_S: Final = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}  # a lost host: 11 s
READERS_MAX: Final = 8  # connections of readers at once; one more waits as long as for a lock
_WANTED: Final = "set ONCE_VIEW_DATABASE to sqlite:///FILE or postgresql+psycopg://USER@HOST:PORT/DATABASE"
_CA_FILE: Final = "ONCE_VIEW_DATABASE_CA_FILE"
_PASSWORD_FILE: Final = "ONCE_VIEW_DATABASE_PASSWORD_FILE"  # noqa: S105 # the name of a setting


def parse(text: str) -> URL:
    """The database of the setting; ValueError says what to set."""
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise ValueError(f"the view's database cannot be read as a URL: {_WANTED}") from error
    driver = _DRIVERS.get(url.drivername)
    if driver is None or (driver == SQLITE and url.database in {None, "", ":memory:"}):
        raise ValueError(f"the view's database is {url.render_as_string()}: {_WANTED}")
    return url.set(drivername=driver)


def database_of(settings: ViewSettings) -> URL:
    """The database of the settings, with libpq's parameters for TLS and the password file.

    Raises ValueError, with what to set, if a password or records would cross a network unprotected.
    """
    url = parse(settings.database)
    if url.get_backend_name() == SQLITE:
        if settings.database_ca_file or settings.database_password_file:
            raise ValueError(f"{_CA_FILE} and {_PASSWORD_FILE} are for PostgreSQL: unset them for a file")
        return url
    if settings.database_ca_file:
        _check_file(_CA_FILE, settings.database_ca_file)
        # GSSAPI would encrypt in place of TLS, and check no certificate
        verified = {"sslmode": "verify-full", "sslrootcert": settings.database_ca_file, "gssencmode": "disable"}
        url = url.update_query_dict(verified)
    if settings.database_password_file:
        _check_file(_PASSWORD_FILE, settings.database_password_file, is_private=True)
        url = url.update_query_dict({"passfile": settings.database_password_file})
    if not _is_local(url):
        if not settings.database_ca_file:
            raise ValueError(f"ONCE_VIEW_DATABASE names a host beyond loopback: set {_CA_FILE}, for TLS")
        if url.password is not None or "password" in url.query:
            raise ValueError(f"ONCE_VIEW_DATABASE has a password: put it into a file, and set {_PASSWORD_FILE}")
    return url


def _is_local(url: URL) -> bool:
    """Whether only this machine is connected to: by loopback, or by a socket in its file system."""
    if "service" in url.query:  # a file names the host
        return False
    named = [url.host or "", *(part for name in ("host", "hostaddr") for part in _texts(url, name))]
    hosts = [host for text in named for host in text.split(",") if host]
    return all(
        host.startswith(("/", "@")) or is_loopback(host) or is_loopback(host.rpartition(":")[0].strip("[]"))
        for host in hosts
    )


def _texts(url: URL, name: str) -> tuple[str, ...]:
    found = url.query.get(name, ())
    return (found,) if isinstance(found, str) else found


def _check_file(setting: str, path: str, *, is_private: bool = False) -> None:
    """Raise ValueError if libpq could not use the file: it would go on without it, or without saying so."""
    try:
        with Path(path).open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise ValueError(
            f"{setting} is {path}, which cannot be read ({error.strerror}): name the right file"
        ) from error
    if is_private and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"{setting} is {path}, which others than its owner can read: chmod 600 it")


def writing(url: URL) -> Engine:
    """Connections whose transactions write: SQLite takes the lock when they begin, not in the middle."""
    if url.get_backend_name() == SQLITE:
        if url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        return _sqlite(url, "BEGIN IMMEDIATE", _WRITER)
    return _postgresql(url, pool_size=1)


def reading(url: URL) -> Engine:
    """Connections that cannot write; each transaction sees the database as it was at its first statement."""
    if url.get_backend_name() == SQLITE:
        return _sqlite(url, "BEGIN", _READER, pool_size=READERS_MAX)
    return _postgresql(url, pool_size=READERS_MAX, read_only=True)


# A power loss may cost the last commits, whole and in order (synchronous=NORMAL in WAL mode): the positions go back
# with the rows, and what is missing is read from the topic again. A crash of the process costs nothing.
_WRITER: Final = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL")
_READER: Final = ("PRAGMA query_only=ON",)


def _sqlite(url: URL, begin: str, pragmas: tuple[str, ...], *, pool_size: int = 1) -> Engine:
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=LOCK_TIMEOUT_S,
        connect_args={"timeout": LOCK_TIMEOUT_S, "check_same_thread": False},
    )

    def connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver begins no transaction by itself, `begun` does
        for pragma in pragmas:
            connection.execute(pragma)

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    return engine


def _postgresql(url: URL, *, pool_size: int, read_only: bool = False) -> Engine:
    engine = create_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=LOCK_TIMEOUT_S,
        paramstyle="format",  # positional, as `bulk` needs it; SQLite's are
        pool_pre_ping=read_only,  # a reader does not try again; the writer does
        isolation_level="REPEATABLE READ" if read_only else "READ COMMITTED",
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "tcp_user_timeout": SILENT_TIMEOUT_S * 1000,
            **KEEPALIVE_S,
        },
    )
    connections = _connections[engine] = set()
    settings = {
        "statement_timeout": STATEMENT_TIMEOUT_S,
        "lock_timeout": LOCK_TIMEOUT_S,
        # An owner that was stopped in the middle must not keep its partitions' rows from the new owner
        "idle_in_transaction_session_timeout": SILENT_TIMEOUT_S,
    }

    def connected(connection: Any, _record: object) -> None:
        connections.add(connection)
        try:
            # In a transaction of its own: a rollback undoes what was set in it
            with connection.transaction(), connection.cursor() as cursor:
                for name, seconds in settings.items():
                    cursor.execute(f"SET {name} = '{seconds}s'")
                if read_only:
                    cursor.execute("SET default_transaction_read_only = on")
        except BaseException:
            connections.discard(connection)  # the engine drops it without a `close`
            raise

    event.listen(engine, "connect", connected)
    event.listen(engine, "close", lambda connection, _record: connections.discard(connection))
    return engine


_connections: Final = WeakKeyDictionary[Engine, set[Any]]()  # to PostgreSQL


def abort(engine: Engine) -> None:
    """End the connections to PostgreSQL, whose threads then fail: a frozen server ends no statement, whatever its time.

    Calls of SQLite have bounds of their own.
    """
    for connection in tuple(_connections.get(engine, ())):
        closed = suppress(OSError, engine.dialect.loaded_dbapi.Error)
        with closed, socket.socket(fileno=os.dup(connection.fileno())) as shared:
            shared.shutdown(socket.SHUT_RDWR)


VERSION: Final = 3  # of these tables: a view that finds an older one drops them and rebuilds from the topic


class Minor(TypeDecorator[int]):
    """Minor units of any size: NUMERIC in PostgreSQL, text in SQLite, whose integers end at 64 bits.

    Sums and comparisons are made in Python, never in SQL: as text they would be wrong.
    """

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Numeric(38, 0) if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: int | None, dialect: Dialect) -> object:
        return str(value) if value is not None and dialect.name != "postgresql" else value

    def process_result_value(self, value: object, dialect: Dialect) -> int | None:  # noqa: ARG002 # SQLAlchemy's
        return None if value is None else int(str(value))


class Sources(TypeDecorator[SeenSources]):
    """The last source of each upstream partition, as JSON."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: SeenSources | None, dialect: Dialect) -> str | None:  # noqa: ARG002 # SQLAlchemy's
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Dialect) -> SeenSources | None:  # noqa: ARG002 # the same
        return None if value is None else msgspec.json.decode(value, type=SeenSources)


metadata = MetaData()

view = Table(
    "view",
    metadata,
    Column("version", Integer, primary_key=True),
    # With the topic's id: offsets of another topic would mean nothing. Former releases know the column by this name
    Column("cluster_id", Text, nullable=False),
)

positions = Table(
    "positions",
    metadata,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),  # every committed record below it is in the tables
    Column("timestamp_ms", BigInteger, nullable=False),  # of the last record that was taken in
    Column("sources", Sources, nullable=False),  # that its records were made from
)

accounts = Table(
    "accounts",
    metadata,
    Column("account", String, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("overdraft_minor", Minor),  # null is unlimited
    Column("closed", Boolean, nullable=False),
    Column("owner", String, nullable=False),  # the client whose keys may debit it
    Column("version", BigInteger, nullable=False),  # how often its terms or owner changed
)

balances = Table(
    "balances",
    metadata,
    Column("account", String, primary_key=True),
    Column("currency", String(3), primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("balance_minor", Minor, nullable=False),
    Column("postings", BigInteger, nullable=False),  # that touched it
    Column("last_offset", BigInteger, nullable=False),
)

totals = Table(
    "totals",
    metadata,
    # One row for each partition, so that partitions never wait for each other; a reader adds them up
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("holder", String, primary_key=True),  # `clients`, or a house account's name without its partition
    Column("currency", String(3), primary_key=True),
    Column("balance_minor", Minor, nullable=False),
    Column("debits_minor", Minor, nullable=False),  # sum of what left, as a positive number
    Column("credits_minor", Minor, nullable=False),
)

IS_OUTCOME: Final = text("kind <> 'credit'")
"""Holds for the events that decide a command: one for each, on its debtor's partition. Literal, as indexes need it."""

events = Table(
    "events",
    metadata,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("payment_id", String, nullable=False),
    Column("kind", String, nullable=False),  # debit, credit, decline or opened
    Column("debtor", String, nullable=False),
    Column("creditor", String),  # of a posting
    Column("value_date", String, nullable=False),
    Column("reversal", Boolean, nullable=False),
    Column("reverses", String),
    Column("opening", Boolean, nullable=False),  # whether it is about a command to open the account `debtor`
    Column("reason", String),  # of a decline
    Column("reference", String, nullable=False),
    Column("fee_minor", Minor, nullable=False),
    Column("rate", String),
    Column("client", String),  # that submitted it; null on a credit leg, or if it is not known
    Column("key_id", String),  # of the client's key; empty for an operator's command
    Column("version", BigInteger),  # of the account that was opened
    Column("timestamp_ms", BigInteger, nullable=False),  # when it was posted
    Column("origin", String),  # the raw record, topic:partition:offset
    Column("source", String),  # the record of ledger.transfers that it was made from
    # With the debtor, so that an id that many debtors use is read a page at a time
    Index("events_by_payment", "payment_id", "debtor"),
    # The reversal of a payment; few events are one
    Index(
        "events_by_reversed",
        "reverses",
        "debtor",
        sqlite_where=text("reverses IS NOT NULL"),
        postgresql_where=text("reverses IS NOT NULL"),
    ),
    # What a debtor ordered, by value date
    Index("events_by_debtor", "debtor", "value_date", "offset", sqlite_where=IS_OUTCOME, postgresql_where=IS_OUTCOME),
)

entries = Table(
    "entries",
    metadata,
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("offset", BigInteger, primary_key=True, autoincrement=False),
    Column("line", Integer, primary_key=True, autoincrement=False),  # of the posting, from 0
    Column("account", String, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("amount_minor", Minor, nullable=False),
    Column("balance_minor", Minor, nullable=False),  # after it
    Column("value_date", String),  # of its posting; null for a house account, whose history is not read by date
    # By currency first: a page of one currency must not read the others', and pages of each are merged for all
    Index("entries_by_account", "account", "currency", "offset", "line"),
    # Without the house's, which are most: an index of all would cost a tenth of the view's throughput
    Index(
        "entries_by_value_date",
        "account",
        "currency",
        "value_date",
        "offset",
        "line",
        sqlite_where=text("value_date IS NOT NULL"),
        postgresql_where=text("value_date IS NOT NULL"),
    ),
)
