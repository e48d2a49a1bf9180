"""Find the record of the changelog that is at fault, for the accounts that differ.

Invariant: an account's states are compared with its postings in the order of their sources. The records after which
the difference changed are named as long as the account differs. Runs over single cuts name the same records as one run
over all of them.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from shared.events.catalogue import LEDGER_BALANCES, LEDGER_POSTINGS
from spark.compare import STATE, Sides, states
from spark.history import bounds_of
from spark.movements import ACCOUNT, entries, nothing
from spark.night import BREAKS, Kind, Night, union
from spark.places import PLACE, UNBOUNDED, bound
from spark.schemas import MONEY

CHECK: Final = "balances"
_ENTRY, _STATE, _LAST = 0, 1, 2
"""The order at one source: a state covers what its transaction posted."""


FAULTS: Final = StructType(
    [
        StructField("account", StringType()),
        StructField("currency", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("logged", MONEY),
        StructField("folded", MONEY),
        StructField("change", MONEY),
    ]
)
"""States at which a difference began or changed since it was last 0, in any run; `change` is by how much."""


def at_fault(night: Night, compared: Sides, differing: DataFrame) -> DataFrame:
    """Return FAULTS of the accounts that differ: those of earlier runs and of this one. Carried as `balance_faults`.

    `differing` are rows of `spark.compare.judged` that have a state. Of those that wait, only earlier faults count.
    """
    keys = differing.where("not waiting").select(*ACCOUNT, F.coalesce("known", nothing()).alias("known"))
    rows = union([*_moves(night, compared, keys), *_logs(night, compared, keys)])
    in_order = Window.partitionBy(*ACCOUNT).orderBy("source", "rank", "offset")
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    after = in_order.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    summed = rows.withColumn("folded", F.sum("amount").over(so_far).cast(MONEY)).where(F.col("rank") != _ENTRY)
    difference = F.col("logged") - F.col("folded")
    previous = F.coalesce(F.lag(difference).over(in_order), F.col("known"))
    states_of = summed.withColumns(
        {"change": (difference - previous).cast(MONEY), "ended": F.bool_or(difference == 0).over(after)}
    ).persist()
    faults = [states_of.where("change <> 0 and not ended").select(*FAULTS.fieldNames())]
    before = night.carried("balance_faults")
    if before is not None:
        ended = states_of.where(difference == 0).select(*ACCOUNT)
        still = before.join(differing.select(*ACCOUNT), list(ACCOUNT), how="left_semi")
        faults.append(still.join(ended, list(ACCOUNT), how="left_anti").select(*FAULTS.fieldNames()))
    return union(faults)


def fault_breaks(faults: DataFrame, differing: DataFrame) -> DataFrame:
    """Return BREAKS, one for each record: AMOUNT, or ORPHAN where the account never had a posting."""
    kind = F.when(F.col("posted_offset").isNull(), Kind.ORPHAN.value).otherwise(Kind.AMOUNT.value)
    kinds = differing.select(*ACCOUNT, kind.alias("kind"))
    by_record = (
        faults.join(kinds, list(ACCOUNT), how="inner")
        .groupBy("kind", "account", "partition", "offset")
        .agg(_texts("logged"), *_amount(F.abs("change")))
    )
    return _breaks(by_record, F.col("kind"), LEDGER_BALANCES, F.lit(None), F.lit(None))


def without_state(night: Night, differing: DataFrame) -> DataFrame:
    """Return BREAKS: accounts with postings that the changelog does not have (MISSING), at their last posting.

    One for each account. `differing` are rows of `spark.compare.judged` without a state.
    """
    where = (F.col("posted_partition").alias("partition"), F.col("posted_offset").alias("offset"))
    rows = differing.groupBy("account", *where).agg(_texts(F.lit("nothing")), *_amount(F.abs("folded")))
    columns = ("partition", "offset", "payment_id")
    before = night.history("postings", bounds_of(rows.selectExpr(f"{PLACE} as at")))
    postings = union([night.new("postings").select(*columns), before.select(*columns)])
    last = postings.join(F.broadcast(rows.select("partition", "offset")), ["partition", "offset"], how="left_semi")
    named = rows.join(last, ["partition", "offset"], how="left")
    # By its account: its last posting is another one after each payment
    return _breaks(named, F.lit(Kind.MISSING.value), LEDGER_POSTINGS, F.col("payment_id"), F.col("account"))


def _moves(night: Night, compared: Sides, keys: DataFrame) -> list[DataFrame]:
    """Return what the postings move, each entry at its source: the carried sums, then what the changelog must show."""
    covered = F.coalesce(F.col("source_offset") <= bound(compared.covered), F.lit(True))
    source = F.coalesce("source_offset", _before())
    balances, late = night.carried("account_balances"), night.carried("postings_late")
    moved = [entries(night.new("postings")).where(covered).select(*ACCOUNT, source.alias("source"), "amount")]
    if balances is not None:
        moved.append(balances.select(*ACCOUNT, _before().alias("source"), F.col("closing").alias("amount")))
    if late is not None:
        moved.append(late.select(*ACCOUNT, _before().alias("source"), (-F.col("amount")).cast(MONEY).alias("amount")))
        moved.append(late.where(covered).select(*ACCOUNT, source.alias("source"), "amount"))
    nowhere = (F.lit(None).cast("int").alias("partition"), F.lit(None).cast("long").alias("offset"))
    rank, logged = F.lit(_ENTRY).alias("rank"), nothing().alias("logged")
    rows = union(moved).join(keys, list(ACCOUNT), how="inner")
    return [rows.select(*ACCOUNT, "known", "source", rank, *nowhere, "amount", logged)]


def _logs(night: Night, compared: Sides, keys: DataFrame) -> list[DataFrame]:
    """Return the changelog's balances, each state at its source; the last ones again, after all sources."""
    sourced = [states(night).where(F.col("source_offset").isNotNull())]
    before = night.carried("account_states")
    if before is not None:
        sourced.append(before.select(*STATE).where(F.col("source_offset").isNotNull()))
    found = []
    for rows, source, rank in (
        (union(sourced), F.col("source_offset"), _STATE),
        (compared.last, F.lit(UNBOUNDED).cast("long"), _LAST),
    ):
        logged = F.coalesce(F.try_element_at("balances", F.col("currency")), nothing()).cast(MONEY)
        found.append(
            rows.join(keys, "account", how="inner").select(
                *ACCOUNT,
                "known",
                source.alias("source"),
                F.lit(rank).alias("rank"),
                "partition",
                "offset",
                nothing().alias("amount"),
                logged.alias("logged"),
            )
        )
    return found


