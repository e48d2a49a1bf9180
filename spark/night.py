"""What the checks and totals of one run work on, and what they return. The contract between the pipeline's parts.

Breaks as rows: made from expressions, put together, and empty ones. Also how a night's rows are put together.

What holds: whatever a check finds has the schema BREAKS.

Outputs that are visible while the offset of their transaction is not: under way for a moment, torn at rest.

What holds: a cut under way judges none of them. It carries them until a cut shows that the offset was committed, or a
settled one that it was not.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from string import Formatter
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from spark.manifest import INPUTS, Manifest


class Kind(StrEnum):
    """What is wrong, for people."""

    MISSING = "missing"  # a record was consumed, and what must follow is not there
    DUPLICATE = "duplicate"  # it is there more than once
    AMOUNT = "amount"  # two records or sums that must agree do not: amount, currency, rate, fee, party or date
    ORPHAN = "orphan"  # it names a source or an origin that cannot be
    TORN = "torn"  # of one transaction, a part is visible and a part is not
    UNCOMMITTED = "uncommitted"  # it was made from a record of an aborted transaction
    EFFECT = "effect"  # an effect without its request, without a result, or in doubt unreported
    UNDECODABLE = "undecodable"  # a record that is no event of its topic


BREAKS: Final = StructType(
    [
        StructField("kind", StringType(), nullable=False),
        StructField("check", StringType(), nullable=False),  # which comparison found it, such as "transfers:postings"
        StructField("topic", StringType()),  # of the record at fault; for a missing one, of what it should follow
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("payment_id", StringType()),
        StructField("detail", StringType(), nullable=False),  # for people: both values, or where the other one stands
    ]
)


@dataclass(frozen=True)
class Night:
    """One run's input.

    Attributes:
        spark: the session.
        manifest: the offsets of this run; of a run over several cuts, joined.
        new: a table's records between the manifest's starts and ends, by name, with the schema of `spark.schemas`.
        history: its records of every cut before; empty without one. For looking up a few keys, never for a whole scan.
        carried: what the run before left under a name, or None. A run from the beginning has nothing.
    """

    spark: SparkSession
    manifest: Manifest
    new: Callable[[str], DataFrame]
    history: Callable[[str], DataFrame]
    carried: Callable[[str], DataFrame | None]


@dataclass(frozen=True)
class Checked:
    """What one check found.

    Attributes:
        breaks: with the schema BREAKS; usually empty, never large in sound operation, and not cut off here.
        figures: counts by name, for the report.
        in_flight: records under way at the cut, by what they wait for; these are no breaks.
        carry: what the next run needs, by name.
    """

    breaks: DataFrame
    figures: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=dict)
    carry: dict[str, DataFrame] = field(default_factory=dict)


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


EARLY: Final = ("source_partition", "source_offset", "topic", "partition", "offset", "payment_id")
"""Columns of such an output: its source in the service's input, and its own coordinates."""


def uncommitted(manifest: Manifest, service: str, partition: str, offset: str) -> str:
    """Whether a record of a service's input is at or beyond the committed offset; 0 where there is none.

    Args:
        partition, offset: of the record; expressions.
    """
    cases = " ".join(f"when {number} then {committed}L" for number, committed in manifest.groups[service].items())
    return f"({offset} >= (case {partition} {cases} else 0L end))" if cases else f"({offset} >= 0L)"


def check_early(night: Night, name: str, service: str, check_name: str, rows: DataFrame | None) -> Checked:
    """Judge outputs of this run and of runs before, or carry them.

    Args:
        name: under which they are carried.
        service: that wrote them.
        check_name: as breaks name it.
        rows: those of this run, with the columns EARLY; None where there are none.
    """
    before = night.carried(name)
    parts = [part.select(*EARLY) for part in (rows, before) if part is not None]
    if not parts:
        return Checked(together(night.spark, []))
    still = union(parts).where(uncommitted(night.manifest, service, "source_partition", "source_offset"))
    if not night.manifest.settled:
        return Checked(together(night.spark, []), carry={name: still})
    source = f"concat('{INPUTS[service]}:', source_partition, ':', source_offset)"
    torn = finding(
        Kind.TORN, check_name, "{source} has it as an output, yet that offset is not committed", source=source
    )
    return Checked(breaks(still, torn, "topic", "partition", "offset", "payment_id"))
