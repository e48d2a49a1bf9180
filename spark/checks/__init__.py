"""The checks of a run, each from the night's rows to a `Checked`. They change nothing.

Their expressions are SQL text: docs/adr/0031-expressions-as-text.md says why.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Final

from pyspark.sql import SparkSession

from spark import decisions
from spark.checks import effects, intake, ledger, legs
from spark.lake import Landed
from spark.manifest import INPUTS, KEPT_FOR_EVER, Manifest
from spark.night import BREAKS, Checked, Kind, Night, frame


def check_cut(night: Night) -> Checked:
    """Find committed offsets that are missing or went back, and records that expired unlanded.

    Both hide records from the other checks. A group without an offset, or with an older one, makes its records look as
    if they waited; a record that expired is in no table. They are facts: no later cut can take them back. Reads
    manifests only.
    """
    found = [
        row
        for before, after in pairwise([*night.history_cuts[-1:], *night.new_cuts])
        for row in _committed(before, after)
    ]
    found += [row for cut in night.new_cuts for row in _expired(cut)]
    return Checked(frame(night.spark, BREAKS, found) if found else None)


def check_lost(spark: SparkSession, landed: Iterable[tuple[Manifest, Landed]]) -> Checked:
    """Find records that the log has lost: a break for each topic partition of each new cut.

    So a run over joined cuts finds the same breaks as the runs over each of them.
    """
    found = [
        _lost(cut, topic, partition, count.lost)
        for cut, part in landed
        for topic, partition, count in part.counted
        if count.lost
    ]
    return Checked(frame(spark, BREAKS, found) if found else None)


def _committed(before: Manifest, after: Manifest) -> list[dict[str, object]]:
    found = []
    for group, offsets in before.groups.items():
        for partition, earlier in offsets.items():
            committed = after.groups[group].get(partition)
            if earlier is None or (committed is not None and committed >= earlier):
                continue
            now = "has none" if committed is None else f"committed {committed}"
            text = f"{group} had committed {earlier} in cut {before.cut_id}, and {now} in cut {after.cut_id}"
            found.append(_broken(Kind.OFFSETS, INPUTS[group], partition, earlier, text))
    return found


def _expired(cut: Manifest) -> list[dict[str, object]]:
    return [
        _broken(
            Kind.EXPIRED, topic, partition, offsets.start, f"offsets up to {offsets.first} expired before they landed"
        )
        for topic, ranges in cut.topics.items()
        for partition, offsets in ranges.items()
        if topic in KEPT_FOR_EVER and offsets.expired
    ]


def _lost(cut: Manifest, topic: str, partition: int, count: int) -> dict[str, object]:
    ends = cut.topics[topic][partition]
    text = f"{count} offsets below {ends.end} hold no record, and no batch of the log covers them"
    return _broken(Kind.MISSING, topic, partition, ends.start, text)


def _broken(kind: Kind, topic: str, partition: int, offset: int, detail: str) -> dict[str, object]:
    return {
        "kind": kind.value,
        "check": "cut",
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "detail": detail,
        "rechecked": False,
    }


Check = Callable[[Night], Checked]

ALL: Final[Mapping[str, Check]] = {
    "cut": check_cut,
    "undecodable": intake.check_undecodable,
    "intake": intake.check_ingest,
    "transform": intake.check_transform,
    "ledger": ledger.check,
    "legs": legs.check,
    "effects": effects.check,
    "decisions": decisions.check,
}
"""By name, in the order of the flow."""
