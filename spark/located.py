"""Where a record stands and where it came from: a Kafka record's coordinates, key and headers as columns.

What holds: nothing that a key or a header may hold fails the read; text that is not UTF-8 is made so, and a header that
is no `topic:partition:offset` gives nulls. It must not know what the value means.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from shared.events import headers

NOTES = (headers.REASON, headers.DETAIL, headers.SERVICE)
"""Headers of dead letters, for people."""

_LINKS = (headers.ORIGIN, headers.SOURCE)


def located(records: DataFrame) -> DataFrame:
    """WHERE of `spark.schemas`, then `value`, and for each of NOTES a column `header_<name>`.

    Args:
        records: with the columns of `spark.source.COLUMNS`.
    """
    # In steps: Spark evaluates what one step names once, however often the next one uses it
    split = records.withColumns(
        {
            "key": F.make_valid_utf8(F.col("key").cast("string")),
            **{f"{name}_parts": F.split(_header(name), ":") for name in _LINKS},
        }
    )
    numbered = split.withColumns(
        {
            f"{name}_{unit}": F.get(f"{name}_parts", F.lit(place)).try_cast(kind)
            for name in _LINKS
            for unit, place, kind in (("partition", 1, "int"), ("offset", 2, "long"))
        }
    )
    return numbered.select(
        *("topic", "partition", "offset", "timestamp", "key"),
        *(column for name in _LINKS for column in _coordinates(name)),
        "value",
        *(_header(name).alias(f"header_{name}") for name in NOTES),
    )


def _header(name: str) -> Column:
    """The value of the first header of that name, or null."""
    place = F.array_position("headers.key", name) - 1
    return F.make_valid_utf8(F.get("headers.value", place.cast("int")).cast("string"))


def _coordinates(name: str) -> tuple[Column, ...]:
    """Topic, partition and offset of a link; all three null where it is malformed."""
    parts, partition, offset = (F.col(f"{name}_{unit}") for unit in ("parts", "partition", "offset"))
    whole = (F.size(parts) == 3) & partition.isNotNull() & offset.isNotNull()
    return tuple(
        F.when(whole, value).alias(f"{name}_{unit}")
        for unit, value in (("topic", F.get(parts, F.lit(0))), ("partition", partition), ("offset", offset))
    )
