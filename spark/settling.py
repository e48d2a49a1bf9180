"""Turn a link's unmatched rows into breaks, counts of what is in flight, and rows to carry.

Invariant: a parent without a child is not a break while the child may be above the cut, nor a child without a parent
while its source may. Both are carried then, as whole rows. A parent that is a break for want of a child is carried as
well: the break ends when the child comes. History is read for few keys only, and only when there are any.

Siblings are records of one transaction that name the same source, in whatever topics and partitions they are. One of
them, the child, cannot exist without the other, the parent. So both must be visible, or neither.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from spark.history import bounds_of, made_from
from spark.lake import Bounds, within
from spark.links import (
    AHEAD,
    BEFORE,
    EXPIRED,
    LATE,
    MISMATCH,
    MISSING,
    OPTIONAL,
    ORPHAN,
    PENDING,
    UNCOMMITTED,
    Joined,
    Link,
    Side,
    is_early,
    paired,
    rows,
)
from spark.manifest import Manifest
from spark.night import (
    JUDGED,
    Checked,
    Few,
    Kind,
    Night,
    all_breaks,
    breaks,
    by_partition,
    check_early,
    finding,
    is_late,
    union,
    with_carried,
)
from spark.places import PLACE, Log, named, offset_of, partition_of, place
from spark.schemas import TABLES, UNDECODABLE, tables_of

MARKS: Final = StructType(
    [StructField("rank", IntegerType()), StructField("partition", IntegerType()), StructField("at", LongType())]
)


def settle(night: Night, link: Link, joined: Joined, broken: DataFrame | None = None) -> Checked:
    """Return breaks, counts of what is in flight, and what is carried, from the rows of a link.

    `broken` are parents without a child, of `joined.unmatched`, that another check reports as breaks.
    """
    hidden = may_be_above_cut(night, link, joined)
    parents = _in_flight(joined, hidden)
    ahead = {part: count for (state, _, part), count in joined.counts.items() if state == AHEAD and part is not None}
    found, expired = _breaks(night, link, joined, hidden)
    judged = f"(state in ('{LATE}', '{MISSING}') and not {hidden})"
    open_parents = joined.rows(PENDING, LATE, MISSING, OPTIONAL, where=f"state <> '{OPTIONAL}' or {hidden}")
    states = {PENDING, LATE, MISSING}
    if broken is not None:
        open_parents = open_parents.unionByName(broken.select(*open_parents.columns))
        judged = f"({judged} or state = '{OPTIONAL}' and not {hidden})"
    if broken is not None or hidden != "false":
        states.add(OPTIONAL)
    kept = {part for (state, part, _) in joined.counts if state in states and part is not None}
    overtaking = check_early(night, f"{link.name}_early", link.service, link.check, _early(night, link, joined))
    return Checked(
        breaks=all_breaks([*found, overtaking.breaks]),
        figures={f"{link.name}_expired": expired} if expired else {},
        in_flight={link.service: sum(parents.values()), f"{link.name}_ahead": sum(ahead.values())},
        carry={
            **_carried(night, f"{link.name}_parents", link.parents, open_parents, "p", kept, judged),
            **_carried(
                *(night, f"{link.name}_children", link.children, joined.rows(AHEAD)),
                *("c", set(ahead), "false"),
            ),
            **marks_to_carry(
                night, f"{link.name}_marks", joined.marks, [Log(night.manifest, one) for one in link.topics]
            ),
            **overtaking.carry,
        },
    )


def _early(night: Night, link: Link, joined: Joined) -> DataFrame | None:
    """Return children whose parent's offset is not committed."""
    if not joined.count(MISMATCH):
        return None
    return joined.rows(MISMATCH, where=is_early(link, night.manifest)).selectExpr(
        "p_partition as source_partition",
        "p_offset as source_offset",
        f"{_topic_of_child(link)} as topic",
        "c_partition as partition",
        "c_offset as offset",
        "c_payment_id as payment_id",
    )


