"""Each decision of the services, taken again from the events and the reference data in force (I3, I6, I11).

Invariant: nothing here is shared with the services or with `once verify`. A decision that does not follow from the
events is open and counted, and never a break.
"""

from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark.decisions import prices, reference
from spark.decisions.findings import OPEN
from spark.night import Checked, Night, together, union


def check(night: Night) -> Checked:
    """Take the decisions of this run again."""
    known = reference.versions(night)
    if known is None:
        return Checked(together(night.spark, []))
    known = known.persist()
    found = union([prices.check(night, known)]).persist()
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    return Checked(
        found.where(F.col("kind") != OPEN),
        {"decisions_open": counts.get(OPEN, 0)},
        carry={reference.CARRIED: reference.to_carry(night, known)},
    )
