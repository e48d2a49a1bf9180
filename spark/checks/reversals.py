"""Whether each reversal is the opposite of what it reverses, once."""

from pyspark.sql import DataFrame

from spark.breaks import breaks, finding, together, union
from spark.night import Checked, Kind, Night

_CHECK = "reversals"
_NEGATED = """transform(original.entries, one -> named_struct('account', {account}, 'currency', one.currency,
    'amount_minor', try_subtract(0L, one.amount_minor)))"""
_OPPOSITE = _NEGATED.format(account="one.account")
# A closed debtor gets nothing back: suspense does
_OF_CLOSED = _NEGATED.format(account="if(one.account = debtor, concat('suspense@', partition), one.account)")
_BOOKED_BACK = f"""(creditor = original.creditor and (array_sort(entries) <=> array_sort({_OPPOSITE})
    or array_sort(entries) <=> array_sort({_OF_CLOSED})))"""


def check(night: Night, count: int) -> Checked:
    """Hold each reversal's posting against the posting of the payment that it names.

    Args:
        night: the run's input.
        count: reversals that were posted in this run; without any, nothing is read.
    """
    if not count:
        return Checked(together(night.spark, []))
    reversing = night.new("postings").where("leg = 'debit' and reversal")
    keys = reversing.selectExpr("debtor as wanted_debtor", "reverses as wanted")
    before = _numbered(night, keys)
    originals = _postings(night, "not reversal", "payment_id", keys).selectExpr(
        "debtor as original_debtor",
        "payment_id as original_id",
        "offset as original_offset",
        "struct(creditor, entries) as original",
    )
    own = before["debtor"] == originals["original_debtor"]
    same = own & (before["reverses"] == originals["original_id"])
    beside = before.join(originals, on=same & (originals["original_offset"] < before["offset"]), how="left")
    judged = beside.selectExpr(
        "*",
        "count(original_id) over (partition by partition, offset) as originals",
        # Where an identity came anew after ingest had forgotten it, the younger one is meant
        "row_number() over (partition by partition, offset order by original_offset desc) as age",
    ).where("age = 1")
    wrong = judged.where(f"originals = 0 or nth > originals or not coalesce({_BOOKED_BACK}, false)")
    orphan = finding(Kind.ORPHAN, _CHECK, "it reverses {payment}, which was not posted", payment="reverses")
    again = finding(Kind.DUPLICATE, _CHECK, "it reverses {payment}, which was reversed before", payment="reverses")
    other = finding(
        Kind.AMOUNT,
        _CHECK,
        "it books {own}, no opposite of {other}",
        own="to_json(entries)",
        other="to_json(original.entries)",
    )
    found = f"case when originals = 0 then {orphan} when nth > originals then {again} else {other} end"
    broken = breaks(wrong, found, "'ledger.postings'", "partition", "offset", "payment_id").persist()
    return Checked(together(night.spark, [broken] if broken.count() else []))


def _numbered(night: Night, keys: DataFrame) -> DataFrame:
    """The reversals of this run, each with its number among all that name the same payment."""
    order = "row_number() over (partition by debtor, reverses order by partition, offset) as nth"
    return _postings(night, "reversal", "reverses", keys).selectExpr("*", order).where("fresh")


def _postings(night: Night, where: str, column: str, keys: DataFrame) -> DataFrame:
    """Debit postings, whenever they were made, whose debtor and `column` are among the keys."""
    rows = union(
        [
            read("postings")
            .where(f"leg = 'debit' and {where}")
            .selectExpr(
                *("partition", "offset", "payment_id", "debtor", "creditor", "reverses", "entries"), f"{fresh} as fresh"
            )
            for read, fresh in ((night.new, "true"), (night.history, "false"))
        ]
    )
    wanted = (rows["debtor"] == keys["wanted_debtor"]) & (rows[column] == keys["wanted"])
    return rows.join(keys, on=wanted, how="left_semi")