def last_seen(night: Night, carried: str, marks: Mapping[tuple[int, int], int]) -> Mapping[tuple[int, int], int]:
    """Return the last source seen in each output partition, by number of topic and partition, in any run.

    `carried` is the name of the marks that the run before left.
    """
    last = dict(marks)
    for row in night.few(carried):
        key = row["rank"], row["partition"]
        last[key] = max(last.get(key, -1), row["at"])
    return last


def may_be_above_cut(night: Night, link: Link, joined: Joined) -> str:
    """Return a condition on a link's rows: whether the child of a parent that was consumed may be above the cut.

    Outputs of one input partition into one output partition are in the order of their sources. So it may where its
    source comes after the last one seen in an output partition that was not stable. One that is late, or was a break in
    an earlier cut, is not hidden.
    """
    unstable = [(rank, Log(night.manifest, topic).unstable) for rank, topic in enumerate(link.topics)]
    if joined.count(MISSING) + joined.count(OPTIONAL) == 0 or not any(numbers for _, numbers in unstable):
        return "false"
    last = last_seen(night, f"{link.name}_marks", joined.marks)
    bounds: dict[int, int] = {}
    for rank, numbers in unstable:
        for number in numbers:
            bounds[number] = min(bounds.get(number, 2**62), last.get((rank, number), -1))
    above = f"coalesce({place('p_partition', 'p_offset')} > {by_partition('p_partition', bounds)}, false)"
    return f"({above} and not p_{JUDGED} and not {is_late(night, link.source, 'p_partition', 'p_offset')})"


def _in_flight(joined: Joined, hidden: str) -> dict[int, int]:
    """Return the number of parents in flight, by number of their table."""
    found: dict[int, int] = {}
    for (state, part, _), count in joined.counts.items():
        if state == PENDING and part is not None:
            found[part] = found.get(part, 0) + count
    if hidden != "false":
        for row in joined.rows(MISSING, OPTIONAL, where=hidden).groupBy("p_part").count().collect():
            found[row["p_part"]] = found.get(row["p_part"], 0) + row["count"]
    return found


def _breaks(night: Night, link: Link, joined: Joined, hidden: str) -> tuple[list[DataFrame], int]:
    """Return the breaks, in parts, and the number of children whose source ended before it was landed."""
    found: list[DataFrame] = []
    check = link.check
    child, at_risk = (_topic_of_child(link), "c_partition", "c_offset", "c_payment_id"), link.amount("c")
    parent = (f"'{link.source}'", "p_partition", "p_offset", "p_payment_id")
    if joined.count(MISSING):
        text = f"{link.service} passed it, and nothing came of it in {' or '.join(link.topics)}"
        rows = joined.rows(MISSING, where=f"not {hidden}")
        found.append(
            breaks(rows, finding(Kind.MISSING, check, text), *parent, amount=link.amount("p"), rechecked="true")
        )
    if joined.count(LATE):
        text = f"{link.service} did not consume it in {night.manifest.settings.late_after_cuts} cuts"
        rows = joined.rows(LATE)
        found.append(
            breaks(rows, finding(Kind.MISSING, check, text), *parent, amount=link.amount("p"), rechecked="true")
        )
    found += orphans(link, joined, _topic_of_child(link))
    if joined.count(UNCOMMITTED):
        rows = joined.rows(UNCOMMITTED)
        found.append(breaks(rows, _uncommitted(link), *child, amount=at_risk))
    if joined.count(MISMATCH):
        rows = joined.rows(MISMATCH).selectExpr("*", "explode(found) as one")
        found.append(breaks(rows, "one", *child, amount=at_risk))
    expired = joined.count(EXPIRED)
    if joined.count(BEFORE):
        rows, unknown = _before(night, link, joined)
        found.append(breaks(rows, "one", *child, amount=at_risk))
        expired += unknown
    return found, expired


