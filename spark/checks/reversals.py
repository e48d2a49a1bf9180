"""Each reversal's posting against the posting of the payment that it names: its opposite, once (I3).

A reversal whose payment has no posting is a break until a repair writes that posting.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import LEDGER_POSTINGS
from spark.history import widening
from spark.lake import Bounds
from spark.night import Amount, Checked, Kind, Night, all_breaks, breaks, finding, union

_CHECK = "reversals"
_CARRIED = "ledger_reversals"
_NEGATED = """transform(original.entries, one -> named_struct('account', {account}, 'currency', one.currency,
    'amount_minor', try_subtract(0L, one.amount_minor)))"""
_OPPOSITE = _NEGATED.format(account="one.account")
# A closed debtor gets nothing back: suspense does
_OF_CLOSED = _NEGATED.format(account="if(one.account = debtor, concat('suspense@', partition), one.account)")
_BOOKED_BACK = f"""(creditor = original.creditor and (array_sort(entries) <=> array_sort({_OPPOSITE})
    or array_sort(entries) <=> array_sort({_OF_CLOSED})))"""


def check(night: Night, count: int) -> Checked:
    """Compare each reversal's posting with the posting of the payment that it names.

    The original of a right one is near. Whether another is wrong depends on all that name the same payment, whenever
    they were posted: for these reversals alone more is read, on their partitions, until they are right or all is read.
    A reversal without an original is carried. It is judged again when a repair has written that posting.

    `count` is the number of reversals that were posted in this run; without any to judge, nothing is read.
    """
    carried = _carried(night)
    if not count and carried is None:
        return Checked()
    wanted, waiting = _debits(night.new("postings"), "reversal"), None
    if carried is not None:
        again, waiting = (carried.where(which).drop("fresh") for which in ("fresh", "not fresh"))
        wanted = wanted.unionByName(again)
        count += again.count()
    broken = _wrong(night, wanted, carried, count) if count else None
    orphans = [] if waiting is None else [waiting]
    if broken is not None:
        keys = broken.where(F.col("kind") == Kind.ORPHAN.value).select("partition", "offset")
        orphans.append(wanted.join(keys, on=["partition", "offset"], how="left_semi"))
    left = union(orphans).persist() if orphans else None
    if left is None or left.isEmpty():
        return Checked(broken)
    still = None if waiting is None else breaks(waiting, _ORPHAN, *_AT, amount=_PAID, rechecked="true")
    return Checked(all_breaks([broken, still]), carry={_CARRIED: left})


_OF_DEBIT = (
    *("partition", "offset", "coalesce(source_offset, offset) as at"),
    *("payment_id", "debtor", "creditor", "reverses", "entries"),
)


def _debits(postings: DataFrame, where: str) -> DataFrame:
    return postings.where(f"leg = 'debit' and {where}").selectExpr(*_OF_DEBIT)


def _carried(night: Night) -> DataFrame | None:
    """Return carried reversals; `fresh` is whether this run has a posting of the payment that one names."""
    before = night.carried(_CARRIED)
    if before is None:
        return None
    keys = F.broadcast(before.selectExpr("debtor as wanted_debtor", "reverses as wanted"))
    payments = _named(_debits(night.new("postings"), "not reversal"), "payment_id", keys)
    came = payments.selectExpr("debtor as paid_by", "payment_id as paid").distinct()
    own = (before["debtor"] == came["paid_by"]) & (before["reverses"] == came["paid"])
    return before.join(came, on=own, how="left").selectExpr(*before.columns, "paid is not null as fresh").persist()


def _wrong(night: Night, wanted: DataFrame, carried: DataFrame | None, count: int) -> DataFrame | None:
    """Return BREAKS of some reversals; None where all are right. `count` is at least their number."""
    numbers = set(night.manifest.topics[LEDGER_POSTINGS])
    broken: DataFrame | None = None
    for bounds in widening(night, LEDGER_POSTINGS, _LOOK_BACK):
        near = {number: bounds[number] for number in numbers}
        broken = _breaks(night, wanted, carried, near, few=count <= _FEW_MAX).persist()
        counts = {row["partition"]: row["count"] for row in broken.groupBy("partition").count().collect()}
        if not counts:
            return None
        numbers, count = set(counts), sum(counts.values())
        wanted = wanted.join(broken.select("partition", "offset"), on=["partition", "offset"], how="left_semi")
    return broken


_LOOK_BACK = 400_000
"""Offsets before the run: many times the payments that the ledger can reverse by default."""
_FEW_MAX = 100_000
_ORPHAN = finding(Kind.ORPHAN, _CHECK, "it reverses {payment}, which was not posted", payment="reverses")
_AT = ("'ledger.postings'", "partition", "offset", "payment_id")
_PAID = Amount("get(entries, 0).currency", "get(entries, 0).amount_minor")


def _breaks(night: Night, wanted: DataFrame, carried: DataFrame | None, bounds: Bounds, *, few: bool) -> DataFrame:
    keys = wanted.selectExpr("debtor as wanted_debtor", "reverses as wanted")
    keys = F.broadcast(keys) if few else keys
    before = _numbered(night, keys, carried, bounds)
    originals = _named(_postings(night, "not reversal", bounds), "payment_id", keys).selectExpr(
        "debtor as original_debtor",
        "payment_id as original_id",
        "at as original_at",
        "struct(creditor, entries) as original",
    )
    own = before["debtor"] == originals["original_debtor"]
    same = own & (before["reverses"] == originals["original_id"])
    # By their sources: a repair writes a posting behind later ones
    paired = before.join(originals, on=same & (originals["original_at"] < before["at"]), how="left")
    judged = paired.selectExpr(
        "*",
        "count(original_id) over (partition by partition, offset) as originals",
        # Where ingest forgot an identity and accepted it again, the younger one is meant
        "row_number() over (partition by partition, offset order by original_at desc) as age",
    ).where("age = 1")
    wrong = judged.where(f"originals = 0 or nth > originals or not coalesce({_BOOKED_BACK}, false)")
    again = finding(Kind.DUPLICATE, _CHECK, "it reverses {payment}, which was reversed before", payment="reverses")
    other = finding(
        Kind.AMOUNT,
        _CHECK,
        "it books {own}, no opposite of {other}",
        own="to_json(entries)",
        other="to_json(original.entries)",
    )
    found = f"case when originals = 0 then {_ORPHAN} when nth > originals then {again} else {other} end"
    return breaks(wrong, found, *_AT, amount=_PAID, rechecked="originals = 0")


def _numbered(night: Night, keys: DataFrame, carried: DataFrame | None, bounds: Bounds) -> DataFrame:
    """Return the reversals that are judged, each with its number among all that name the same payment."""
    rows = _postings(night, "reversal", bounds)
    if carried is not None:
        known = carried.select("partition", "offset")
        rows = rows.join(known, on=["partition", "offset"], how="left_anti").unionByName(carried)
    order = "row_number() over (partition by debtor, reverses order by partition, offset) as nth"
    return _named(rows, "reverses", keys).selectExpr("*", order).where("fresh")


def _postings(night: Night, where: str, bounds: Bounds) -> DataFrame:
    """Return debit postings of this run and of history within bounds; those of this run are `fresh`."""
    frames = ((night.new("postings"), True), (night.history("postings", bounds), False))
    return union([_debits(frame, where).withColumn("fresh", F.lit(fresh)) for frame, fresh in frames])


def _named(rows: DataFrame, column: str, keys: DataFrame) -> DataFrame:
    """Return postings whose debtor and `column` are among the keys."""
    wanted = (rows["debtor"] == keys["wanted_debtor"]) & (rows[column] == keys["wanted"])
    return rows.join(keys, on=wanted, how="left_semi")
