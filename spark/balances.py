"""The postings' fold against the changelog (I9), conservation (I1), and what is in transit (I5).

What is compared: for each account and currency, the last state in `ledger.balances` with the sum of its postings. The
two topics' ends are pinned apart, so either may show more transactions than the other. With `spark.places`, exactly:

- K is the largest source of any state in sight on the partition, K = infinity where the changelog is stable there. A
  transaction up to K is in sight with every state that it wrote. So a posting whose source is K or less must be in its
  accounts' last states, and one above K is left out of the sum: its state may come yet.
- M is the largest source of any record of `ledger.postings` in sight on the partition, infinity where that is stable.
  All postings up to M are in sight. So a state whose source is M or less must equal the sum. One whose source is above
  M may contain postings that are not in sight: if it differs, that is in flight.
- What is left out or in flight is decided in a later run: sums and last states are carried, and so are the entries that
  were left out.

A state's source is the last record of a whole transaction, not the one that changed the account. The rule needs no
more: it bounds what the transaction covers, and a posting's source within it is never larger.

What holds: an account whose difference was reported is not reported again while the difference stays as it is; it is
counted (`accounts_off`), and nights add up to what one run over all of them finds. An error that the changelog itself
corrected before the cut is none, as it may be compacted away.

Conservation: for each currency, all balances sum to 0 (I1).

What holds: a posting is in sight as a whole or not at all and balances by itself, so this holds in every cut, under way
or not. A sum that was off before and did not change is not reported again.

What is in transit (I5): the in-transit accounts sum to the credit legs still under way, 0 once all is drained.

What is under way, by currency and exactly, from offsets alone (`spark.places`):

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
from spark.compare import DIFFERENCES, Standing, judged, sides, strays, unequal
from spark.localise import at_fault, without_state
from spark.movements import ACCOUNT, accounts, entries, movements, total
from spark.night import BREAKS, Checked, Kind, Night, frame, union
from spark.places import bound, consumed, offsets, posted, reach, unstable
from spark.schemas import MONEY

CHECK: Final = "conservation"


def check_conservation(night: Night, every: DataFrame) -> Checked:
    """Sum up each currency.

    Args:
        every: of `spark.movements.accounts`.
    """
    sums = every.groupBy("currency").agg(total("closing").alias("closing"), total("opening").alias("opening")).collect()
    off = [(str(row["currency"]), int(row["closing"]), int(row["opening"])) for row in sums if row["closing"] != 0]
    breaks = [
        broken(CHECK, f"all balances in {currency} sum to {closing}")
        for currency, closing, opening in sorted(off)
        if closing != opening
    ]
    return Checked(
        breaks=frame(night.spark, BREAKS, breaks), figures={"currencies": len(sums), "currencies_off": len(off)}
    )


def broken(check: str, detail: str) -> dict[str, object]:
    """A row of BREAKS about a sum, which no single record is at fault for."""
    return {"kind": Kind.AMOUNT.value, "check": check, "detail": detail}


HOUSE: Final = "in-transit@%"
_GAPS: Final = StructType([StructField("currency", StringType()), StructField("gap", MONEY)])
_LEG: Final = ("partition", "offset", "source_partition", "source_offset", "currency", "amount")
_DEBIT: Final = ("partition", "source_offset", "currency", "amount")


def check_transit(night: Night, every: DataFrame, seen: dict[int, int]) -> Checked:
    """Hold the in-transit accounts against what is under way.

    Args:
        every: of `spark.movements.accounts`.
        seen: of `spark.places.posted`.
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


def check(night: Night) -> Checked:
    """Balances, conservation and what is in transit. Keeps small tables in memory until the session clears its cache.

    Args:
        night: of which the tables of `ledger.postings`, account_states and credit_legs are read; carried are
            account_balances (of `spark.totals`) and what this check leaves.
    """
    every = accounts(night, movements(night)).persist()
    rows = posted(night).persist()
    seen = offsets(rows)
    parts = (_balances(night, every, seen), check_conservation(night, every), check_transit(night, every, seen))
    return Checked(
        breaks=union([part.breaks for part in parts]),
        figures={name: count for part in parts for name, count in part.figures.items()},
        in_flight={name: count for part in parts for name, count in part.in_flight.items()},
        carry={"postings_reach": rows, **{name: rows for part in parts for name, rows in part.carry.items()}},
    )


def _balances(night: Night, every: DataFrame, seen: dict[int, int]) -> Checked:
    compared = sides(night, every, seen)
    differing = unequal(compared).persist()
    breaks, differences, off = [strays(night)], frame(night.spark, DIFFERENCES), 0
    waiting: list[DataFrame] = [compared.late.select("account")] if compared.covered else []
    if differing.count():
        found = judged(night, compared, differing).persist()
        unknown, there = F.col("standing") == Standing.WAITING.value, F.col("partition").isNotNull()
        # One that is known may have changed and changed back: both changes are told, as in one run over all nights
        breaks.append(at_fault(night, compared, found.where(~unknown & there)))
        breaks.append(without_state(night, found.where((F.col("standing") == Standing.NEW.value) & ~there)))
        waiting.append(found.where(unknown).select("account"))
        reported = F.when(unknown, F.col("known")).otherwise(F.col("difference")).alias("difference")
        differences = found.select(*ACCOUNT, reported).where(F.col("difference").isNotNull())
        off = found.where(~unknown).select("account").distinct().count()
    return Checked(
        breaks=union(breaks),
        figures={"accounts_off": off},
        in_flight={"balances": union(waiting).distinct().count() if waiting else 0},
        carry={"account_states": compared.last, "balance_differences": differences, "postings_late": compared.late},
    )
