"""Breaks as rows: made from expressions, put together, and empty ones. Also how a night's rows are put together.

What holds: whatever a check finds has the schema BREAKS.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from string import Formatter
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it
from pyspark.sql.types import StructType

from spark.night import BREAKS, Kind, Night

FINDING: Final = "struct<kind:string,check:string,detail:string>"
NO_FINDING: Final = f"cast(null as {FINDING})"


def finding(kind: Kind, check: str, text: str, **values: str) -> str:
    """A struct of what is wrong, as an expression that is never null.

    Args:
        kind: of it.
        check: which comparison.
        text: for people, with `{name}` for each value.
        values: expressions by name.
    """
    parts = []
    for words, name, _, _ in Formatter().parse(text):
        if words:
            parts.append(f"'{words}'")
        if name is not None:
            parts.append(f"coalesce(cast({values[name]} as string), 'absent')")
    return f"named_struct('kind', '{kind.value}', 'check', '{check}', 'detail', concat({', '.join(parts)}))"


def breaks(rows: DataFrame, found: str, topic: str, partition: str, offset: str, payment_id: str) -> DataFrame:
    """Rows with the schema BREAKS; all arguments but the first are expressions.

    Args:
        rows: one for each break.
        found: a struct as `finding` makes it.
    """
    return rows.selectExpr(
        f"coalesce({found}.kind, '') as kind",
        f"coalesce({found}.check, '') as check",
        f"cast({topic} as string) as topic",
        f"cast({partition} as int) as partition",
        f"cast({offset} as bigint) as offset",
        f"cast({payment_id} as string) as payment_id",
        f"coalesce({found}.detail, '') as detail",
    )


def frame(spark: SparkSession, schema: StructType, rows: Sequence[Mapping[str, object]] = ()) -> DataFrame:
    """A small DataFrame of literal rows, made without any Python on the workers."""
    text = json.dumps([dict(row) for row in rows])
    one = spark.range(1).select(
        F.inline(F.from_json(F.lit(text), f"array<{schema.simpleString()}>", {"mode": "FAILFAST"}))
    )
    return one if rows else one.where("false")


def together(spark: SparkSession, found: Iterable[DataFrame]) -> DataFrame:
    """All breaks of a check, which may be none at all."""
    parts = list(found)
    if not parts:
        empty = spark.range(0)
        return breaks(empty, finding(Kind.MISSING, "", "none"), "null", "null", "null", "null")
    return union(parts).select(*(field.name for field in BREAKS))


def union(parts: Sequence[DataFrame]) -> DataFrame:
    """All rows of all parts, which have the same columns."""
    return reduce(DataFrame.unionByName, parts)


def with_carried(night: Night, table: str, carried: str) -> list[tuple[DataFrame, bool]]:
    """A table's rows of this run and what was carried of it, each with whether it is new.

    Args:
        carried: name under which the run before left rows of the table.
    """
    before = night.carried(carried)
    return [(night.new(table), True), *([(before, False)] if before is not None else [])]
