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

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import IntegerType, StructField, StructType

from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.postings import DEBIT
from spark.changelog import at_fault, fault_breaks, judged, sides, stray_states, strays, unequal, without_state
from spark.movements import ACCOUNT, accounts, entries, movements, total
from spark.night import BREAKS, Checked, Few, Kind, Night, all_breaks, frame, union
from spark.places import VISIBLE, bound, consumed, posted, unstable, visible_up_to
from spark.schemas import MONEY
from spark.totals import CurrencyTotal

CHECK: Final = "conservation"


def check_conservation(night: Night, currencies: Sequence[CurrencyTotal]) -> Checked:
    """Check that all balances of each currency sum to 0.

    It holds in every cut, in flight or not: a posting is visible as a whole or not at all, and balances by itself.
    """
    off = [(one.currency, one.closing_minor) for one in currencies if one.closing_minor]
    breaks = [
        broken(f"all balances in {currency} sum to {closing}", "closing", currency, closing)
        for currency, closing in off
    ]
    return Checked(
        breaks=frame(night.spark, BREAKS, breaks) if breaks else None,
        figures={"currencies": len(currencies), "currencies_off": len(off)},
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

LAST_LEGS: Final = StructType([StructField("source_partition", IntegerType()), *VISIBLE])
"""The last source of the visible credit legs, from each partition to each. Carried as `transit_last`."""


class Visible(NamedTuple):
    """The last visible records of the ledger, in this run and those before."""

    postings: dict[int, int]  # the last source with a visible posting, decline or event, by partition
    legs: dict[tuple[int, int], int]  # the last source of the credit legs from each partition to each
    strays: int  # states of this run whose source cannot exist


def visible(night: Night) -> Visible:
    """Return how far the ledger's records are visible, in one pass over the new ones."""
    columns = ("partition", "source_offset")
    none = F.lit(None).cast("int").alias("source_partition")
    highs = {number: range_.high for number, range_ in night.manifest.topics[LEDGER_TRANSFERS].items()}
    possible = F.col("source_offset") < bound(highs, "source_partition", otherwise=0)
    legs = night.new("credit_legs").where((F.col("source_topic") == LEDGER_TRANSFERS) & possible)
    parts = {
        _POSTED: posted(night).select(none, *columns),
        _SENT: legs.select("source_partition", *columns),
        _STRAY: stray_states(night).select(none, *columns),
    }
    rows = (
        union([part.select(F.lit(name).alias("part"), "*") for name, part in parts.items()])
        .groupBy("part", "source_partition", "partition")
        .agg(F.max("source_offset").alias("source_offset"), F.count(F.lit(1)).alias("rows"))
        .collect()
    )
    postings = {row["partition"]: row["source_offset"] for row in night.few("postings_reach")}
    last = {(row["source_partition"], row["partition"]): row["source_offset"] for row in night.few("transit_last")}
    for row in rows:
        source, number, offset = row["source_partition"], row["partition"], row["source_offset"]
        if row["part"] == _POSTED:
            postings[number] = max(postings.get(number, -1), offset)
        elif row["part"] == _SENT:
            last[source, number] = max(last.get((source, number), -1), offset)
    return Visible(postings, last, sum(row["rows"] for row in rows if row["part"] == _STRAY))


_POSTED, _SENT, _STRAY = "posted", "sent", "stray"


def check_transit(night: Night, currencies: Sequence[CurrencyTotal], shown: Visible) -> Checked:
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
    """
    bounds = visible_up_to(night, LEDGER_POSTINGS, shown.postings)
    taken = bound(consumed(night, shown.postings))
    parts = {"transit_open": _legs(night, "transit_open").where(F.col("offset") > taken)}
    if bounds:
        beyond = F.col("source_offset") > bound(bounds, "source_partition")
        parts["transit_early"] = _legs(night, "transit_early").where(beyond)
    sent = _all_sent(night, shown.legs)
    if sent:
        parts["transit_waiting"] = _waiting(night, sent)
    parts = {name: rows.persist() for name, rows in parts.items()}
    gaps, counts = _gaps(currencies, parts)
    breaks = [
        broken(f"{gap} {currency} more in transit than the credit legs under way", "in transit", currency, gap)
        for currency, gap in sorted(gaps.items())
    ]
    last = sorted(shown.legs.items())
    legs = [{"source_partition": p, "partition": q, "source_offset": offset} for (p, q), offset in last]
    there = {name: rows for name, rows in parts.items() if counts.get(name)}
    return Checked(
        breaks=frame(night.spark, BREAKS, breaks) if breaks else None,
        figures={"legs_under_way": sum(_SIGN[name] * count for name, count in counts.items())},
        carry={**there, "transit_last": Few(LAST_LEGS, legs)},
    )


_SIGN: Final = {"transit_open": 1, "transit_waiting": 1, "transit_early": -1}
"""Whether what is in flight is in the in-transit accounts, or counts against them."""


def _legs(night: Night, carried: str) -> DataFrame:
    """Return this run's credit legs and the carried ones, with the columns _LEG."""
    amount = F.col("amount_minor").cast(MONEY).alias("amount")
    rows = [night.new("credit_legs").select(*_LEG[:-1], amount)]
    before = night.carried(carried)
    if before is not None:
        rows.append(before.select(*_LEG))
    return union(rows)


def _waiting(night: Night, sent: Mapping[int, int]) -> DataFrame:
    """Return debit postings without a visible credit leg, with the columns _DEBIT. Carried as `transit_waiting`."""
    beyond = F.col("source_offset") > bound(sent)
    debits = night.new("postings").where((F.col("leg") == DEBIT) & beyond)
    rows = [entries(debits).where(F.col("account").like(HOUSE)).select(*_DEBIT)]
    before = night.carried("transit_waiting")
    if before is not None:
        rows.append(before.where(beyond).select(*_DEBIT))
    sources = (F.col("source_partition").alias("partition"), "source_offset")
    legs = _legs(night, "transit_early").where(F.col("source_offset") > bound(sent, "source_partition"))
    return union(rows).join(legs.select(*sources), ["partition", "source_offset"], how="left_anti").select(*_DEBIT)


def _all_sent(night: Night, last: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """By debtor's partition, up to which source its credit legs are visible, on every partition; empty if all are."""
    targets = unstable(night, LEDGER_TRANSFERS)
    if not targets:
        return {}
    return {p: min(last.get((p, q), -1) for q in targets) for p in night.manifest.topics[LEDGER_TRANSFERS]}


def _gaps(currencies: Sequence[CurrencyTotal], parts: Mapping[str, DataFrame]) -> tuple[dict[str, int], dict[str, int]]:
    """By currency, how much more is in transit than in flight, where not 0; and how many rows each part has."""
    rows = union([rows.select(F.lit(name).alias("part"), "currency", "amount") for name, rows in parts.items()])
    sums = rows.groupBy("part", "currency").agg(total("amount").alias("amount"), F.count(F.lit(1)).alias("n")).collect()
    gaps = {one.currency: one.in_transit_minor for one in currencies}
    counts: dict[str, int] = {}
    for row in sums:
        part, currency = row["part"], str(row["currency"])
        gaps[currency] = gaps.get(currency, 0) - _SIGN[part] * int(row["amount"])
        counts[part] = counts.get(part, 0) + row["n"]
    return {currency: gap for currency, gap in gaps.items() if gap}, counts


def check(night: Night, currencies: Sequence[CurrencyTotal]) -> Checked:
    """Check balances, conservation and what is in transit.

    Keeps small tables in memory until the session clears its cache. Reads the tables of `ledger.postings`,
    account_states and credit_legs, and what `spark.totals` and this check carried.

    Args:
        currencies: the run's, of `spark.totals`.
    """
    every = accounts(night, movements(night)).persist()
    shown = visible(night)
    parts = (
        _balances(night, every, shown),
        check_conservation(night, currencies),
        check_transit(night, currencies, shown),
    )
    postings = sorted(shown.postings.items())
    kept = Few(VISIBLE, [{"partition": number, "source_offset": offset} for number, offset in postings])
    return Checked(
        breaks=all_breaks(part.breaks for part in parts),
        figures={name: count for part in parts for name, count in part.figures.items()},
        in_flight={name: count for part in parts for name, count in part.in_flight.items()},
        carry={"postings_reach": kept, **{name: rows for part in parts for name, rows in part.carry.items()}},
    )


def _balances(night: Night, every: DataFrame, shown: Visible) -> Checked:
    compared = sides(night, every, shown.postings)
    differing = unequal(compared).persist()
    breaks = [strays(night)] if shown.strays else []
    off, carry = 0, dict[str, DataFrame | Few](account_states=compared.last)
    waiting: list[DataFrame] = []
    if compared.late is not None:
        carry["postings_late"] = compared.late
        waiting.append(compared.late.select("account"))
    if differing.count():
        rows = judged(night, compared, differing).persist()
        there = rows.where(F.col("partition").isNotNull())
        faults = at_fault(night, compared, there).persist()
        breaks += [fault_breaks(faults, there), without_state(night, rows.where(F.col("partition").isNull()))]
        waiting.append(rows.where("waiting").select("account"))
        left = F.when(F.col("waiting"), F.col("known")).otherwise(F.col("difference")).alias("difference")
        differences = rows.select(*ACCOUNT, left).where(F.col("difference").isNotNull())
        off = rows.where("not waiting").select("account").distinct().count()
        carry |= {"balance_differences": differences, "balance_faults": faults}
    return Checked(
        breaks=all_breaks(breaks),
        figures={"accounts_off": off},
        in_flight={"balances": union(waiting).distinct().count() if waiting else 0},
        carry=carry,
    )