def _texts(logged: Column | str) -> Column:
    """Return both sides of each currency, in the order of the currencies."""
    text = F.concat_ws(" ", "currency", logged, F.lit("in the changelog,"), "folded", F.lit("posted"))
    return F.array_join(F.sort_array(F.collect_set(text)), "; ").alias("text")


def _amount(minor: Column) -> tuple[Column, Column]:
    """Return currency and amount at risk; null where there are several currencies."""
    one = F.min("currency") == F.max("currency")
    return (
        F.when(one, F.min("currency")).alias("risk_currency"),
        F.when(one, F.sum(minor)).cast(MONEY).alias("risk_minor"),
    )


def _breaks(rows: DataFrame, kind: Column, topic: str, payment_id: Column, subject: Column) -> DataFrame:
    return rows.select(
        kind.alias("kind"),
        F.lit(CHECK).alias("check"),
        F.lit(topic).alias("topic"),
        "partition",
        "offset",
        payment_id.cast("string").alias("payment_id"),
        F.concat_ws(": ", "account", "text").alias("detail"),
        subject.cast("string").alias("subject"),
        F.col("risk_currency").alias("currency"),
        F.col("risk_minor").alias("amount_minor"),
        F.lit(True).alias("rechecked"),
    ).select(*BREAKS.fieldNames())


def _before() -> Column:
    """Return the source before every record."""
    return F.lit(-1).cast("long")
