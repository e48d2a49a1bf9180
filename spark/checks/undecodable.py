"""Records that are no event of their topic: each is a break of its own, for between services there must be none."""

from spark.breaks import breaks, finding, together
from spark.night import Checked, Kind, Night
from spark.schemas import UNDECODABLE


def check(night: Night) -> Checked:
    """Name each record that could not be read."""
    rows = night.new(UNDECODABLE).select("topic", "partition", "offset")
    count = rows.count()
    found = finding(Kind.UNDECODABLE, "undecodable", "no event of its topic")
    broken = breaks(rows, found, "topic", "partition", "offset", "null")
    return Checked(together(night.spark, [broken] if count else []), {"undecodable": count})
