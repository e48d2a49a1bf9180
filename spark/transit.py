"""What is in transit (I5): the in-transit accounts sum to the credit legs still under way, 0 once all is drained.

What is under way, by currency and exactly, from offsets alone (`spark.reach`):

1. Credit legs in sight that the ledger had not come to: their offsets are above what it consumed on their partition.
2. Debit postings in sight whose credit leg is not: their transaction's end had not reached the leg's partition. It can
   only be above the largest source in sight there of any leg from the same debtor's partition.
3. Credit legs in sight whose debit posting is not: the same the other way round. These count against the sum.

A credit posting in sight always has its leg in sight: the ledger read it below a last stable offset that was looked up
before the topic's end was pinned.

What holds: the sum is judged in every cut. The rows of 1 to 3 are few; a run looks at its own new legs and postings and
those that the run before left. A gap that was there before and did not change is not reported again.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it
from pyspark.sql.types import StringType, StructField, StructType

from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.postings import DEBIT
from spark.breaks import frame, union
from spark.conservation import CHECK, broken
from spark.movements import entries, total
from spark.night import BREAKS, Checked, Night
from spark.reach import bound, consumed, reach, unstable
from spark.schemas import MONEY

HOUSE: Final = "in-transit@%"
_GAPS: Final = StructType([StructField("currency", StringType()), StructField("gap", MONEY)])
_LEG: Final = ("partition", "offset", "source_partition", "source_offset", "currency", "amount")
_DEBIT: Final = ("partition", "source_offset", "currency", "amount")


def check(night: Night, every: DataFrame, seen: dict[int, int]) -> Checked:
    """Hold the in-transit accounts against what is under way.

    Args:
        every: of `spark.movements.accounts`.
        seen: of `spark.reach.posted`.
    """
    shown = reach(night, LEDGER_POSTINGS, seen)
    open_ = _legs(night, "transit_open").where(F.col("offset") > bound(consumed(night, seen))).persist()
    early = _legs(night, "transit_early").where(F.col("source_offset") > bound(shown, "source_partition")).persist()
    last = _last_legs(night).persist()
    waiting = _waiting(night, last).persist()
    gaps, under_way = _gaps(every, open_, waiting, early)
    before = night.carried("transit_gaps")
    known = {} if before is None else {row["currency"]: int(row["gap"]) for row in before.collect()}
    breaks = [
        broken(CHECK, f"{gap} {currency} more in transit than the credit legs under way")
        for currency, gap in sorted(gaps.items())
        if gap != known.get(currency, 0)
    ]
    rows: list[dict[str, object]] = [{"currency": currency, "gap": str(gap)} for currency, gap in sorted(gaps.items())]
    return Checked(
        breaks=frame(night.spark, BREAKS, breaks),
        figures={"legs_under_way": under_way},
        carry={
            "transit_open": open_,
            "transit_early": early,
            "transit_waiting": waiting,
            "transit_last": last,
            "transit_gaps": frame(night.spark, _GAPS, rows),
        },
    )


def _legs(night: Night, carried: str) -> DataFrame:
    """This run's credit legs, and those that the run before left under a name.

    Returns:
        partition, offset, source_partition, source_offset, currency, amount.
    """
    amount = F.col("amount_minor").cast(MONEY).alias("amount")
    rows = [night.new("credit_legs").select(*_LEG[:-1], amount)]
    before = night.carried(carried)
    if before is not None:
        rows.append(before.select(*_LEG))
    return union(rows)


def _last_legs(night: Night) -> DataFrame:
    """The largest source of the legs in sight from each partition to each.

    Returns:
        source_partition, partition, source_offset. To be carried as `transit_last`.
    """
    highs = {number: range_.high for number, range_ in night.manifest.topics[LEDGER_TRANSFERS].items()}
    possible = F.col("source_offset") < bound(highs, "source_partition", otherwise=0)
    columns = ("source_partition", "partition", "source_offset")
    legs = night.new("credit_legs").where((F.col("source_topic") == LEDGER_TRANSFERS) & possible)
    rows = [legs.select(*columns)]
    before = night.carried("transit_last")
    if before is not None:
        rows.append(before.select(*columns))
    largest = F.max("source_offset").alias("source_offset")
    return union(rows).groupBy("source_partition", "partition").agg(largest).select(*columns)


def _waiting(night: Night, last: DataFrame) -> DataFrame:
    """Debit postings in sight whose credit leg is not.

    Returns:
        partition, source_offset, currency, amount. To be carried as `transit_waiting`.
    """
    sent = _all_sent(night, last)
    beyond = F.col("source_offset") > bound(sent)
    debits = night.new("postings").where((F.col("leg") == DEBIT) & beyond)
    rows = [entries(debits).where(F.col("account").like(HOUSE)).select(*_DEBIT)]
    before = night.carried("transit_waiting")
    if before is not None:
        rows.append(before.where(beyond).select(*_DEBIT))
    sources = (F.col("source_partition").alias("partition"), "source_offset")
    legs = _legs(night, "transit_early").where(F.col("source_offset") > bound(sent, "source_partition"))
    return union(rows).join(legs.select(*sources), ["partition", "source_offset"], how="left_anti").select(*_DEBIT)


def _all_sent(night: Night, last: DataFrame) -> dict[int, int]:
    """By debtor's partition, up to which source its credit legs are in sight, whichever partition they went to."""
    targets = unstable(night, LEDGER_TRANSFERS)
    if not targets:
        return {}
    seen = {(row["source_partition"], row["partition"]): row["source_offset"] for row in last.collect()}
    return {p: min(seen.get((p, q), -1) for q in targets) for p in night.manifest.topics[LEDGER_TRANSFERS]}


def _gaps(every: DataFrame, open_: DataFrame, waiting: DataFrame, early: DataFrame) -> tuple[dict[str, int], int]:
    """By currency, how much more is in transit than is under way, where that is not 0; and how many legs are."""
    zero, one = F.lit(0).cast("long"), F.lit(1).cast("long")
    parts = (
        (every.where(F.col("account").like(HOUSE)), F.col("closing"), zero),
        (open_, -F.col("amount"), one),
        (waiting, -F.col("amount"), one),
        (early, F.col("amount"), -one),
    )
    rows = [rows.select("currency", amount.cast(MONEY).alias("amount"), n.alias("n")) for rows, amount, n in parts]
    sums = union(rows).groupBy("currency").agg(total("amount").alias("gap"), F.sum("n").alias("n")).collect()
    gaps = {str(row["currency"]): int(row["gap"]) for row in sums if row["gap"] != 0}
    return gaps, sum(row["n"] for row in sums)
