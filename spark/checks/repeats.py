"""Check each repeat: the first payment that it names was accepted before it, and has the same content.

A payment that is wrongly taken for a repeat is money lost, and no count shows it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark.agreements import Link
from spark.links import Joined
from spark.night import Checked, Kind, Night, breaks, finding, together, union, with_carried
from spark.places import Log, by_partition, partition_of, place
from spark.settling import last_seen, near, whole_rows

_CHECK = "repeats:firsts"
_CARRIED = "ingest_repeats"
_ACCEPTED = ("payments", "reversals")
_SAID = "type debtor payment_id creditor amount_minor currency credit_currency value_date reference reverses"
_SAID_BY = {
    "payments_raw": {"credit_currency": "coalesce(credit_currency, currency)"},
    "payments": {
        "type": "'payment'",
        "credit_currency": "coalesce(credit_currency, currency)",
        "reverses": "cast(null as string)",
    },
    "reversals": {
        "type": "'reversal'",
        **dict.fromkeys(("creditor", "currency", "credit_currency"), "cast(null as string)"),
        "amount_minor": "cast(null as bigint)",
    },
}


_IMPOSSIBLE = "impossible"  # its first one cannot be before it
_OPEN = "open"  # it, or its first one, is not among the records of this run
_WRONG = "wrong"
_STATE = f"""case
    when first_at is null or {partition_of("first_at")} <> {partition_of("source_at")} or first_at >= source_at
        then '{_IMPOSSIBLE}'
    when first_said is null or raw_said is null then '{_OPEN}'
    when first_said.debtor = debtor and first_said.payment_id = payment_id and first_said <=> raw_said then null
    else '{_WRONG}' end"""


def check(night: Night, link: Link, joined: Joined) -> Checked:
    """Compare each repeat, of this run or carried, with the first payment that it names."""
    if not joined.metrics["deduplicated"] and night.carried(_CARRIED) is None:
        return Checked(together(night.spark, []))
    log = Log(night.manifest, link.source)
    repeats = union([_repeats(frame, log) for frame, _ in with_carried(night, "repeats", _CARRIED)])
    beside = _beside(repeats, _raw(night.new("payments_raw")), _accepted(night, None))
    rest = beside.selectExpr("*", f"{_STATE} as state").where("state is not null").persist()
    counts = {row["state"]: row["count"] for row in rest.groupBy("state").count().collect()}
    found = [_breaks(rest.where(f"state <> '{_OPEN}'"))] if set(counts) - {_OPEN} else []
    if not counts.get(_OPEN):
        return Checked(together(night.spark, found))
    hidden = _hidden(night, link, joined)
    waiting = rest.where(f"state = '{_OPEN}' and first_said is null and {hidden}")
    late = rest.where(f"state = '{_OPEN}' and not (first_said is null and {hidden})")
    found.append(_breaks(_from_history(night, late)))
    count = 0 if hidden == "false" else waiting.count()
    carry = {_CARRIED: whole_rows(night, "repeats", _CARRIED, "true", waiting.select("partition", "offset"))}
    return Checked(together(night.spark, found), in_flight={"repeats": count}, carry=carry if count else {})


def _repeats(frame: DataFrame, log: Log) -> DataFrame:
    """Return narrow rows of repeats; one with an impossible source is judged by its link alone."""
    high = log.high("first_partition")
    can_be = f"startswith(first, '{log.topic}:') and first_offset between 0 and {high} - 1"
    return frame.selectExpr(
        "partition",
        "offset",
        "payment_id",
        "debtor",
        "first",
        f"{log.source()} as source_at",
        f"if({can_be}, {place('first_partition', 'first_offset')}, null) as first_at",
    ).where("source_at is not null")


def _said(table: str) -> str:
    """Return the content of a payment as a struct that is alike for all tables."""
    names = _SAID.split()
    fields = ", ".join(f"'{name}', {_SAID_BY[table].get(name, name)}" for name in names)
    return f"named_struct({fields})"


def _raw(frame: DataFrame) -> DataFrame:
    said = _said("payments_raw")
    return frame.selectExpr(f"{place('partition', 'offset')} as raw_at", f"{said} as raw_said")


def _accepted(night: Night, where: str | None) -> DataFrame:
    """Return accepted records by place in payments.raw: of this run, or of earlier cuts where a condition is given."""
    frames = {table: night.new(table) if where is None else night.history(table).where(where) for table in _ACCEPTED}
    at = place("origin_partition", "origin_offset")
    return union(
        [frame.selectExpr(f"{at} as accepted_at", f"{_said(table)} as first_said") for table, frame in frames.items()]
    )


def _beside(repeats: DataFrame, raw: DataFrame, accepted: DataFrame) -> DataFrame:
    """Join repeats with the content of their own raw record and of the first one, where these are found."""
    # Repeats are few: the large sides are brought down to what is wanted before anything is joined to it
    own = raw.join(repeats.selectExpr("source_at as wanted"), on=raw["raw_at"] == F.col("wanted"), how="left_semi")
    firsts = accepted.join(
        repeats.selectExpr("first_at as wanted"), on=accepted["accepted_at"] == F.col("wanted"), how="left_semi"
    )
    return repeats.join(own, on=repeats["source_at"] == own["raw_at"], how="left").join(
        firsts, on=repeats["first_at"] == firsts["accepted_at"], how="left"
    )


def _hidden(night: Night, link: Link, joined: Joined) -> str:
    """Whether the first one's accepted record may be above the cut."""
    rank = 0  # of payments.accepted
    unstable = Log(night.manifest, link.topics[rank]).unstable
    last = last_seen(night, f"{link.name}_marks", joined.marks, needed=bool(unstable))
    bounds = {number: last.get((rank, number), -1) for number in unstable}
    return f"coalesce(first_at > {by_partition(partition_of('first_at'), bounds)}, false)" if bounds else "false"


def _from_history(night: Night, late: DataFrame) -> DataFrame:
    """Judge again with the records of earlier cuts; a first one that is in none was not accepted."""
    own = late.where("raw_said is null").selectExpr("source_at as at")
    firsts = late.where("first_said is null").selectExpr("first_at as at")
    raw = _raw(night.history("payments_raw").where(near(own, "partition", "offset")))
    accepted = _accepted(night, near(firsts, "origin_partition", "origin_offset"))
    repeats = late.drop("raw_at", "accepted_at", "state").withColumnsRenamed(
        {"raw_said": "raw_known", "first_said": "first_known"}
    )
    return (
        _beside(repeats, raw, accepted)
        .selectExpr(
            *(name for name in repeats.columns if not name.endswith("_known")),
            "coalesce(raw_known, raw_said) as raw_said",
            "coalesce(first_known, first_said) as first_said",
        )
        .selectExpr("*", f"{_STATE} as state")
        .where("state is not null")
    )


def _breaks(rows: DataFrame) -> DataFrame:
    orphan = finding(Kind.ORPHAN, _CHECK, "its first one, {first}, was not accepted before it", first="first")
    other = finding(
        Kind.AMOUNT,
        _CHECK,
        "its first one, {first}, says {other}, it says {own}",
        first="first",
        other="to_json(first_said)",
        own="to_json(raw_said)",
    )
    # Where its own raw record is gone, the link reports it
    judged = rows.where(f"not (state = '{_OPEN}' and first_said is not null)").selectExpr(
        "*", f"if(state = '{_WRONG}', {other}, {orphan}) as one"
    )
    return breaks(judged, "one", "'payments.deduplicated'", "partition", "offset", "payment_id")
