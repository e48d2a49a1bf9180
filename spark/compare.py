"""The postings' sums against the changelog's last states: which accounts differ, and which of these can be judged.

`spark.balances` has the rule. Of each account only the last record of the changelog counts, as earlier ones may be
compacted away. A state without a readable source is kept, and compared where that needs none.

Invariant: equal accounts are dropped at once, so all that follows is small in sound operation.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import StringType, StructField, StructType

from shared.events.catalogue import LEDGER_BALANCES, LEDGER_POSTINGS
from spark.movements import ACCOUNT, entries, nothing, total
from spark.night import BREAKS, Kind, Night, frame, union
from spark.places import UNBOUNDED, bound, reach, sourced, unstable
from spark.schemas import MONEY

STATE: Final = ("account", "partition", "offset", "source_offset", "balances")


def states(night: Night) -> DataFrame:
    """Return all states of this run, with the columns STATE; source_offset is null where the source is invalid."""
    source = F.when(sourced(night), F.col("source_offset")).alias("source_offset")
    return night.new("account_states").select("account", "partition", "offset", source, "balances")


def last_states(night: Night) -> DataFrame:
    """Return every account's last state, with the columns STATE. Carried as `account_states`."""
    rows = [states(night)]
    before = night.carried("account_states")
    if before is not None:
        rows.append(before.select(*STATE))
    last = F.max_by(F.struct("offset", "source_offset", "balances"), F.col("offset")).alias("last")
    return union(rows).groupBy("account", "partition").agg(last).select("account", "partition", "last.*").select(*STATE)


def logged(last: DataFrame) -> DataFrame:
    """Return the balances of states: account, currency, logged (minor units); a row for each currency of each state."""
    return last.select("account", F.explode("balances").alias("currency", "logged"))


def stray_states(night: Night) -> DataFrame:
    """Return this run's states whose source names no record that can have existed."""
    named = F.col("source_topic").isNotNull() | F.col("source_offset").isNotNull()
    return night.new("account_states").where(named & ~sourced(night))


def strays(night: Night) -> DataFrame:
    """Return BREAKS: an ORPHAN for each of `stray_states`."""
    where = [F.col(f"source_{part}").cast("string") for part in ("topic", "partition", "offset")]
    source = F.concat_ws(":", *where)
    detail = F.concat(F.col("account"), F.lit(": its source "), source, F.lit(" is no record of its partition"))
    return (
        stray_states(night)
        .select(
            F.lit(Kind.ORPHAN.value).alias("kind"),
            F.lit("balances").alias("check"),
            "topic",
            "partition",
            "offset",
            F.lit(None).cast("string").alias("payment_id"),
            detail.alias("detail"),
            *(F.lit(None).cast(BREAKS[name].dataType).alias(name) for name in ("subject", "currency", "amount_minor")),
            F.lit(False).alias("rechecked"),
        )
        .select(*BREAKS.fieldNames())
    )


DIFFERENCES: Final = StructType(
    [
        StructField("account", StringType()),
        StructField("currency", StringType()),
        StructField("difference", MONEY),
    ]
)
"""Differences as the last run left them: a later run finds where they changed."""


@dataclass(frozen=True)
class Sides:
    """The two sides of the comparison."""

    every: DataFrame  # of `spark.movements.accounts`
    last: DataFrame  # of `last_states`
    late: DataFrame | None  # entries that the changelog need not show yet, as `_late` has them; None without any
    shown: dict[int, int]  # up to which source all postings are visible, for the partitions where that is bounded
    covered: dict[int, int]  # the same of the changelog


def sides(night: Night, every: DataFrame, seen: dict[int, int]) -> Sides:
    """Return both sides of the comparison, and how far each goes.

    Args:
        every: of `spark.movements.accounts`.
        seen: the last source of `ledger.postings` that is visible, by partition.
    """
    last = last_states(night).persist()
    covered: dict[int, int] = {}
    if unstable(night, LEDGER_BALANCES):
        sourced = last.where(F.col("source_offset").isNotNull())
        highest = sourced.groupBy("partition").agg(F.max("source_offset").alias("source_offset"))
        seen_states = {row["partition"]: row["source_offset"] for row in highest.collect()}
        covered = reach(night, LEDGER_BALANCES, seen_states)
    return Sides(every, last, _late(night, covered), reach(night, LEDGER_POSTINGS, seen), covered)


