"""Read records of earlier cuts: for few keys, and only where these can be.

Bounds are literals by partition, so the lake leaves out files and the Parquet reader leaves out row groups.

Invariant: a record is pinned by the same cut as its source, by a later one, or by the one before. The ends of a cut are
pinned from the last topic to the first, but not those of one topic at once.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from spark.lake import Bounds, within
from spark.night import Night
from spark.places import offset_of, partition_of
from spark.schemas import TABLES, UNDECODABLE


def bounds_of(wanted: DataFrame) -> Bounds:
    """Return bounds that hold all wanted places, column `at`: few."""
    rows = (
        wanted.groupBy(F.expr(partition_of("at")).alias("number"))
        .agg(F.expr(f"min({offset_of('at')})").alias("low"), F.expr(f"max({offset_of('at')})").alias("high"))
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


def since(night: Night, table: str, topic: str, sources: Bounds) -> Bounds | None:
    """Return where a table's rows of earlier cuts can be that were made from records of a topic; None: anywhere."""
    cuts = night.history_cuts
    if not cuts or table == UNDECODABLE:
        return None
    lowest = {number: begin for number, (begin, _) in sources.items() if number in cuts[0].topics[topic]}
    holding = [
        index
        for index, cut in enumerate(cuts)
        if all(cut.topics[topic][number].start <= offset for number, offset in lowest.items())
    ]
    first = cuts[max(0, max(holding, default=0) - 1)]
    ends = night.manifest.topics[TABLES[table].topic]
    return {number: (of.start, ends[number].start) for number, of in first.topics[TABLES[table].topic].items()}


def last_offsets(night: Night, topic: str, offsets: int) -> Bounds:
    """Return bounds of the last offsets of earlier cuts."""
    return {number: (max(0, of.start - offsets), of.start) for number, of in night.manifest.topics[topic].items()}
