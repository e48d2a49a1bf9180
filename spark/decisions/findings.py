"""Findings of the decisions' checks: breaks, and decisions that cannot be judged, as rows of one schema."""

from typing import Final

from pyspark.sql import DataFrame

from spark.night import NO_AMOUNT, Amount, Kind, breaks, finding

OPEN: Final = "open"
"""In place of a break's kind: the decision cannot be judged."""


def decided(
    rows: DataFrame,
    check: str,
    text: str,
    *,
    at: tuple[str, str, str, str],
    open_: str = "false",
    amount: Amount = NO_AMOUNT,
    rechecked: str = "false",
) -> DataFrame:
    """Return BREAKS of rows whose decision is wrong; `text` and `open_` are expressions.

    Args:
        at: topic, partition, offset and payment_id: expressions.
        open_: whether it cannot be judged. Its kind is OPEN then.
    """
    wrong = finding(Kind.DECISION, check, "{said}", said=text)
    unknown = f"named_struct('kind', '{OPEN}', 'check', '{check}', 'detail', '')"
    found = rows.selectExpr("*", f"if({open_}, {unknown}, {wrong}) as finding")
    return breaks(found, "finding", *at, amount=amount, rechecked=rechecked)
