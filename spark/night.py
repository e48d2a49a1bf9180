"""What the checks and totals of one run work on, and what they return. The contract between the pipeline's parts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from spark.manifest import Manifest


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
