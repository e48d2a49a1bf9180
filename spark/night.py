"""The contract between the pipeline's parts: what a run's checks read, what they return, and breaks as rows.

Invariant: all findings of a check have the schema BREAKS. A break is of one of two natures. A fact of records that
cannot change, such as a duplicate, is found by one run and stays. A state that later records can end, such as a missing
record, is `rechecked`: each run finds it again until it is over. `spark.register` keeps both.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from string import Formatter
from typing import Any, Final, NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from spark.lake import Bounds, no_rows
from spark.manifest import INPUTS, Manifest
from spark.schemas import MONEY


class Kind(StrEnum):
    """The kind of a break."""

    MISSING = "missing"  # a record was consumed, and its output is not there
    DUPLICATE = "duplicate"  # it is there more than once
    AMOUNT = "amount"  # two records or sums that must agree do not: amount, currency, rate, fee, party or date
    ORPHAN = "orphan"  # it names a source or an origin that cannot exist
    TORN = "torn"  # of one transaction, a part is visible and a part is not
    UNCOMMITTED = "uncommitted"  # it was made from a record of an aborted transaction
    EFFECT = "effect"  # an effect without its request, without a result, or in doubt unreported
    UNDECODABLE = "undecodable"  # a record that is not an event of its topic
    OFFSETS = "offsets"  # committed offsets of a group are missing, or went back
    DECISION = "decision"  # the inputs do not lead to it: a price, cover, a decline, a refusal, requested effects
    EXPIRED = "expired"  # records expired before they were landed, in a topic whose records must not


BREAKS: Final = StructType(
    [
        StructField("kind", StringType(), nullable=False),
        StructField("check", StringType(), nullable=False),  # which comparison found it, such as "transfers:postings"
        StructField("topic", StringType()),  # of the record at fault; for a missing one, of what it should follow
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("payment_id", StringType()),
        StructField("detail", StringType(), nullable=False),  # for people: both values, or the other record's place
        StructField("subject", StringType()),  # what is wrong where no record identifies it: an account or a currency
        StructField("currency", StringType()),  # ISO 4217, of the amount
        StructField("amount_minor", MONEY),  # at risk, not negative; null where none is known
        StructField("rechecked", BooleanType(), nullable=False),  # each run looks again, and it ends when not found
    ]
)


class Few(NamedTuple):
    """A small table that a run carries on: kept as JSON, and read without Spark."""

    schema: StructType
    rows: Sequence[Mapping[str, Any]]  # values that JSON has; null where a column is left out


class History(Protocol):
    """Reads records of every cut before, by the table's name."""

    def __call__(self, table: str, bounds: Bounds, /) -> DataFrame:
        """Return rows within bounds, offsets by partition."""


