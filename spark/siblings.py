"""Records of one transaction that must be visible together, in whatever topics and partitions they are.

Siblings name the same source. One of them, the child, cannot exist without the other, the parent.

Invariant: a child without a visible parent is not a break while the parent may be above the cut.
"""

from typing import Final

from pyspark.sql import DataFrame

from spark.agreements import Link
from spark.history import bounds_of, made_from
from spark.lake import Bounds, within
from spark.links import AHEAD, ORPHAN, Joined, paired, rows
from spark.night import JUDGED, Kind, Night, breaks, by_partition, finding, late, union
from spark.places import PLACE, Log, named, offset_of, partition_of
from spark.schemas import UNDECODABLE, tables_of
from spark.settling import last_seen

ALONE = "alone"  # the state of a child without a visible parent


def state_alone(log: Log, *, settled: bool) -> str:
    """Return the state of a child without a visible parent, by its source's place `c_at` in the source's log."""
    return f"""case when c_at < 0 then '{ORPHAN}'
        when {offset_of("c_at")} >= {log.end(partition_of("c_at"))} then '{ORPHAN if settled else AHEAD}'
        else '{ALONE}' end"""


def posting_marks(night: Night, at: str) -> dict[tuple[int, int], str]:
    """Return how far each partition of ledger.postings was seen, by its number: aggregates for `spark.links.judged`.

    `at` is the source's place of a posting.
    """
    return {
        (_POSTED, number): f"max(if({at} >= 0 and {partition_of(at)} = {number}, {at}, null))"
        for number in Log(night.manifest, "ledger.postings").partitions
    }


_POSTED = -1  # first part of the key of marks in ledger.postings


def hidden_posting(night: Night, link: Link, joined: Joined, topic: str) -> str:
    """Whether the posting of a child alone, a record of a topic, may be above the cut."""
    unstable = Log(night.manifest, "ledger.postings").unstable
    if not unstable or not joined.count(ALONE):
        return "false"
    last = last_seen(night, f"{link.name}_marks", joined.marks, needed=True)
    bounds = {number: last.get((_POSTED, number), -1) for number in unstable}
    above = f"coalesce(c_at > {by_partition(partition_of('c_at'), bounds)}, false)"
    # By its own place: its source, an input of the ledger, was in an earlier cut or the same
    return f"({above} and not c_{JUDGED} and not {late(night, topic, 'c_partition', 'c_offset')})"


def looked_up(night: Night, link: Link, joined: Joined, hidden: str) -> DataFrame:
    """Join children alone with the parents of earlier cuts.

    Columns: `c_*`, `p_*` (null where there is no parent), and `known`, null where the source is not a committed record.
    """
    children = joined.rest.where(f"state = '{ALONE}' and not {hidden}")
    alone = children.select(*(name for name in children.columns if name.startswith("c_"))).persist()
    keys = alone.selectExpr("c_at as at")
    places = bounds_of(keys)
    log = Log(night.manifest, link.source)
    parents = rows(
        night,
        link,
        link.parents,
        "parents",
        log.source_or_own(),
        history=lambda table: made_from(night, table, link.source, places),
    )
    found = paired(parents, alone.toDF(*(name.removeprefix("c_") for name in alone.columns)), how="right")
    known = _sources(night, link.source, keys, places)
    return found.join(known, on=found["c_at"] == known["known"], how="left")


def _sources(night: Night, topic: str, keys: DataFrame, near_keys: Bounds) -> DataFrame:
    """Return those of some places that have a committed record, in this run or before: column `known`."""
    names = [*(table.name for table in tables_of(topic)), UNDECODABLE]
    frames = [
        frame.where(f"topic = '{topic}'")
        for name in names
        for frame in (night.new(name).where(within(near_keys)), night.history(name, near_keys))
    ]
    places = union([frame.selectExpr(f"{PLACE} as known") for frame in frames])
    return places.join(keys, on=places["known"] == keys["at"], how="left_semi")


TORN: Final = "p_at is null and known is not null"
"""Whether a row of `looked_up` is torn. Its parent may still come; what else is wrong with it stays."""


def without_parent(link: Link, missing: str) -> str:
    """Return a finding on a child of `looked_up` without a parent, TORN or UNCOMMITTED; `missing` names it."""
    source = named(link.source, "c_at")
    torn = finding(Kind.TORN, link.check, f"of {{source}} it is there, and {missing} is not", source=source)
    uncommitted = finding(
        Kind.UNCOMMITTED, link.check, "made from {source}, where no committed record stands", source=source
    )
    return f"if(known is null, {uncommitted}, {torn})"


def orphans(link: Link, joined: Joined, topic: str) -> list[DataFrame]:
    """Return BREAKS: children that name no possible source."""
    if not joined.count(ORPHAN):
        return []
    found = finding(Kind.ORPHAN, link.check, f"it names no source in {link.source} that could be")
    rows_of = joined.rest.where(f"state = '{ORPHAN}'")
    return [breaks(rows_of, found, f"'{topic}'", "c_partition", "c_offset", "c_payment_id", amount=link.amount("c"))]
