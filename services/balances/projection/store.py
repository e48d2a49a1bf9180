"""The view in its database: rows and positions, written in one transaction. Calls block: they are for a thread.

Invariant: a position moves only from where its writer believes it to be. Of two owners of a partition (a rebalance, a
process that was paused and resumes) the slower one fails, and nothing is written twice. Rows of another cluster or
topic, or of an older version of the tables, are dropped, because all of it is in the topic. A view whose tables were
dropped or emptied for another cluster, topic or version fails at its next transaction.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sqlalchemy import URL, Connection, bindparam, delete, func, insert, inspect, select, text, update
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError

from services.balances.projection import database
from services.balances.projection.bulk import Bulk, Conflict
from services.balances.projection.domain import Plan, Position, State, fold
from services.balances.projection.rows import Balance, Row, Terms, Total
from shared.eos.crash import AFTER_DATABASE_COMMIT, BEFORE_DATABASE_COMMIT
from shared.eos.sources import SeenSources

KEYS_MAX: Final = 1000  # looked up by one statement
_OPENING: Final = 0x6F6E6365  # advisory lock: `once`

Reach = Callable[[str], None]


class DatabaseAwayError(Exception):
    """The database does not answer, or not in time; a retry may succeed. It may have executed a commit."""


class OvertakenError(Exception):
    """Another owner has moved a partition's position; nothing was written."""


class ForeignDatabaseError(Exception):
    """The database has tables of these names that are not this view's; nothing was changed."""


