"""The history of fees, rates and subscriptions, which of them may have decided a record, and findings on decisions.

A record names the version that decided it, as `partition:offset`. A record of a former version names none: any version
in force within STALE_MS may have decided it. Services follow the reference topics with a delay, and clocks differ.

Invariant: a decision by a version that may have been compacted away is open, never a break.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import REFERENCE_FEES, REFERENCE_RATES, REFERENCE_SUBSCRIPTIONS
from spark.history import whole
from spark.night import NO_AMOUNT, Amount, Kind, Night, breaks, finding, union

STALE_MS: Final = 60_000
"""How long a superseded version may still be used, and how long before its own timestamp a version may be."""

CARRIED: Final = "reference_versions"
KEYS: Final = {
    REFERENCE_FEES: ("reference_fees", "currency"),
    REFERENCE_RATES: ("reference_rates", "pair"),
    REFERENCE_SUBSCRIPTIONS: ("reference_subscriptions", "account"),
}
"""Table, and column of the key, by topic."""
_VALUES: Final = {
    "fixed_minor": "bigint",
    "basis_points": "bigint",
    "min_minor": "bigint",
    "max_minor": "bigint",
    "rate": "string",
    "subscriptions": "array<struct<kind:string,destination:string,ordered:boolean>>",
}
_OF_TABLE: Final = {
    "reference_fees": ("fixed_minor", "basis_points", "min_minor", "max_minor"),
    "reference_rates": ("rate",),
    "reference_subscriptions": ("subscriptions",),
}


def versions(night: Night) -> DataFrame | None:
    """Return every version that a record of this run may be decided by; None where the cut has no reference topics.

    The run before left these. Where none left any, earlier cuts have none, unless a former version made their runs:
    then all are read once, as one that is still in force may be of any age.

    Columns: topic, key, partition, offset, place (`partition:offset`), at_ms, until_ms (null while in force), deleted,
    and the values of all three topics.
    """
    if not KEYS.keys() <= night.manifest.topics.keys():
        return None
    before = night.carried(CARRIED)
    parts = [_rows(night.new(table), topic) for topic, (table, _) in KEYS.items()]
    if before is None:
        parts += [_rows(night.history(table, whole(night, topic)), topic) for topic, (table, _) in KEYS.items()]
    else:
        parts.append(before.drop("until_ms"))
    until = "lead(at_ms) over (partition by topic, key order by partition, offset) as until_ms"
    return union(parts).selectExpr("*", until)


def to_carry(night: Night, known: DataFrame) -> DataFrame:
    """Return the versions that records of later runs may name."""
    return known.where(f"until_ms is null or until_ms >= {compacted_before_ms(night) - STALE_MS}")


def compacted_before_ms(night: Night) -> int:
    """Return the time before which a superseded version may no longer be known."""
    return night.manifest.taken_at_ms - night.manifest.settings.superseded_kept_ms


def _rows(frame: DataFrame, topic: str) -> DataFrame:
    table, key = KEYS[topic]
    values = {name: name if name in _OF_TABLE[table] else f"cast(null as {kind})" for name, kind in _VALUES.items()}
    return frame.selectExpr(
        f"'{topic}' as topic",
        f"{key} as key",
        "partition",
        "offset",
        "concat(partition, ':', offset) as place",
        "unix_millis(timestamp) as at_ms",
        "deleted",
        *(f"{text} as {name}" for name, text in values.items()),
    )


def with_choices(
    rows: DataFrame, known: DataFrame, topic: str, prefix: str, compacted_ms: int, *, broadcast: bool
) -> DataFrame:
    """Add which versions may have decided each row.

    Args:
        rows: with the columns `used_ms`, `said` (whether the record names versions), `<prefix>_key` and
            `<prefix>_named`, the place that it names or null.
        known: of `versions`.
        compacted_ms: of `compacted_before_ms`.
        broadcast: whether the topic's versions are few.

    Returns:
        The rows with `<prefix>_choices`, an array of versions in which null means that none was in force;
        `<prefix>_complete`, whether no other version may have decided it; `<prefix>_fault`, for people, or null.
    """
    own = known.where(f"topic = '{topic}'").selectExpr("key", "struct(*) as version")
    by_place = own.selectExpr("version.place as joined_place", f"version as {prefix}_version")
    # In the order of topic, key, partition and offset
    sorted_versions = F.array_sort(F.collect_list("version")).alias(f"{prefix}_versions")
    by_key = own.groupBy(F.col("key").alias("joined_key")).agg(sorted_versions)
    if broadcast:
        by_place, by_key = F.broadcast(by_place), F.broadcast(by_key)
    # All versions of a key are long: a row that names one goes without them, where that makes no partition larger
    wanted = f"if(said and {prefix}_named is not null, null, {prefix}_key)" if broadcast else f"{prefix}_key"
    joined = (
        rows.join(by_place, on=F.col(f"{prefix}_named") == F.col("joined_place"), how="left")
        .drop("joined_place")
        .join(by_key, on=F.expr(f"{wanted} = joined_key"), how="left")
        .drop("joined_key")
    )
    names = {name: f"{prefix}_{name}" for name in ("version", "versions", "key", "named")}
    possible = _POSSIBLE.format(**names)
    compacted = f"(used_ms - {STALE_MS} < {compacted_ms})"
    texts = {**names, "possible": f"{prefix}_possible", "compacted": compacted, "topic": topic}
    # Of many versions, only a row that names none looks at all
    return (
        joined.selectExpr("*", f"if(said and {prefix}_named is not null, null, {possible}) as {prefix}_possible")
        .selectExpr(
            "*",
            f"{_FAULT.format(**texts)} as {prefix}_fault",
            f"{_CHOICES.format(**texts)} as {prefix}_choices",
            f"{_COMPLETE.format(**texts)} as {prefix}_complete",
        )
        .drop(f"{prefix}_possible", f"{prefix}_version", f"{prefix}_versions")
    )


_POSSIBLE: Final = f"""transform(
    concat(
        if(get({{versions}}, 0).at_ms < used_ms - {STALE_MS}, slice({{versions}}, 1, 0), array(null)),
        filter(coalesce({{versions}}, array()), one -> one.at_ms <= used_ms + {STALE_MS}
            and (one.until_ms is null or one.until_ms >= used_ms - {STALE_MS}))),
    one -> if(one.deleted, null, one))"""
_FAULT: Final = f"""case
    when not said then null
    when {{named}} is null then if({{versions}} is null or exists({{possible}}, one -> one is null), null,
        concat('it names no record of {{topic}}, and one of ', {{key}}, ' was in force'))
    when {{version}} is null or {{version}}.key <> {{key}} then if({{compacted}}, null,
        concat('it names {{topic}}:', {{named}}, ', which is not a record of ', {{key}}))
    when {{version}}.deleted then concat('it names {{topic}}:', {{named}}, ', which deletes its key')
    when used_ms - {STALE_MS} > {{version}}.until_ms then concat('it names {{topic}}:', {{named}},
        ', which was superseded ', (used_ms - {{version}}.until_ms) div 1000, ' s before')
    when {{version}}.at_ms > used_ms + {STALE_MS} then
        concat('it names {{topic}}:', {{named}}, ', which was written later')
    end"""
_CHOICES: Final = """case
    when not said then {possible}
    when {named} is null then array(if(false, {version}, null))
    else filter(array({version}), one -> one is not null and one.key = {key}) end"""
_COMPLETE: Final = f"""case
    when not said then coalesce(get({{versions}}, 0).at_ms < used_ms - {STALE_MS}, false) or not {{compacted}}
    else {{named}} is null or ({{version}} is not null and {{version}}.key = {{key}}) or not {{compacted}} end"""


OPEN: Final = "open"
"""In place of a break's kind: the decision cannot be judged."""
HIDDEN: Final = "hidden"
"""Likewise: what it leads to may be above the cut."""


