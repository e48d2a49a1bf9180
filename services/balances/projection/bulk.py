"""Statements that write many rows, compiled once.

SQLAlchemy makes the parameters of each row again for each call, which takes longer than the database's own work; here
they are made in one step. SQLite gets them row by row, PostgreSQL one statement with an array for each column: the
driver's pipeline of one statement for each row would leave the server without its timeout for a session that is idle in
a transaction. Statements and conversions are SQLAlchemy's own.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from operator import itemgetter
from typing import Any

from sqlalchemy import ARRAY, Connection, Dialect, String, Table, Text, bindparam, column, func, select
from sqlalchemy.dialects import postgresql, sqlite

from services.balances.projection.rows import Row


class Conflict(Enum):
    """The result for a row whose key exists already."""

    FAIL = "fail"
    REPLACE = "replace"
    KEEP = "keep"


class Bulk:
    """Writes rows of one table, none of them twice in a call, with positional parameters of the dialect."""

    def __init__(self, table: Table, conflict: Conflict, dialect: Dialect) -> None:
        self._by_column = dialect.name == "postgresql"
        compiled: Any = _statement(table, conflict, by_column=self._by_column).compile(dialect=dialect)
        self._text = str(compiled)
        self._names: Sequence[str] = compiled.positiontup
        self._values: Callable[[Row], Sequence[object]] = itemgetter(*self._names)
        self._converted = [
            (found.name, convert)
            for found in table.columns
            if (convert := found.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        ]

    def run(self, connection: Connection, rows: list[Row]) -> None:
        """Write rows, and change them into what the driver accepts; IntegrityError if a key exists that must not."""
        if not rows:
            return
        for name, convert in self._converted:
            for row in rows:
                row[name] = convert(row[name])
        if self._by_column:
            connection.exec_driver_sql(self._text, tuple([row[name] for row in rows] for name in self._names))
        else:
            connection.exec_driver_sql(self._text, [tuple(self._values(row)) for row in rows])


def _statement(table: Table, conflict: Conflict, *, by_column: bool) -> Any:
    statement: Any = _of_columns(table) if by_column else sqlite.insert(table)
    if conflict is Conflict.KEEP:
        return statement.on_conflict_do_nothing()
    if conflict is Conflict.FAIL:
        return statement
    keys = [found.name for found in table.primary_key]
    changed = {found.name: statement.excluded[found.name] for found in table.columns if found.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def _of_columns(table: Table) -> Any:
    # A cast to VARCHAR(3) would cut a longer text off without an error; the column refuses it
    types = {found.name: Text() if isinstance(found.type, String) else found.type for found in table.columns}
    arrays = [bindparam(name, type_=ARRAY(kind)) for name, kind in types.items()]
    unnested = func.unnest(*arrays).table_valued(*(column(name, kind) for name, kind in types.items()))
    return postgresql.insert(table).from_select(list(table.columns.keys()), select(unnested.render_derived()))
