"""Findings of the decisions' checks: breaks, and decisions that cannot be judged, as rows of one schema."""

from typing import Final

from pyspark.sql import DataFrame

from spark.night import NO_AMOUNT, Amount, Kind, breaks, finding

OPEN: Final = "open"
"""In place of a break's kind: the decision cannot be judged."""


HIDDEN: Final = "hidden"
"""Likewise: what it leads to may be above the cut."""


def only(rows: DataFrame, condition: str, **columns: str) -> DataFrame:
    """Return the rows for which a condition holds, with more columns.

    A filter would be pushed down through the projections below it, with all that its columns are computed from in
    place of each of them: long expressions, computed many times for each row. A generator is not.
    """
    made = ", ".join(f"'{name}', {text}" for name, text in columns.items())
    return rows.selectExpr("*", f"inline(if({condition}, array(named_struct({made})), array()))")


def decided(
    rows: DataFrame,
    check: str,
    text: str,
    *,
    at: tuple[str, str, str, str],
    open_: str = "false",
    hidden: str = "false",
    amount: Amount = NO_AMOUNT,
    rechecked: str = "false",
) -> DataFrame:
    """Return BREAKS of rows whose decision is wrong; `text` and `open_` are expressions.

    Args:
        at: topic, partition, offset and payment_id: expressions.
        open_: whether it cannot be judged. Its kind is OPEN then.
        hidden: whether it cannot be judged yet. Its kind is HIDDEN then.
    """
    wrong = finding(Kind.DECISION, check, "{said}", said=text)
    unknown, unseen = (f"named_struct('kind', '{kind}', 'check', '{check}', 'detail', '')" for kind in (OPEN, HIDDEN))
    one = f"case when {hidden} then {unseen} when {open_} then {unknown} else {wrong} end"
    found = rows.selectExpr("*", f"{one} as finding")
    return breaks(found, "finding", *at, amount=amount, rechecked=rechecked)
