"""Effects that have a result and wait nevertheless: one transaction writes the result and ends the waiting (I7).

What holds: an effect is no break while the end of its waiting may be above the cut; it is carried then.
"""

from typing import Final

from pyspark.sql import DataFrame

from spark.breaks import breaks, finding, together, union
from spark.night import Checked, Kind, Night
from spark.places import Log

_CARRIED: Final = "effects_still_waiting"
_TOPIC: Final = "effects.waiting"
COLUMNS: Final = ("effect_id", "partition", "offset", "payment_id")
"""Of an effect that waits; its coordinates are those of its record in effects.waiting."""


def check(night: Night, check_name: str, rows: DataFrame | None) -> Checked:
    """Judge effects of this run and of runs before, or carry them.

    Args:
        check_name: as breaks name it.
        rows: those of this run, with COLUMNS; None where there are none.
    """
    before = night.carried(_CARRIED)
    parts = [part.select(*COLUMNS) for part in (rows, before) if part is not None]
    if not parts:
        return Checked(together(night.spark, []))
    every = union(parts)
    ended = night.new("effects_waiting").where("deleted").selectExpr("effect_id as ended_id", "offset as ended_at")
    later = (every["effect_id"] == ended["ended_id"]) & (every["offset"] < ended["ended_at"])
    left = every.join(ended, on=later, how="left_anti")
    numbers = ", ".join(str(number) for number in sorted(Log(night.manifest, _TOPIC).unstable))
    hidden = f"partition in ({numbers})" if numbers else "false"
    torn = finding(Kind.TORN, check_name, "{effect} has a result, and waits nevertheless", effect="effect_id")
    found = breaks(left.where(f"not {hidden}"), torn, f"'{_TOPIC}'", "partition", "offset", "payment_id")
    return Checked(found, carry={_CARRIED: left.where(hidden)} if numbers else {})
