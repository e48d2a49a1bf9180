"""Read records of earlier cuts: for few keys, and only where these can be.

Bounds are literals by partition, so the lake leaves out files and the Parquet reader leaves out row groups. What a
service remembers is counted in records: a partition may have any number of others meanwhile.

Invariant: a record is pinned by the same cut as its source, by a later one, or by the one before. The ends of a cut are
pinned from the last topic to the first, but not those of one topic at once.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import PAYMENTS_ACCEPTED
from spark.lake import Bounds, within
from spark.night import Night, union
from spark.places import offset_of, partition_of
from spark.schemas import TABLES


def bounds_of(wanted: DataFrame) -> Bounds:
    """Return bounds that hold all wanted places, column `at`: few."""
    rows = (
        wanted.groupBy(F.expr(partition_of("at")).alias("number"))
        .agg(F.min(F.expr(offset_of("at"))).alias("low"), F.max(F.expr(offset_of("at"))).alias("high"))
        .collect()
    )
    return {row["number"]: (row["low"], row["high"] + 1) for row in rows if row["number"] is not None}


def made_from(night: Night, table: str, topic: str, sources: Bounds, *, link: str = "source") -> DataFrame:
    """Return a table's rows of earlier cuts that were made from records of a topic within bounds.

    Args:
        link: the header that names that record, source or origin.
    """
    rows = night.history(table, since(night, table, topic, sources))
    return rows.where(within(sources, f"{link}_partition", f"{link}_offset"))


def since(night: Night, table: str, topic: str, sources: Bounds) -> Bounds:
    """Return where a table's rows of earlier cuts can be that were made from records of a topic within bounds."""
    own = TABLES[table].topic
    bounds: dict[int, tuple[int, int]] = {}
    # A record that could not be read is of any topic
    for one in [own] if own else night.manifest.topics:
        for number, (begin, end) in _since(night, one, topic, sources).items():
            low, high = bounds.get(number, (begin, end))
            bounds[number] = min(low, begin), max(high, end)
    return bounds


def _since(night: Night, own: str, topic: str, sources: Bounds) -> Bounds:
    cuts = night.history_cuts
    if not cuts:
        return whole(night, own)
    lowest = {number: begin for number, (begin, _) in sources.items() if number in cuts[0].topics[topic]}
    holding = [
        index
        for index, cut in enumerate(cuts)
        if all(cut.topics[topic][number].start <= offset for number, offset in lowest.items())
    ]
    first = cuts[max(0, max(holding, default=0) - 1)].topics.get(own, {})
    return {
        number: (first[number].start if number in first else 0, of.start)
        for number, of in night.manifest.topics[own].items()
    }


def whole(night: Night, topic: str) -> Bounds:
    """Return bounds of all offsets of earlier cuts."""
    return {number: (0, of.start) for number, of in night.manifest.topics[topic].items()}


def widening(night: Night, topic: str, offsets: int) -> Iterator[Bounds]:
    """Yield bounds of the last offsets of earlier cuts, then of eight times as many each time; the last hold all.

    For keys that nothing says the age of: what is read follows from how old they are, not from how long the history is.
    """
    while True:
        bounds = last_offsets(night, topic, offsets)
        yield bounds
        if not any(begin for begin, _ in bounds.values()):
            return
        offsets *= _WIDER


_WIDER: Final = 8


def last_offsets(night: Night, topic: str, offsets: int) -> Bounds:
    """Return bounds of the last offsets of earlier cuts."""
    return {number: (max(0, of.start - offsets), of.start) for number, of in night.manifest.topics[topic].items()}


ACCEPTED: Final = ("payments", "reversals", "openings")
"""The tables of `payments.accepted`; ingest remembers the identities in all of them."""


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
