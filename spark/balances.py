"""The postings' sums against the changelog (I9), conservation (I1), and what is in transit (I5).

For each account and currency, the last state in `ledger.balances` is compared with the sum of its postings. The ends of
the two topics are pinned one after the other, so either may show more transactions. By `spark.places`, exactly:

- K is the largest source of any visible state on the partition, infinity where the changelog is stable. A transaction
  up to K is visible with all its states, so its postings must be in them. A posting above K is left out of the sum:
  its state may follow.
- M is the largest source of any visible record of `ledger.postings` there, infinity where that is stable. All postings
  up to M are visible, so a state up to M must equal the sum. A state above M that differs is in flight.
- Sums, last states and the entries left out are carried: a later run decides.

A state's source is the last record of a whole transaction, and no posting in it has a larger one.

Invariant: nights add up to what one run over all of them finds. A difference is a break as long as it is there. An
error that the changelog corrected before the cut is not a break: it may be compacted away.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.postings import DEBIT
from spark.compare import DIFFERENCES, judged, sides, strays, unequal
from spark.localise import FAULTS, at_fault, fault_breaks, without_state
from spark.movements import ACCOUNT, accounts, entries, movements, total
from spark.night import BREAKS, Checked, Kind, Night, frame, union
from spark.places import bound, consumed, offsets, posted, reach, unstable
from spark.schemas import MONEY

CHECK: Final = "conservation"


def check_conservation(night: Night, every: DataFrame) -> Checked:
    """Check that all balances of each currency sum to 0, over `every` of `spark.movements.accounts`.

    It holds in every cut, in flight or not: a posting is visible as a whole or not at all, and balances by itself.
    """
    sums = every.groupBy("currency").agg(total("closing").alias("closing")).collect()
    off = [(str(row["currency"]), int(row["closing"])) for row in sums if row["closing"] != 0]
    breaks = [
        broken(f"all balances in {currency} sum to {closing}", "closing", currency, closing)
        for currency, closing in sorted(off)
    ]
    return Checked(
        breaks=frame(night.spark, BREAKS, breaks), figures={"currencies": len(sums), "currencies_off": len(off)}
    )


def broken(detail: str, sum_of: str, currency: str, minor: int) -> dict[str, object]:
    """Return a row of BREAKS about a sum, which no single record is at fault for."""
    return {
        "kind": Kind.AMOUNT.value,
        "check": CHECK,
        "detail": detail,
        "subject": f"{sum_of} {currency}",
        "currency": currency,
        "amount_minor": str(abs(minor)),
        "rechecked": True,
    }


HOUSE: Final = "in-transit@%"
_LEG: Final = ("partition", "offset", "source_partition", "source_offset", "currency", "amount")
_DEBIT: Final = ("partition", "source_offset", "currency", "amount")


def check_transit(night: Night, every: DataFrame, seen: dict[int, int]) -> Checked:
    """Compare the in-transit accounts with the credit legs in flight, 0 once all is drained.

    What is in flight follows exactly from offsets alone (`spark.places`), by currency:

    1. Visible credit legs that the ledger had not consumed: their offsets are above what it consumed on their
       partition.
    2. Visible debit postings whose credit leg is not: their transaction's end had not reached the leg's partition.
       Their source is above the largest one of any visible leg there from the same debtor's partition.
    3. Visible credit legs whose debit posting is not, likewise. These count against the sum.

    A visible credit posting always has a visible leg: the ledger read the leg below a last stable offset that was
    looked up before the topic's end was pinned. The rows of 1 to 3 are few. A run reads its own new legs and postings,
    and those carried.

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
    breaks = [
        broken(f"{gap} {currency} more in transit than the credit legs under way", "in transit", currency, gap)
        for currency, gap in sorted(gaps.items())
    ]
    return Checked(
        breaks=frame(night.spark, BREAKS, breaks),
        figures={"legs_under_way": under_way},
        carry={
            "transit_open": open_,
            "transit_early": early,
            "transit_waiting": waiting,
            "transit_last": last,
        },
    )


def _legs(night: Night, carried: str) -> DataFrame:
    """Return this run's credit legs and the carried ones, with the columns _LEG."""
    amount = F.col("amount_minor").cast(MONEY).alias("amount")
    rows = [night.new("credit_legs").select(*_LEG[:-1], amount)]
    before = night.carried(carried)
    if before is not None:
        rows.append(before.select(*_LEG))
    return union(rows)


def _last_legs(night: Night) -> DataFrame:
    """Return the largest source of the visible legs from each partition to each. Carried as `transit_last`."""
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
    """Return debit postings without a visible credit leg, with the columns _DEBIT. Carried as `transit_waiting`."""
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
    """By debtor's partition, up to which source its credit legs are visible, on every partition."""
    targets = unstable(night, LEDGER_TRANSFERS)
    if not targets:
        return {}
    seen = {(row["source_partition"], row["partition"]): row["source_offset"] for row in last.collect()}
    return {p: min(seen.get((p, q), -1) for q in targets) for p in night.manifest.topics[LEDGER_TRANSFERS]}


def _gaps(every: DataFrame, open_: DataFrame, waiting: DataFrame, early: DataFrame) -> tuple[dict[str, int], int]:
    """By currency, how much more is in transit than in flight, where not 0; and how many legs are in flight."""
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
    """Check balances, conservation and what is in transit.

    Keeps small tables in memory until the session clears its cache. Reads the tables of `ledger.postings`,
    account_states and credit_legs, and what `spark.totals` and this check carried.
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
    breaks, off = [strays(night)], 0
    differences, faults = frame(night.spark, DIFFERENCES), frame(night.spark, FAULTS)
    waiting: list[DataFrame] = [compared.late.select("account")] if compared.covered else []
    if differing.count():
        found = judged(night, compared, differing).persist()
        there = found.where(F.col("partition").isNotNull())
        faults = at_fault(night, compared, there).persist()
        breaks += [fault_breaks(faults, there), without_state(night, found.where(F.col("partition").isNull()))]
        waiting.append(found.where("waiting").select("account"))
        left = F.when(F.col("waiting"), F.col("known")).otherwise(F.col("difference")).alias("difference")
        differences = found.select(*ACCOUNT, left).where(F.col("difference").isNotNull())
        off = found.where("not waiting").select("account").distinct().count()
    return Checked(
        breaks=union(breaks),
        figures={"accounts_off": off},
        in_flight={"balances": union(waiting).distinct().count() if waiting else 0},
        carry={
            "account_states": compared.last,
            "balance_differences": differences,
            "balance_faults": faults,
            "postings_late": compared.late,
        },
    )