class Store:
    """The tables of one database, for a topic of so many partitions; `reach` gets each crash point.

    Every method raises DatabaseAwayError.
    """

    def __init__(self, url: URL, partitions: int, reach: Reach = lambda _: None) -> None:
        self._url = url
        self._partitions = partitions
        self._reach = reach
        self._made_from = ""
        self._engine = database.writing(url)
        self._is_sqlite = url.get_backend_name() == database.SQLITE
        dialect = self._engine.dialect
        self._events = Bulk(database.events, Conflict.FAIL, dialect)
        self._entries = Bulk(database.entries, Conflict.FAIL, dialect)
        self._balances = Bulk(database.balances, Conflict.REPLACE, dialect)
        self._totals = Bulk(database.totals, Conflict.REPLACE, dialect)
        self._accounts = Bulk(database.accounts, Conflict.REPLACE, dialect)
        self._newcomers = Bulk(database.accounts, Conflict.KEEP, dialect)

    def open(self, made_from: str) -> str | None:
        """Create the tables, or recreate them if they are of another topic, number of partitions or older version.

        Args:
            made_from: identity of the topic, as of `lag.topic_identity`.

        Returns why existing ones were dropped, or None. Raises ForeignDatabaseError.
        """
        self._made_from = made_from
        with self._transaction() as connection:
            names = self._lock(connection)
            if not names:
                self._create(connection)
                return None
            known = self._known(connection, names)
            if known is not None and known[0] > database.VERSION:
                raise ForeignDatabaseError(
                    f"{self._url.render_as_string()} has tables of version {known[0]}, newer than {database.VERSION}: "
                    "run the newer release, or drop its tables with `python -m services.balances --rebuild`"
                )
            if known is None or known[0] != database.VERSION:
                database.metadata.drop_all(connection)
                self._create(connection)
                return f"its tables are of version {known and known[0]}, not {database.VERSION}"
            partitions = connection.execute(select(func.count()).select_from(database.positions)).scalar_one()
            if partitions != self._partitions:
                database.metadata.drop_all(connection)
                self._create(connection)
                return f"it is a view of {partitions} partitions, not of {self._partitions}"
            if known[1] != made_from:
                self._empty(connection)
                connection.execute(update(database.view).values(cluster_id=made_from))
                return f"it is a view of cluster {known[1]}, not of {made_from}"
        return None

    def empty(self) -> None:
        """Drop all rows and start over at offset 0; a running view notices, and reads the topic again.

        Raises ForeignDatabaseError. After DatabaseAwayError nothing was dropped, or all.
        """
        with self._transaction() as connection:
            names = self._lock(connection)
            known = self._known(connection, names) if names else None
            if known is not None and known[0] == database.VERSION:
                self._empty(connection)
            elif names:
                database.metadata.drop_all(connection)  # `open` makes them

    def positions(self) -> dict[int, Position]:
        """Read all positions; ForeignDatabaseError as for `write`."""
        with self._transaction() as connection:
            found = {
                row.partition: Position(row.next_offset, row.timestamp_ms, row.sources)
                for row in connection.execute(select(database.positions))
            }
            self._raise_if_replaced(connection)
        return found

    def write(self, made: Plan) -> None:
        """Write a plan in one transaction.

        Raises:
            ForeignDatabaseError: since `open`, the tables became those of another cluster, topic or version.
            OvertakenError: a position is not where the plan begins; read the positions again.
            DatabaseAwayError: it may have been written: then the next try is overtaken.
            InternalInputError: as `domain.fold`; nothing was written.
        """
        with self._transaction() as connection:
            # First, and in one order: the writer that moved a partition owns its rows until the end
            self._move(connection, made)
            if made.reads:
                rows = fold(made, self._state(connection, made), self._partitions)
                self._events.run(connection, rows.events)
                self._entries.run(connection, rows.entries)
                self._balances.run(connection, rows.balances)
                self._totals.run(connection, rows.totals)
                self._accounts.run(connection, rows.accounts)
                self._newcomers.run(connection, rows.newcomers)
            self._reach(BEFORE_DATABASE_COMMIT)
        self._reach(AFTER_DATABASE_COMMIT)

    def abort(self) -> None:
        """From another thread, make a call that waits for a server raise DatabaseAwayError."""
        database.abort(self._engine)

    def close(self) -> None:
        self._engine.dispose()

    def _move(self, connection: Connection, made: Plan) -> None:
        overtaken = None
        for partition, (before, after) in sorted(made.moves.items()):
            moved = connection.execute(
                _MOVE,
                {
                    "at_partition": partition,
                    "from_offset": before.next_offset,
                    "to_offset": after.next_offset,
                    "to_ms": after.timestamp_ms,
                    "to_sources": after.sources,
                },
            )
            if moved.rowcount != 1:
                overtaken = OvertakenError(f"the position of partition {partition} is no longer {before.next_offset}")
                break
        # Only now: an `open` of another topic that holds the positions' rows has ended
        self._raise_if_replaced(connection)
        if overtaken is not None:
            raise overtaken

    def _raise_if_replaced(self, connection: Connection) -> None:
        found = connection.execute(_VIEW).one_or_none()
        if found != (database.VERSION, self._made_from):
            version, made_from = found or (None, None)
            raise ForeignDatabaseError(
                f"the tables of {self._url.render_as_string()} are now of version {version} and cluster {made_from}, "
                f"not {database.VERSION} and {self._made_from}: stop the other view, or name another database in "
                "ONCE_VIEW_DATABASE"
            )

    def _state(self, connection: Connection, made: Plan) -> State:
        state = State()
        balances, accounts, totals = database.balances.c, database.accounts.c, database.totals.c
        touched = sorted({account for account, _ in made.touched})
        for keys in _chunks(touched):
            for account, currency, partition, minor, postings, last_offset in connection.execute(
                select(
                    balances.account,
                    balances.currency,
                    balances.partition,
                    balances.balance_minor,
                    balances.postings,
                    balances.last_offset,
                ).where(balances.account.in_(keys))
            ):
                state.balances[account, currency] = Balance(partition, minor, postings, last_offset)
        for keys in _chunks(sorted(made.terms)):
            for account, *terms in connection.execute(
                select(accounts.account, *(accounts[name] for name in Terms._fields)).where(accounts.account.in_(keys))
            ):
                state.terms[account] = Terms(*terms)
        for row in connection.execute(select(database.totals).where(totals.partition.in_(list(made.moves)))):
            state.totals[row.partition, row.holder, row.currency] = Total(
                row.balance_minor, row.debits_minor, row.credits_minor
            )
        return state

    def _lock(self, connection: Connection) -> set[str]:
        """Keep others from making tables meanwhile; return the existing ones of these names."""
        if not self._is_sqlite:
            connection.execute(select(text(f"pg_advisory_xact_lock({_OPENING})")))
        return set(inspect(connection).get_table_names()) & set(database.metadata.tables)

    def _known(self, connection: Connection, names: set[str]) -> tuple[int, str] | None:
        """Version and the topic's identity; None if a view was begun and not finished. Raises ForeignDatabaseError."""
        columns = {column["name"] for column in inspect(connection).get_columns("view")} if "view" in names else set()
        if not {"version", "cluster_id"} <= columns:
            raise ForeignDatabaseError(
                f"{self._url.render_as_string()} has tables {', '.join(sorted(names))} that are not a view's: name an "
                "empty database in ONCE_VIEW_DATABASE"
            )
        found = connection.execute(_VIEW).one_or_none()
        return None if found is None else (found.version, found.cluster_id)

    def _create(self, connection: Connection) -> None:
        database.metadata.create_all(connection)
        connection.execute(insert(database.view).values(version=database.VERSION, cluster_id=self._made_from))
        connection.execute(insert(database.positions), [_position_row(number) for number in range(self._partitions)])

    def _empty(self, connection: Connection) -> None:
        if not self._is_sqlite:
            connection.execute(text("SET LOCAL statement_timeout = 0"))  # a large table takes minutes
        # Positions first, as `write` does. DELETE and not TRUNCATE, which snapshots do not keep out
        connection.execute(update(database.positions).values(next_offset=0, timestamp_ms=0, sources=SeenSources()))
        for table in (database.events, database.entries, database.balances, database.totals, database.accounts):
            connection.execute(delete(table))

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            if isinstance(error, OperationalError | InterfaceError) or (
                isinstance(error, DBAPIError) and error.connection_invalidated
            ):
                raise DatabaseAwayError(_first_line(error)) from error
            raise


_VIEW: Final = select(database.view.c.version, database.view.c.cluster_id)
_MOVE: Final = (
    update(database.positions)
    .where(database.positions.c.partition == bindparam("at_partition"))
    .where(database.positions.c.next_offset == bindparam("from_offset"))
    .values(next_offset=bindparam("to_offset"), timestamp_ms=bindparam("to_ms"), sources=bindparam("to_sources"))
)


def _position_row(partition: int) -> Row:
    return {"partition": partition, "next_offset": 0, "timestamp_ms": 0, "sources": SeenSources()}


def _chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[at : at + KEYS_MAX] for at in range(0, len(keys), KEYS_MAX))


def _first_line(error: SQLAlchemyError) -> str:
    """The driver's message, without the statement and its values."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).strip().partition("\n")[0] or type(cause).__name__