def _uncommitted(link: Link) -> str:
    at = named(link.source, "c_at")
    return finding(Kind.UNCOMMITTED, link.check, "made from {at}, where there is no committed record", at=at)


def _topic_of_child(link: Link) -> str:
    cases = " ".join(f"when {rank} then '{topic}'" for rank, topic in enumerate(link.topics))
    return f"(case c_rank {cases} end)"


def _before(night: Night, link: Link, joined: Joined) -> tuple[DataFrame, int]:
    """Return children of records of earlier cuts, as breaks, and the number of those that cannot be judged.

    A parent of an earlier cut that had no child was carried, so this one had its child already.
    """
    rows = joined.rows(BEFORE)
    known = _in_history(night, link, rows.selectExpr("c_at as at"))
    begins = Log(night.manifest, link.source).beginning(partition_of("c_at"))
    looked_up = rows.join(known, on=rows["c_at"] == known["known"], how="left")
    ended = f"known is null and {offset_of('c_at')} < {begins}"
    duplicate = finding(Kind.DUPLICATE, link.check, "{at} had its own in an earlier cut", at=named(link.source, "c_at"))
    uncommitted = _uncommitted(link)
    found = looked_up.where(f"not ({ended})").selectExpr(
        "*", f"if(known is not null, {duplicate}, {uncommitted}) as one"
    )
    expired = looked_up.where(ended).count() if _may_have_ended(night.manifest, link.source) else 0
    return found, expired


def _may_have_ended(manifest: Manifest, topic: str) -> bool:
    return any(offsets.beginning > 0 for offsets in manifest.topics[topic].values())


def _in_history(night: Night, link: Link, wanted: DataFrame) -> DataFrame:
    """Return those of a few places, column `at`, that have a parent in an earlier cut: one column `known`."""
    bounds = bounds_of(wanted)
    held = union(
        [
            night.history(table, bounds).where(side.where).selectExpr(f"{PLACE} as known")
            for table, side in link.parents.items()
            if table == UNDECODABLE or TABLES[table].topic == link.source
        ]
    )
    return held.join(wanted, on=held["known"] == wanted["at"], how="left_semi")


def _carried(
    night: Night,
    prefix: str,
    sides: Mapping[str, Side],
    some: DataFrame,
    side: str,
    parts: set[int],
    judged: str,
) -> dict[str, DataFrame]:
    """Return whole rows of some parents (`side` is `p`) or children (`c`), by the name that they are carried under.

    `parts` are the numbers of their tables; `judged` is a condition on the rows of `some`.
    """
    carried = {}
    for part, table in enumerate(sides):
        if part in parts:
            keys = keys_of(some, side, judged, part=part)
            carried[f"{prefix}_{table}"] = whole_rows(night, table, f"{prefix}_{table}", sides[table].where, keys)
    return carried


def keys_of(some: DataFrame, side: str, judged: str, *, part: int = 0) -> DataFrame:
    """Return keys of rows `p_*` and `c_*` for `whole_rows`: of one side, and of its table with the number `part`."""
    return some.where(f"{side}_part = {part}").selectExpr(
        f"{side}_partition as partition", f"{side}_offset as offset", f"{judged} as {JUDGED}"
    )


def whole_rows(night: Night, table: str, carried: str, where: str, keys: DataFrame) -> DataFrame:
    """Return rows of a table, those carried before included, with the table's schema and JUDGED.

    Args:
        carried: name under which the run before left rows.
        where: which rows of the table are meant.
        keys: columns `partition`, `offset` and JUDGED; a key may come more than once.
    """
    rows = union([one for one, _ in with_carried(night, table, carried)]).where(where).drop(JUDGED)
    wanted = keys.groupBy("partition", "offset").agg(F.bool_or(JUDGED).alias(JUDGED))
    return rows.join(wanted, on=["partition", "offset"], how="inner").select(*TABLES[table].schema.names, JUDGED)


