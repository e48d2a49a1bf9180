"""The postings' sums against the changelog's last states: which accounts differ, and which records are at fault.

`spark.balances` has the rule. Of each account only the last record of the changelog counts, as earlier ones may be
compacted away. A state without a readable source is kept, and compared where that needs none.

Invariant: equal accounts are dropped at once, so all that follows is small in sound operation. An account's states are
compared with its postings in the order of their sources. The records after which the difference changed are named as
long as the account differs. Runs over single cuts name the same records as one run over all of them.
"""

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from shared.events.catalogue import LEDGER_BALANCES, LEDGER_POSTINGS
from spark.history import bounds_of
from spark.movements import ACCOUNT, entries, nothing, total
from spark.night import BREAKS, Kind, Night, breaks, finding, frame, union
from spark.places import PLACE, UNBOUNDED, bound, sourced, unstable, visible_up_to
from spark.schemas import MONEY

STATE: Final = ("account", "partition", "offset", "source_offset", "balances")


def states(night: Night) -> DataFrame:
    """Return all states of this run, with the columns STATE; source_offset is null where the source is invalid."""
    source = F.when(sourced(night), F.col("source_offset")).alias("source_offset")
    return night.new("account_states").select("account", "partition", "offset", source, "balances")


def last_states(night: Night) -> DataFrame:
    """Return every account's last state, with the columns STATE. Carried as `account_states`."""
    last = F.max_by(F.struct("offset", "source_offset", "balances"), F.col("offset")).alias("last")
    by_account = _known_states(night).groupBy("account", "partition").agg(last)
    return by_account.select("account", "partition", "last.*").select(*STATE)


def _known_states(night: Night) -> DataFrame:
    """Return the states of this run, and the last ones of the run before, with the columns STATE."""
    before = night.carried("account_states")
    return union([states(night)] if before is None else [states(night), before.select(*STATE)])


def logged(last: DataFrame) -> DataFrame:
    """Return the balances of states: account, currency, logged (minor units); a row for each currency of each state."""
    return last.select("account", F.explode("balances").alias("currency", "logged"))


def stray_states(night: Night) -> DataFrame:
    """Return this run's states whose source names no record that can have existed."""
    named = F.col("source_topic").isNotNull() | F.col("source_offset").isNotNull()
    return night.new("account_states").where(named & ~sourced(night))


def strays(night: Night) -> DataFrame:
    """Return BREAKS: an ORPHAN for each of `stray_states`."""
    found = finding(
        Kind.ORPHAN,
        _SOURCES,
        "{account}: its source {source} is no record of its partition",
        account="account",
        source="concat_ws(':', source_topic, source_partition, source_offset)",
    )
    return breaks(stray_states(night), found, "topic", "partition", "offset", "null")


# A check of its own: the balances of the same state may be a break that ends, and this is a fact
_SOURCES: Final = "transfers:balances"


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
        covered = visible_up_to(night, LEDGER_BALANCES, seen_states)
    return Sides(every, last, _late(night, covered), visible_up_to(night, LEDGER_POSTINGS, seen), covered)


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

    `differing` are rows of `judged` that have a state. Of those that wait, only earlier faults count.
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

    One for each account. `differing` are rows of `judged` without a state.
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
    sourced_states = _known_states(night).where(F.col("source_offset").isNotNull())
    found = []
    for rows, source, rank in (
        (sourced_states, F.col("source_offset"), _STATE),
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
