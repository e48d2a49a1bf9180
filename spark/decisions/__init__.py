"""The decisions of the services, taken again from the events and the reference data in force (I3, I6, I11).

Invariant: nothing here is shared with the services or with `once verify`. A decision that does not follow from the
events is open and counted, and never a break.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from spark.decisions import cover, effects, prices, reference, refusals
from spark.decisions.reference import HIDDEN, OPEN
from spark.night import Checked, Night, union


def check(night: Night) -> Checked:
    """Take the decisions of this run again."""
    parts: list[DataFrame] = []
    carry: dict[str, DataFrame] = {}
    carried_if_any: dict[str, tuple[str, DataFrame]] = {}
    known = reference.versions(night)
    if known is not None:
        known = known.persist()
        asked = effects.check(night, known).persist()
        parts += [prices.check(night, known), effects.findings(asked)]
        carry[reference.CARRIED] = reference.to_carry(night, known)
        carried_if_any[effects.CHECK] = effects.CARRIED, effects.to_carry(asked)
    parts += refusals.check(night)
    of_accounts = cover.check(night)
    wrong = of_accounts.wrong.persist()
    parts += [cover.findings(wrong), of_accounts.facts]
    carry[cover.TERMS] = of_accounts.terms
    carried_if_any[cover.CHECK] = cover.JUDGED, wrong
    found = union(parts).persist()
    counts = {(row["kind"], row["check"]): row["count"] for row in found.groupBy("kind", "check").count().collect()}
    there = {check for _, check in counts}
    return Checked(
        found.where(~F.col("kind").isin(OPEN, HIDDEN))
        if any(kind not in {OPEN, HIDDEN} for kind, _ in counts)
        else None,
        {"decisions_open": sum(count for (kind, _), count in counts.items() if kind == OPEN)},
        {"decisions": sum(count for (kind, _), count in counts.items() if kind == HIDDEN)},
        {**carry, **{name: rows for check, (name, rows) in carried_if_any.items() if check in there}},
    )
