"""Compare what a service consumed with what it wrote: one full outer join for each link.

A parent is a record that a service consumes, a child a record that it makes from the parent. A `Link` says which rows
of which tables these are, and in which fields both must agree. Its expressions are Spark SQL; the prefixes `p_` and
`c_` mark a parent's and a child's columns.

Invariant:
- Amounts are compared as numbers and texts as texts, and a difference is reported with both values.
- Every row of either side is judged. A parent has exactly one child, on its own partition number and of its origin,
  with the same content. Everything else is a break, in flight, or expired.
- Rows are narrow before they are shuffled, and only those that do not match are kept. Counts come from the same job.
- Nothing depends on which cut a record is in: what is in flight is carried, with the marks that say how far each output
  partition was seen. Runs over single cuts find what a run over all of them finds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from spark.manifest import Manifest
from spark.night import (
    JUDGED,
    NO_AMOUNT,
    NO_FINDING,
    Amount,
    Kind,
    Night,
    all_findings,
    finding,
    is_late,
    uncommitted,
    union,
    with_carried,
)
from spark.places import PLACE, Log, named, offset_of, partition_of, place
from spark.schemas import TABLES, UNDECODABLE


@dataclass(frozen=True)
class Side:
    """The rows of one table that take part, and their columns.

    Attributes:
        columns: expressions by column: `kind` at least, and each field of the link that the table has. `payment_id` is
            the table's own unless it is given, `origin` the place that the header names in payments.raw, `fault` a
            finding on the row by itself, or null.
    """

    columns: Mapping[str, str]
    where: str = "true"  # which rows of the table
    prepare: Callable[[DataFrame], DataFrame] | None = None  # adds columns that the expressions use


@dataclass(frozen=True)
class Agreement:
    """The fields in which a kind of child must equal its parent."""

    parents: tuple[str, ...]  # kinds of parents that it may have
    fields: tuple[str, ...]
    rule: str = "true"  # a further condition on `p_<field>` and `c_<field>`, never null
    text: str = "''"  # an expression: the message where the rule does not hold
    has_client: bool = False  # whether the child names who submitted it (`spark.ownership`)
    client_may_be_absent: bool = False  # whether it may also name none; no former version landed that of dead letters


@dataclass(frozen=True)
class Link:
    """One service's input and outputs.

    Attributes:
        fields: SQL types of what is compared, by name, in addition to the payment_id.
        parents, children: by table. Children in the order of their topics, which decides what a duplicate is.
    """

    name: str  # what is carried is named after it
    check: str  # as breaks name it
    service: str  # whose committed offsets count
    source: str  # the topic of the parents
    fields: Mapping[str, str]
    parents: Mapping[str, Side]
    children: Mapping[str, Side]
    agreements: Mapping[str, Agreement]  # by kind of child
    optional: tuple[str, ...] = ()  # kinds of parents that may have no child
    money: tuple[str, str] | None = None  # the fields with currency and amount, where a break puts money at risk

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics of the children, in their order."""
        return tuple(dict.fromkeys(TABLES[table].topic for table in self.children if table != UNDECODABLE))

    def amount(self, side: str) -> Amount:
        """Return the amount at risk by a break of the parent (`p`) or child (`c`)."""
        return Amount(*(f"{side}_{name}" for name in self.money)) if self.money else NO_AMOUNT


def unchanged(names: str) -> dict[str, str]:
    """Return columns of a `Side` that are as in the table."""
    return {name: name for name in names.split()}


def unreadable(where: str) -> Side:
    """Return the side of records that are no events of their topics."""
    return Side({"kind": f"'{UNDECODABLE}'", "payment_id": "cast(null as string)"}, where)


def agreeing(link: Link) -> str:
    """Whether a child is of a kind that its parent may have, and has the same fields; or one could not be read."""
    cases = []
    for kind, agreement in link.agreements.items():
        kinds = ", ".join(f"'{parent}'" for parent in agreement.parents)
        fields = [f"p_{name} <=> c_{name}" for name in agreement.fields]
        cases.append(f"when '{kind}' then {' and '.join([f'p_kind in ({kinds})', *fields, f'({agreement.rule})'])}")
    return f"((case c_kind {' '.join(cases)} else false end) or {_UNREAD})"