def _late(night: Night, covered: dict[int, int]) -> DataFrame | None:
    if not covered:
        return None
    columns = ("partition", "source_offset", *ACCOUNT, "amount")
    beyond = F.col("source_offset") > bound(covered)
    rows = [entries(night.new("postings").where(beyond)).select(*columns)]
    before = night.carried("postings_late")
    if before is not None:
        rows.append(before.where(beyond).select(*columns))
    return union(rows)


def unequal(compared: Sides) -> DataFrame:
    """Return account, currency, folded, logged where the sum differs from the changelog, or it has nothing."""
    zero, one = F.lit(0).cast("long"), F.lit(1).cast("long")
    parts = [
        _side(compared.every, F.col("closing"), nothing(), F.col("movements"), zero),
        _side(logged(compared.last), nothing(), F.col("logged"), zero, one),
    ]
    if compared.late is not None:
        late = compared.late.groupBy(*ACCOUNT).agg(total("amount").alias("amount"), F.count(F.lit(1)).alias("entries"))
        parts.append(_side(late, -F.col("amount"), nothing(), -F.col("entries"), zero))
    sums = (
        union(parts)
        .groupBy(*ACCOUNT)
        .agg(
            total("folded").alias("folded"),
            total("logged").alias("logged"),
            F.sum("movements").alias("movements"),
            F.sum("states").alias("states"),
        )
    )
    unknown = (F.col("movements") > 0) & (F.col("states") == 0)
    return sums.where((F.col("folded") != F.col("logged")) | unknown).select(*ACCOUNT, "folded", "logged")


def _side(rows: DataFrame, folded: Column, logged: Column, movements: Column, states: Column) -> DataFrame:
    return rows.select(
        *ACCOUNT,
        folded.cast(MONEY).alias("folded"),
        logged.cast(MONEY).alias("logged"),
        movements.alias("movements"),
        states.alias("states"),
    )


def judged(night: Night, compared: Sides, differing: DataFrame) -> DataFrame:
    """Return the rows of `unequal` with what is known of them.

    Columns: account, currency, folded, logged, difference (logged - folded), known (that of the run before, or null),
    partition and offset (of the last state; null without one), posted_partition and posted_offset (of the last posting;
    null without one), `waiting`, whether it cannot be judged in this cut.
    """
    keys = differing.select("account").groupBy("account").count().select("account")
    states = compared.last.join(keys, "account", how="left_semi").select(
        "account", "partition", "offset", "source_offset"
    )
    posted = (
        compared.every.join(keys, "account", how="left_semi")
        .groupBy("account")
        .agg(F.max("partition").alias("posted_partition"), F.max("last_offset").alias("posted_offset"))
    )
    before = night.carried("balance_differences")
    reported = frame(night.spark, DIFFERENCES) if before is None else before
    known = reported.select(*ACCOUNT, F.col("difference").alias("known"))
    difference = (F.col("logged") - F.col("folded")).cast(MONEY)
    rows = (
        differing.withColumn("difference", difference)
        .join(states, "account", how="left")
        .join(posted, "account", how="left")
        .join(known, list(ACCOUNT), how="left")
        .where(F.col("partition").isNull() | (F.col("difference") != 0))
    )
    columns = ("folded", "logged", "difference", "known", "partition", "offset", "posted_partition", "posted_offset")
    return rows.select(*ACCOUNT, *columns, (~_decided(compared)).alias("waiting"))


def _decided(compared: Sides) -> Column:
    """Whether all postings that a state contains are visible; true where there is no state."""
    unbounded = F.least(bound(compared.shown), bound(compared.covered)) == UNBOUNDED
    within = F.col("source_offset") <= bound(compared.shown)
    return F.col("partition").isNull() | F.coalesce(within, unbounded)