@dataclass(frozen=True)
class Night:
    """One run's input."""

    spark: SparkSession
    manifest: Manifest  # the offsets of this run; of a run over several cuts, joined
    new: Callable[[str], DataFrame]  # a table's records between the manifest's starts and ends, by name
    history: History  # its records of every cut before; for few keys (`spark.history`), never for a scan
    carried: Callable[[str], DataFrame | None]  # left by the run before, by name; None without one
    new_cuts: Sequence[Manifest] = ()  # those of this run
    history_cuts: Sequence[Manifest] = ()  # all before this run, oldest first; none where that is not known
    late_cut: Manifest | None = None  # its records are late if they are still in flight; None: none are
    landed: Mapping[str, int] | None = None  # rows of this run by table, where the landing has counted them
    compute: Callable[[DataFrame], DataFrame] = lambda rows: rows.localCheckpoint()
    """Computes rows once, and drops their plan."""
    few_carried: Callable[[str], Few | None] = lambda _: None  # left by the run before, by name

    def keep(self, rows: DataFrame) -> DataFrame:
        """Compute rows once, for several queries.

        They get columns of their own: Spark cannot join rows with what was computed from them and united.
        """
        return self.compute(rows).toDF(*rows.columns)

    def count(self, table: str) -> int:
        """Return the number of a table's rows of this run."""
        return self.new(table).count() if self.landed is None else self.landed.get(table, 0)

    def few(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Return the rows of a small table that the run before left; none without one."""
        found = self.few_carried(name)
        if found is not None:
            return found.rows
        # A former version left it as a table
        before = self.carried(name)
        return [] if before is None else [row.asDict() for row in before.collect()]


@dataclass(frozen=True)
class Checked:
    """The result of one check."""

    breaks: DataFrame | None = None  # with the schema BREAKS, not cut off here; None where counts show that none is
    figures: dict[str, int] = field(default_factory=dict)  # counts by name, for the report
    in_flight: dict[str, int] = field(default_factory=dict)  # by what the records wait for; not breaks
    carry: Mapping[str, DataFrame | Few] = field(default_factory=dict)  # what the next run needs, by name


FINDING: Final = "struct<kind:string,check:string,detail:string>"
NO_FINDING: Final = f"cast(null as {FINDING})"


def finding(kind: Kind, check: str, text: str, **values: str) -> str:
    """Return a struct of what is wrong, as an expression that is never null.

    The text is for people, with `{name}` for each of the values, which are expressions by name.
    """
    parts = []
    for words, name, _, _ in Formatter().parse(text):
        if words:
            parts.append(f"'{words}'")
        if name is not None:
            parts.append(f"coalesce(cast({values[name]} as string), 'absent')")
    return f"named_struct('kind', '{kind.value}', 'check', '{check}', 'detail', concat({', '.join(parts)}))"


def all_findings(wrong: Mapping[str, str]) -> str:
    """Return an array of the findings whose condition holds; both are expressions."""
    found = ", ".join(f"if({condition}, {one}, null)" for condition, one in wrong.items())
    return f"filter(array({found}), one -> one is not null)"


class Amount(NamedTuple):
    """The amount at risk of a break: expressions."""

    currency: str
    minor: str


NO_AMOUNT: Final = Amount("null", "null")


def breaks(
    rows: DataFrame,
    found: str,
    topic: str,
    partition: str,
    offset: str,
    payment_id: str,
    *,
    amount: Amount = NO_AMOUNT,
    rechecked: str = "false",
) -> DataFrame:
    """Return BREAKS, one for each of `rows`; `found`, as of `finding`, and the others are expressions."""
    return rows.selectExpr(
        f"coalesce({found}.kind, '') as kind",
        f"coalesce({found}.check, '') as check",
        f"cast({topic} as string) as topic",
        f"cast({partition} as int) as partition",
        f"cast({offset} as bigint) as offset",
        f"cast({payment_id} as string) as payment_id",
        f"coalesce({found}.detail, '') as detail",
        "cast(null as string) as subject",
        f"cast({amount.currency} as string) as currency",
        f"abs(cast({amount.minor} as decimal(38,0))) as amount_minor",
        f"{rechecked} as rechecked",
    )


def frame(spark: SparkSession, schema: StructType, rows: Sequence[Mapping[str, object]] = ()) -> DataFrame:
    """Return a small DataFrame of literal rows, made without any Python on the workers."""
    if not rows:
        return no_rows(spark, schema)
    text = json.dumps([dict(row) for row in rows])
    return spark.range(1).select(
        F.inline(F.from_json(F.lit(text), f"array<{schema.simpleString()}>", {"mode": "FAILFAST"}))
    )


def all_breaks(found: Iterable[DataFrame | None]) -> DataFrame | None:
    """Return all breaks of a check; None where no part has any."""
    parts = [part for part in found if part is not None]
    return union(parts).select(*BREAKS.fieldNames()) if parts else None


def union(parts: Sequence[DataFrame]) -> DataFrame:
    """Return all rows of all parts, which have the same columns."""
    return reduce(DataFrame.unionByName, parts)


JUDGED: Final = "judged"
"""Column of carried rows: whether one was a break already. It stays one, whatever a later cut may hide."""


def with_carried(night: Night, table: str, carried: str) -> list[tuple[DataFrame, bool]]:
    """Return a table's rows of this run, and the carried ones of that name, each with whether it is new.

    Both have the column JUDGED.
    """
    new = night.new(table).select("*", F.lit(False).alias(JUDGED))
    before = night.carried(carried)
    if before is None:
        return [(new, True)]
    # A former version's have fewer columns
    absent = (field for field in new.schema if field.name not in before.columns)
    filled = before.select("*", *(F.lit(None).cast(field.dataType).alias(field.name) for field in absent))
    return [(new, True), (filled.withColumn(JUDGED, F.coalesce(JUDGED, F.lit(False))), False)]


EARLY: Final = ("source_partition", "source_offset", "topic", "partition", "offset", "payment_id")
"""Columns of an early output: its source in the service's input, and its own coordinates."""


def by_partition(partition: str, values: Mapping[int, int]) -> str:
    """Return a number for each partition; null for an absent one."""
    if not values:
        return NO_LONG
    cases = " ".join(f"when {number} then {value}L" for number, value in sorted(values.items()))
    return f"(case {partition} {cases} end)"


NO_LONG: Final = "cast(null as bigint)"


def uncommitted(manifest: Manifest, service: str, partition: str, offset: str) -> str:
    """Whether a record of a service's input is at or beyond the committed offset; 0 where there is none."""
    return f"({offset} >= coalesce({by_partition(partition, manifest.committed(service))}, 0L))"


def is_late(night: Night, topic: str, partition: str, offset: str) -> str:
    """Whether a record of a topic was in flight for too many cuts, as an expression."""
    ranges = night.late_cut.topics.get(topic, {}) if night.late_cut is not None else {}
    bounds = {number: offsets.end for number, offsets in ranges.items()}
    return f"coalesce({offset} < {by_partition(partition, bounds)}, false)" if bounds else "false"


def judged_before(night: Night, name: str, columns: Sequence[str], rows: DataFrame | None) -> DataFrame | None:
    """Return narrow rows of this run and the carried ones of that name, with JUDGED; None where there are none."""
    before = night.carried(name)
    parts = [] if rows is None else [rows.select(*columns, F.lit(False).alias(JUDGED))]
    if before is not None:
        # A former version carried none that had been a break
        known = F.coalesce(JUDGED, F.lit(False)) if JUDGED in before.columns else F.lit(False)
        parts.append(before.select(*columns, known.alias(JUDGED)))
    return union(parts) if parts else None


def check_early(night: Night, name: str, service: str, check_name: str, rows: DataFrame | None) -> Checked:
    """Judge outputs, of this run and carried, that are visible while their transaction's offset is not; or carry them.

    That is in flight for a moment, and torn once nothing moves, or after too many cuts. They are carried until a cut
    shows that the offset was committed.

    Args:
        name: under which they are carried.
        check_name: as breaks name it.
        rows: those of this run, with the columns EARLY; None where there are none.
    """
    early = judged_before(night, name, EARLY, rows)
    if early is None:
        return Checked()
    topics = night.late_cut.topics if night.late_cut is not None else ()
    of_topic = " ".join(f"when '{topic}' then {is_late(night, topic, 'partition', 'offset')}" for topic in topics)
    over = "true" if night.manifest.settled else f"(case topic {of_topic} else false end)" if of_topic else "false"
    still = (
        early.where(uncommitted(night.manifest, service, "source_partition", "source_offset")).select(
            *EARLY, F.expr(f"{JUDGED} or {over}").alias(JUDGED)
        )
    ).persist()
    if still.isEmpty():
        return Checked()
    source = f"concat('{INPUTS[service]}:', source_partition, ':', source_offset)"
    torn = finding(
        Kind.TORN, check_name, "{source} has it as an output, yet that offset is not committed", source=source
    )
    found = breaks(still.where(JUDGED), torn, "topic", "partition", "offset", "payment_id", rechecked="true")
    return Checked(found, carry={name: still})