def differing(link: Link) -> str:
    """In which fields a child differs from its parent, for people; empty where in none."""
    cases = []
    for kind, agreement in link.agreements.items():
        texts = [
            f"if(p_{name} <=> c_{name}, null, concat('{name} ', {shown(f'c_{name}')}, ', not ', {shown(f'p_{name}')}))"
            for name in agreement.fields
        ]
        texts.append(f"if({agreement.rule}, null, {agreement.text})")
        cases.append(f"when '{kind}' then concat_ws('; ', {', '.join(texts)})")
    return f"(case c_kind {' '.join(cases)} else '' end)"


def shown(name: str) -> str:
    return f"coalesce(cast({name} as string), 'absent')"


_UNREAD: Final = f"(p_kind = '{UNDECODABLE}' or c_kind = '{UNDECODABLE}')"
"""Whether either side could not be read. That is a break of its own, and there is nothing to compare."""


def fitting(link: Link) -> str:
    """Whether a child is of a kind that its parent may have, or one of them could not be read."""
    cases = " or ".join(
        f"c_kind = '{kind}' and p_kind in ({', '.join(repr(parent) for parent in agreement.parents)})"
        for kind, agreement in link.agreements.items()
    )
    return f"({cases} or {_UNREAD})"


_RAW = "payments.raw"
_ORIGIN = f"if(origin_topic = '{_RAW}', {place('origin_partition', 'origin_offset')}, cast(null as bigint))"
ORIGINS: Final = {"own": named(_RAW, "c_origin"), "other": named(_RAW, "p_origin")}
"""For a finding on a child and a parent of different origins."""


@dataclass(frozen=True)
class Joined:
    """Parents and children in pairs, without those that match."""

    unmatched: DataFrame  # columns `p_*`, `c_*`, `state` and `found`; computed once
    counts: Mapping[tuple[str, int | None, int | None], int]  # of its rows, by state and the numbers of both tables
    metrics: Mapping[str, int]  # counted over all rows
    marks: Mapping[tuple[int, int], int]  # the last source seen, as a place, by number of the topic and partition

    def count(self, state: str) -> int:
        """Return the number of rows in a state."""
        return sum(count for (name, _, _), count in self.counts.items() if name == state)

    def rows(self, *states: str, where: str = "true") -> DataFrame:
        """Return the rows in some states for which a condition holds."""
        return self.unmatched.where(F.col("state").isin(*states)).where(where)


PENDING = "pending"  # a parent that was not consumed yet
LATE = "late"  # one that was not consumed for too many cuts
MISSING = "missing"  # one that was, without a visible child
OPTIONAL = "optional"  # the same, and it may have none
ORPHAN = "orphan"  # a child that names no source that could be
AHEAD = "ahead"  # one whose source is beyond the cut
BEFORE = "before"  # one whose source is in an earlier cut, if anywhere
UNCOMMITTED = "uncommitted"  # one whose source is not a committed record
EXPIRED = "expired"  # one whose source ended before it was landed
MISMATCH = "mismatch"  # parent and child that differ, or a child that is early


def join(night: Night, link: Link, metrics: Mapping[str, str]) -> Joined:
    """Compare each parent with its children.

    `metrics` are aggregates over all rows `p_*` and `c_*`, by name, each of type BIGINT.
    """
    source = Log(night.manifest, link.source)
    parents = rows(night, link, link.parents, "parents", PLACE)
    children = rows(night, link, link.children, "children", source.source_or_own())
    pairs = paired(parents, numbered(children), how="full")
    return judged(
        night,
        pairs,
        metrics,
        _marks(link, night.manifest),
        matches=_matches(link, night.manifest),
        state=_state(link, night),
        found=_findings(link),
    )


