"""How far back a service remembers: where its last records of earlier cuts begin, counted in records.

A partition may have any number of other records meanwhile, so a number of offsets is no bound.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import PAYMENTS_ACCEPTED
from spark.history import last_offsets
from spark.lake import Bounds
from spark.night import Night, union

ACCEPTED: Final = ("payments", "reversals")
"""The tables of `payments.accepted`; ingest remembers the identities in both."""


class _Count(NamedTuple):
    rows: int
    first: int


_NONE: Final = _Count(0, 0)


def window_begins(
    night: Night, topic: str, rows: int, read: Callable[[Bounds], DataFrame], *, column: str = "offset"
) -> dict[int, int]:
    """Return by partition a value of a column that the last so many rows of earlier cuts are not below.

    It is 0 where all that there is counts. Up to some multiple of these rows is not below it either.

    Args:
        topic: of the rows.
        rows: how many of a partition are remembered.
        read: returns the rows within bounds, with `partition` and the column.
    """
    # A record has at most one end of a transaction after it; other records, and aborted ones, take more offsets
    bounds = dict(last_offsets(night, topic, 2 * rows))
    while True:
        asked = {number: of for number, of in bounds.items() if of[0] > 0}
        found = _counted(read(asked), column) if asked else {}
        short = [number for number in asked if found.get(number, _NONE).rows < rows]
        if not short:
            return {number: found[number].first if number in asked else 0 for number in bounds}
        for number in short:
            begin, end = asked[number]
            bounds[number] = (max(0, 2 * begin - end), end)


def _counted(rows: DataFrame, column: str) -> dict[int, _Count]:
    counts = rows.groupBy("partition").agg(F.count(column).alias("rows"), F.min(column).alias("first"))
    return {row["partition"]: _Count(row["rows"], row["first"]) for row in counts.where("rows > 0").collect()}


def identities_begin(night: Night, column: str) -> dict[int, int]:
    """Return by partition of payments.accepted where the identities begin that ingest may remember."""

    def read(bounds: Bounds) -> DataFrame:
        return union([night.history(table, bounds).select("partition", column) for table in ACCEPTED])

    return window_begins(night, PAYMENTS_ACCEPTED, night.manifest.settings.identity_window, read, column=column)