def marks_to_carry(
    night: Night, name: str, marks: Mapping[tuple[int, int], int], logs: Sequence[Log]
) -> dict[str, Few]:
    """Return how far each output partition was seen, while one of them is not stable; else the next run needs none."""
    if not any(log.unstable for log in logs):
        return {}
    last = sorted(last_seen(night, name, marks).items())
    return {name: Few(MARKS, [{"rank": rank, "partition": number, "at": at} for (rank, number), at in last])}


PARENTLESS = "parentless"  # the state of a child without a visible parent


def parentless_state(log: Log, *, settled: bool) -> str:
    """Return the state of a child without a visible parent, by its source's place `c_at` in the source's log."""
    return f"""case when c_at < 0 then '{ORPHAN}'
        when {offset_of("c_at")} >= {log.end(partition_of("c_at"))} then '{ORPHAN if settled else AHEAD}'
        else '{PARENTLESS}' end"""


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
    """Whether the posting of a parentless child, a record of a topic, may be above the cut."""
    unstable = Log(night.manifest, "ledger.postings").unstable
    if not unstable or not joined.count(PARENTLESS):
        return "false"
    last = last_seen(night, f"{link.name}_marks", joined.marks)
    bounds = {number: last.get((_POSTED, number), -1) for number in unstable}
    above = f"coalesce(c_at > {by_partition(partition_of('c_at'), bounds)}, false)"
    # By its own place: its source, an input of the ledger, was in an earlier cut or the same
    return f"({above} and not c_{JUDGED} and not {is_late(night, topic, 'c_partition', 'c_offset')})"


def looked_up(night: Night, link: Link, joined: Joined, hidden: str) -> DataFrame:
    """Join parentless children with the parents of earlier cuts.

    Columns: `c_*`, `p_*` (null where there is no parent), and `known`, null where the source is not a committed record.
    """
    children = joined.rows(PARENTLESS, where=f"not {hidden}")
    parentless = children.select(*(name for name in children.columns if name.startswith("c_"))).persist()
    keys = parentless.selectExpr("c_at as at")
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
    found = paired(parents, parentless.toDF(*(name.removeprefix("c_") for name in parentless.columns)), how="right")
    known = _sources(night, link.source, keys, places)
    return found.join(known, on=found["c_at"] == known["known"], how="left")


def _sources(night: Night, topic: str, keys: DataFrame, bounds: Bounds) -> DataFrame:
    """Return those of some places that have a committed record, in this run or before: column `known`."""
    names = [*(table.name for table in tables_of(topic)), UNDECODABLE]
    frames = [
        frame.where(f"topic = '{topic}'")
        for name in names
        for frame in (night.new(name).where(within(bounds)), night.history(name, bounds))
    ]
    places = union([frame.selectExpr(f"{PLACE} as known") for frame in frames])
    return places.join(keys, on=places["known"] == keys["at"], how="left_semi")


TORN: Final = "p_at is null and known is not null"
"""Whether a row of `looked_up` is torn. Its parent may still come; what else is wrong with it stays."""


def without_parent(link: Link, missing: str) -> str:
    """Return a finding on a child of `looked_up` without a parent, TORN or UNCOMMITTED; `missing` names it."""
    source = named(link.source, "c_at")
    torn = finding(Kind.TORN, link.check, f"of {{source}} it is there, and {missing} is not", source=source)
    return f"if(known is null, {_uncommitted(link)}, {torn})"


def orphans(link: Link, joined: Joined, topic: str) -> list[DataFrame]:
    """Return BREAKS: children that name no possible source; `topic`, theirs, is an expression."""
    if not joined.count(ORPHAN):
        return []
    found = finding(Kind.ORPHAN, link.check, f"it names no source in {link.source} that could be")
    return [
        breaks(joined.rows(ORPHAN), found, topic, "c_partition", "c_offset", "c_payment_id", amount=link.amount("c"))
    ]
