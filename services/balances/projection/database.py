"""Connections to the view's database: SQLite in a file, or PostgreSQL. One setting chooses.

What holds: every wait has a bound, for a connection, a lock and a statement; whoever writes begins as a writer; whoever
reads cannot write and sees one snapshot for each transaction.
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

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
READERS_MAX: Final = 8
"""Connections of readers at once; one more waits as long as for a lock."""


def parse(text: str) -> URL:
    """The setting's database.

    Raises:
        ValueError: it is none that the view can use; says what to set.
    """
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise ValueError(f"the view's database cannot be read as a URL: {_WANTED}") from error
    driver = _DRIVERS.get(url.drivername)
    if driver is None or (driver == SQLITE and url.database in {None, "", ":memory:"}):
        raise ValueError(f"the view's database is {url.render_as_string()}: {_WANTED}")
    return url.set(drivername=driver)


_WANTED: Final = "set ONCE_VIEW_DATABASE to sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE"


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
        connect_args={"connect_timeout": CONNECT_TIMEOUT_S, "tcp_user_timeout": SILENT_TIMEOUT_S * 1000},
    )
    settings = {
        "statement_timeout": STATEMENT_TIMEOUT_S,
        "lock_timeout": LOCK_TIMEOUT_S,
        # An owner that was stopped in the middle must not keep its partitions' rows from its heir
        "idle_in_transaction_session_timeout": SILENT_TIMEOUT_S,
    }

    def connected(connection: Any, _record: object) -> None:
        # In a transaction of its own: what is set in one that is rolled back is gone
        with connection.transaction(), connection.cursor() as cursor:
            for name, seconds in settings.items():
                cursor.execute(f"SET {name} = '{seconds}s'")
            if read_only:
                cursor.execute("SET default_transaction_read_only = on")

    event.listen(engine, "connect", connected)
    return engine