def only(rows: DataFrame, condition: str, **columns: str) -> DataFrame:
    """Return the rows for which a condition holds, with more columns.

    A filter would be pushed down through the projections below it, with all that its columns are computed from in
    place of each of them: long expressions, computed many times for each row. A generator is not.
    """
    made = ", ".join(f"'{name}', {text}" for name, text in columns.items())
    return rows.selectExpr("*", f"inline(if({condition}, array(named_struct({made})), array()))")


def decided(
    rows: DataFrame,
    check: str,
    text: str,
    *,
    at: tuple[str, str, str, str],
    open_: str = "false",
    hidden: str = "false",
    amount: Amount = NO_AMOUNT,
    rechecked: str = "false",
) -> DataFrame:
    """Return BREAKS of rows whose decision is wrong; `text` and `open_` are expressions.

    Args:
        at: topic, partition, offset and payment_id: expressions.
        open_: whether it cannot be judged. Its kind is OPEN then.
        hidden: whether it cannot be judged yet. Its kind is HIDDEN then.
    """
    wrong = finding(Kind.DECISION, check, "{said}", said=text)
    unknown, pending = (f"named_struct('kind', '{kind}', 'check', '{check}', 'detail', '')" for kind in (OPEN, HIDDEN))
    one = f"case when {hidden} then {pending} when {open_} then {unknown} else {wrong} end"
    found = rows.selectExpr("*", f"{one} as finding")
    return breaks(found, "finding", *at, amount=amount, rechecked=rechecked)