def paired(parents: DataFrame, children: DataFrame, how: str) -> DataFrame:
    """Join two sides on `at`, as `p_*` and `c_*`."""
    return _prefixed(parents, "p_").join(_prefixed(children, "c_"), on=F.col("p_at") == F.col("c_at"), how=how)


def judged(
    night: Night,
    pairs: DataFrame,
    metrics: Mapping[str, str],
    marks: Mapping[tuple[int, int], str],
    *,
    matches: str,
    state: str,
    found: str,
) -> Joined:
    """Keep the rows that do not match, and count while passing all.

    Args:
        pairs: rows `p_*` and `c_*`.
        metrics, marks: aggregates over all of them, by name or key.
        matches: whether a row needs no further look.
        state: of a row that does; null for one that is dropped nevertheless.
        found: its findings.
    """
    texts = {**metrics, **{_mark(key): text for key, text in marks.items()}}
    seen = Observation()
    counted = (F.expr(text).cast("bigint").alias(name) for name, text in texts.items())
    passed = pairs.observe(seen, *counted) if texts else pairs
    unmatched = passed.where(f"not coalesce({matches}, false)").select("*", F.expr(state).alias("state"))
    # Kept without its plan: behind a cache, counts may be lost with rows that are not there
    left = Observation()
    there = unmatched.where("state is not null").select("*", F.expr(found).alias("found"))
    kept = night.keep(there.observe(left, F.count(F.lit(1)).alias("rows")))
    counts = {
        (row["state"], row["p_part"], row["c_part"]): row["count"]
        for row in (kept.groupBy("state", "p_part", "c_part").count().collect() if left.get["rows"] else ())
    }
    values = seen.get if texts else {}
    return Joined(kept, counts, {name: values[name] or 0 for name in metrics}, _marks_of(marks, values))


def marked(frame: DataFrame, marks: Mapping[tuple[int, int], str]) -> Mapping[tuple[int, int], int]:
    """Return the marks of some rows, those that exist: for a join that does not pass all of them."""
    texts = (F.expr(text).alias(_mark(key)) for key, text in marks.items())
    [values] = frame.agg(*texts).collect()
    return _marks_of(marks, values.asDict())


def _mark(key: tuple[int, int]) -> str:
    return f"mark_{key[0]}_{key[1]}"


def _marks_of(keys: Iterable[tuple[int, int]], values: Mapping[str, int | None]) -> dict[tuple[int, int], int]:
    return {key: at for key in keys if (at := values[_mark(key)]) is not None}


def rows(
    night: Night,
    link: Link,
    sides: Mapping[str, Side],
    role: str,
    at: str,
    *,
    history: Callable[[str], DataFrame] | None = None,
) -> DataFrame:
    """Return one side of a link, as narrow rows.

    Args:
        role: of the side; the carried rows are named after it.
        at: the place that the rows are joined on.
        history: returns rows of earlier cuts by table, to be read instead of this run's rows and carried ones.
    """
    parts = []
    for number, (table, side) in enumerate(sides.items()):
        if history is None:
            frames = with_carried(night, table, f"{link.name}_{role}_{table}")
        else:
            frames = [(history(table).withColumn(JUDGED, F.lit(False)), False)]
        for frame, fresh in frames:
            columns = {
                "at": at,
                "part": str(number),
                "rank": _rank(link, table),
                "partition": "partition",
                "offset": "offset",
                "fresh": str(fresh).lower(),
                JUDGED: JUDGED,
                "payment_id": "payment_id",
                "origin": _ORIGIN,
                "fault": NO_FINDING,
                **{name: f"cast(null as {kind})" for name, kind in link.fields.items()},
                **side.columns,
            }
            chosen = frame.where(side.where)
            prepared = chosen if side.prepare is None else side.prepare(chosen)
            parts.append(prepared.selectExpr(*(f"{text} as {name}" for name, text in columns.items())))
    return union(parts)


