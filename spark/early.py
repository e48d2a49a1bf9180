"""Outputs that are visible while the offset of their transaction is not: under way for a moment, torn at rest.

What holds: a cut under way judges none of them. It carries them until a cut shows that the offset was committed, or a
settled one that it was not.
"""

from typing import Final

from pyspark.sql import DataFrame

from spark.breaks import breaks, finding, together, union
from spark.manifest import INPUTS, Manifest
from spark.night import Checked, Kind, Night

EARLY: Final = ("source_partition", "source_offset", "topic", "partition", "offset", "payment_id")
"""Columns of such an output: its source in the service's input, and its own coordinates."""


def uncommitted(manifest: Manifest, service: str, partition: str, offset: str) -> str:
    """Whether a record of a service's input is at or beyond the committed offset; 0 where there is none.

    Args:
        partition, offset: of the record; expressions.
    """
    cases = " ".join(f"when {number} then {committed}L" for number, committed in manifest.groups[service].items())
    return f"({offset} >= (case {partition} {cases} else 0L end))" if cases else f"({offset} >= 0L)"


def check(night: Night, name: str, service: str, check_name: str, rows: DataFrame | None) -> Checked:
    """Judge outputs of this run and of runs before, or carry them.

    Args:
        name: under which they are carried.
        service: that wrote them.
        check_name: as breaks name it.
        rows: those of this run, with the columns EARLY; None where there are none.
    """
    before = night.carried(name)
    parts = [part.select(*EARLY) for part in (rows, before) if part is not None]
    if not parts:
        return Checked(together(night.spark, []))
    still = union(parts).where(uncommitted(night.manifest, service, "source_partition", "source_offset"))
    if not night.manifest.settled:
        return Checked(together(night.spark, []), carry={name: still})
    source = f"concat('{INPUTS[service]}:', source_partition, ':', source_offset)"
    torn = finding(
        Kind.TORN, check_name, "{source} has it as an output, yet that offset is not committed", source=source
    )
    return Checked(breaks(still, torn, "topic", "partition", "offset", "payment_id"))
