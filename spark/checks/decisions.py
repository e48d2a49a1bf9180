"""Each decision of the services, taken again from the events and the reference data in force (I3, I6, I11).

Invariant: nothing here is shared with the services or with `once verify`. A decision that does not follow from the
events is open and counted, and never a break.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark.decisions import cover, prices, reference
from spark.decisions.findings import OPEN
from spark.night import Checked, Night, union


def check(night: Night) -> Checked:
    """Take the decisions of this run again."""
    parts: list[DataFrame] = []
    carry: dict[str, DataFrame] = {}
    known = reference.versions(night)
    if known is not None:
        known = known.persist()
        parts.append(prices.check(night, known))
        carry[reference.CARRIED] = reference.to_carry(night, known)
    wrong, terms = cover.check(night)
    wrong = wrong.persist()
    parts.append(cover.findings(wrong))
    found = union(parts).persist()
    counts = {(row["kind"], row["check"]): row["count"] for row in found.groupBy("kind", "check").count().collect()}
    carry |= terms
    if any(check == cover.CHECK for _, check in counts):
        carry[cover.JUDGED] = wrong
    return Checked(
        found.where(F.col("kind") != OPEN),
        {"decisions_open": sum(count for (kind, _), count in counts.items() if kind == OPEN)},
        carry=carry,
    )