def _rank(link: Link, table: str) -> str:
    """Return the order of a child's topic; an undecodable child's own topic decides. Parents have none."""
    if table != UNDECODABLE:
        topic = TABLES[table].topic
        return str(link.topics.index(topic)) if topic in link.topics else "0"
    cases = " ".join(f"when '{topic}' then {number}" for number, topic in enumerate(link.topics))
    return f"coalesce(case topic {cases} end, 0)"


def numbered(children: DataFrame) -> DataFrame:
    """Return children with `nth`: 1 for the first of their source in the order of topics, partitions and offsets."""
    order = "row_number() over (partition by at order by rank, partition, offset)"
    return children.select("*", F.expr(order).alias("nth"))


def _prefixed(frame: DataFrame, prefix: str) -> DataFrame:
    return frame.toDF(*(f"{prefix}{name}" for name in frame.columns))


def _matches(link: Link, manifest: Manifest) -> str:
    return f"""c_nth = 1 and c_partition = p_partition and p_origin <=> c_origin and c_fault is null
        and {agreeing(link)} and not {is_early(link, manifest)}"""


def is_early(link: Link, manifest: Manifest) -> str:
    """Whether a parent that has a child is not below the committed offset (`spark.night.check_early`)."""
    return uncommitted(manifest, link.service, "p_partition", "p_offset")


def _state(link: Link, night: Night) -> str:
    manifest = night.manifest
    optional = ", ".join(f"'{kind}'" for kind in link.optional) or "''"
    return f"""case
        when c_at is null and {is_early(link, manifest)}
            then if({is_late(night, link.source, "p_partition", "p_offset")}, '{LATE}', '{PENDING}')
        when c_at is null and p_kind = '{UNDECODABLE}' then null
        when c_at is null and p_kind in ({optional}) then '{OPTIONAL}'
        when c_at is null then '{MISSING}'
        when p_at is null then {sourceless("c_at", Log(manifest, link.source), settled=manifest.settled)}
        else '{MISMATCH}' end"""


def sourceless(at: str, log: Log, *, settled: bool) -> str:
    """Return the state of a record whose source is not visible.

    Args:
        at: the source's place; negative where it cannot exist.
        log: of the source's topic.
        settled: whether nothing was in flight at the cut.
    """
    partition, offset = partition_of(at), offset_of(at)
    return f"""case
        when {at} < 0 then '{ORPHAN}'
        when {offset} >= {log.end(partition)} then '{ORPHAN if settled else AHEAD}'
        when {offset} < {log.start(partition)} then '{BEFORE}'
        when {offset} < {log.beginning(partition)} then '{EXPIRED}'
        else '{UNCOMMITTED}' end"""


def _findings(link: Link) -> str:
    """Return what is wrong with parent and child; nothing where the child is early; null for other states."""
    check, source = link.check, named(link.source, "p_at")
    fits = fitting(link)
    wrong = {
        "c_fault is not null": "c_fault",
        "c_nth > 1": finding(Kind.DUPLICATE, check, "{source} has another one before it", source=source),
        "c_partition <> p_partition": finding(
            Kind.ORPHAN, check, "made from {source}, on another partition", source=source
        ),
        f"not {fits}": finding(
            Kind.ORPHAN,
            check,
            "a {child}, made from {source}: a {parent}",
            child="c_kind",
            source=source,
            parent="p_kind",
        ),
        "not (p_origin <=> c_origin)": finding(
            Kind.ORPHAN, check, "its origin is {own}, that of {source} is {other}", source=source, **ORIGINS
        ),
        f"{fits} and not {agreeing(link)}": finding(Kind.AMOUNT, check, "{differing}", differing=differing(link)),
    }
    return f"if(p_at is not null and c_at is not null, {all_findings(wrong)}, null)"


def _marks(link: Link, manifest: Manifest) -> dict[tuple[int, int], str]:
    """Return how far each output partition was seen: aggregates over the rows of `join`."""
    return {
        (rank, number): f"max(if(c_at >= 0 and c_rank = {rank} and c_partition = {number}"
        f" and {partition_of('c_at')} = {number}, c_at, null))"
        for rank, topic in enumerate(link.topics)
        for number in Log(manifest, topic).partitions
    }
