"""Check repeats that ingest accepted, which gives an identity two outcomes, and repeats that it refused wrongly.

ingest remembers the last accepted identities of each partition, counted. A later repeat is another payment by the
system's own promise, and not a break. So the distance in accepted records counts; it is computed only for identities
that occur more than once. Of earlier cuts, only records of payments that ingest may remember are read, by their origin
in payments.raw: a partition of ledger.postings may have any number of other records meanwhile.

A payment that is wrongly taken for a repeat is money lost, and no count shows it. The first payment that a repeat names
must be accepted before it, with the same content. A repair may find a later one accepted: the client sent the payment
again after its first record had lost its outcome.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import PAYMENTS_DEDUPLICATED, PAYMENTS_RAW
from spark.history import ACCEPTED, bounds_of, identities_begin, made_from, since
from spark.lake import Bounds, within
from spark.links import Joined, Link
from spark.night import (
    JUDGED,
    Amount,
    Checked,
    Kind,
    Night,
    all_breaks,
    breaks,
    by_partition,
    finding,
    is_late,
    union,
    with_carried,
)
from spark.places import Log, partition_of, place
from spark.schemas import ENTRY
from spark.settling import last_seen, whole_rows

_IDENTITIES = "identities"
_ORIGIN = place("origin_partition", "origin_offset")


def check_identities(night: Night) -> Checked:
    """Find outcomes of an identity that had another one before, as far back as ingest remembers.

    An outcome is a debit, a decline or an account event.
    """
    remembered = _remembered(night)
    outcomes = _outcomes(night, remembered)
    # By a digest first, on narrow rows: it can only name too many, and these few are then compared exactly
    suspects = (
        outcomes.groupBy("digest")
        .agg(F.count("*").alias("rows"), F.bool_or("fresh").alias("fresh"))
        .where((F.col("rows") > 1) & F.col("fresh"))
        .select("digest")
        .persist()
    )
    if not suspects.count():
        return Checked()
    rows = outcomes.join(suspects, on="digest", how="left_semi")
    order = "over (partition by debtor, payment_id order by origin_partition, origin_offset)"
    pairs = rows.selectExpr(
        "*", f"lag(origin) {order} as origin_before", f"lag(concat(partition, ':', offset)) {order} as before"
    ).where("fresh and origin <> origin_before")
    ranks = _ranks(night, remembered)
    later = pairs.join(ranks.toDF("origin", "rank"), on="origin", how="left")
    both = later.join(ranks.toDF("origin_before", "rank_before"), on="origin_before", how="left")
    # One that was not accepted lately was accepted before all that were
    close = both.where(f"rank is null or rank - coalesce(rank_before, 0) <= {night.manifest.settings.identity_window}")
    found = finding(
        Kind.DUPLICATE,
        _IDENTITIES,
        "ledger.postings:{before} is of the same payment_id of {debtor}",
        before="before",
        debtor="debtor",
    )
    at = ("'ledger.postings'", "partition", "offset", "payment_id")
    broken = breaks(close, found, *at, amount=Amount("paid.currency", "paid.amount_minor")).persist()
    return Checked(broken if broken.count() else None)


def _remembered(night: Night) -> Bounds:
    """Return offsets of payments.raw that hold every identity of earlier cuts that ingest may remember."""
    begins = identities_begin(night, "origin_offset")
    return {number: (begins.get(number, 0), of.end) for number, of in night.manifest.topics[PAYMENTS_RAW].items()}


def _made_at_home(night: Night, table: str, remembered: Bounds) -> DataFrame:
    """Return rows of earlier cuts that were made from offsets of payments.raw, on the partition of their origin.

    A partition with few identities for all its life does not widen what is read of the others.
    """
    bounds = {number: since(night, table, PAYMENTS_RAW, {number: of})[number] for number, of in remembered.items()}
    rows = night.history(table, bounds)
    return rows.where(within(remembered, "origin_partition", "origin_offset"))


_OF_PAYMENTS = f"origin_topic = '{PAYMENTS_RAW}'"
_NOTHING_PAID = f"cast(null as {ENTRY.simpleString()})"
_OUTCOMES = {
    "postings": ("leg = 'debit'", "payment_id", "debtor", "get(entries, 0)"),
    "declines": (_OF_PAYMENTS, "payment_id", "debtor", _NOTHING_PAID),
    "accounts_opened": (_OF_PAYMENTS, "command_id", "account", _NOTHING_PAID),
}
"""By table: which rows are outcomes of accepted records, their identity, and the entry that was paid."""


def _outcomes(night: Night, remembered: Bounds) -> DataFrame:
    """Return outcomes of accepted records: of this run, and earlier ones that were made from some offsets."""
    found = []
    for table, (where, payment_id, debtor, paid) in _OUTCOMES.items():
        columns = {
            **{name: name for name in ("partition", "offset", "origin_partition", "origin_offset")},
            "payment_id": payment_id,
            "debtor": debtor,
            "paid": paid,
            "origin": _ORIGIN,
            "digest": f"xxhash64({debtor}, {payment_id})",
        }
        texts = [f"{text} as {name}" for name, text in columns.items()]
        frames = (night.new(table), "true"), (_made_at_home(night, table, remembered), "false")
        found += [frame.where(where).selectExpr(*texts, f"{fresh} as fresh") for frame, fresh in frames]
    return union(found)


def _ranks(night: Night, remembered: Bounds) -> DataFrame:
    """Return accepted records by their place in payments.raw, numbered within each partition."""
    frames = [frame for table in ACCEPTED for frame in (night.new(table), _made_at_home(night, table, remembered))]
    number = "row_number() over (partition by origin_partition order by origin_offset)"
    places = union([frame.select("origin_partition", "origin_offset") for frame in frames])
    return places.selectExpr(_ORIGIN, number)


_REPEATS = "repeats:firsts"
_CARRIED = "ingest_repeats"
_CONTENT = (
    "type debtor payment_id creditor amount_minor currency credit_currency value_date reference reverses "
    "overdraft_minor expected_version owner"
)
_OF_OPENING = {
    **dict.fromkeys(("overdraft_minor", "expected_version"), "cast(null as bigint)"),
    "owner": "cast(null as string)",
}
_CONTENT_BY_TABLE = {
    "payments_raw": {"credit_currency": "coalesce(credit_currency, currency)"},
    "payments": {
        "type": "'payment'",
        "credit_currency": "coalesce(credit_currency, currency)",
        "reverses": "cast(null as string)",
        **_OF_OPENING,
    },
    "reversals": {
        "type": "'reversal'",
        **dict.fromkeys(("creditor", "currency", "credit_currency"), "cast(null as string)"),
        "amount_minor": "cast(null as bigint)",
        **_OF_OPENING,
    },
    "openings": {
        "type": "'account_opening'",
        **dict.fromkeys(("creditor", "currency", "credit_currency", "value_date", "reverses"), "cast(null as string)"),
        "reference": "''",  # as of every raw record
        "amount_minor": "cast(null as bigint)",
    },
}


_IMPOSSIBLE = "impossible"  # its first one cannot be before it
_OPEN = "open"  # it, or its first one, is not among the records of this run
_MISMATCH = "mismatch"
_NOT_THERE = f"state = '{_OPEN}' and first_content is null"  # its first one may still come
_STATE = f"""case
    when first_at is null or {partition_of("first_at")} <> {partition_of("source_at")}
        or first_at = source_at or first_at > source_at and repair is null then '{_IMPOSSIBLE}'
    when first_content is null or raw_content is null then '{_OPEN}'
    when first_content.debtor = debtor and first_content.payment_id = payment_id and first_content <=> raw_content
        then null
    else '{_MISMATCH}' end"""


def check_repeats(night: Night, link: Link, joined: Joined) -> Checked:
    """Compare each repeat, of this run or carried, with the first payment that it names."""
    if not joined.metrics["deduplicated"] and night.carried(_CARRIED) is None:
        return Checked()
    log = Log(night.manifest, link.source)
    repeats = union([_repeats(frame, log) for frame, _ in with_carried(night, "repeats", _CARRIED)])
    compared = _with_content(repeats, _raw(night.new("payments_raw")), _accepted(night, None))
    unmatched = compared.selectExpr("*", f"{_STATE} as state").where("state is not null").persist()
    counts = {row["state"]: row["count"] for row in unmatched.groupBy("state").count().collect()}
    found = [_breaks(unmatched.where(F.col("state") != _OPEN))] if set(counts) - {_OPEN} else []
    if not counts.get(_OPEN):
        return Checked(all_breaks(found))
    hidden = _hidden(night, link, joined)
    waiting = unmatched.where(f"state = '{_OPEN}' and first_content is null and {hidden}")
    judged = _from_history(
        night, unmatched.where(f"state = '{_OPEN}' and not (first_content is null and {hidden})")
    ).persist()
    found.append(_breaks(judged))
    count = 0 if hidden == "false" else waiting.count()
    keys = [
        part.selectExpr("partition", "offset", f"{flag} as {JUDGED}")
        for part, flag, some in ((waiting, "false", count), (judged.where(_NOT_THERE), "true", not judged.isEmpty()))
        if some
    ]
    carry = {_CARRIED: whole_rows(night, "repeats", _CARRIED, "true", union(keys))} if keys else {}
    return Checked(all_breaks(found), in_flight={"repeats": count}, carry=carry)


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
        "repair",
        f"{log.source()} as source_at",
        f"if({can_be}, {place('first_partition', 'first_offset')}, null) as first_at",
        JUDGED,
    ).where("source_at is not null")


def _content(table: str) -> str:
    """Return the content of a payment as a struct that is alike for all tables."""
    names = _CONTENT.split()
    fields = ", ".join(f"'{name}', {_CONTENT_BY_TABLE[table].get(name, name)}" for name in names)
    return f"named_struct({fields})"


def _raw(frame: DataFrame) -> DataFrame:
    content = _content("payments_raw")
    return frame.selectExpr(f"{place('partition', 'offset')} as raw_at", f"{content} as raw_content")


def _accepted(night: Night, origins: Bounds | None) -> DataFrame:
    """Return accepted records by place in payments.raw: of this run, or of earlier cuts where bounds are given."""
    frames = {
        table: night.new(table) if origins is None else made_from(night, table, PAYMENTS_RAW, origins, link="origin")
        for table in ACCEPTED
    }
    at = place("origin_partition", "origin_offset")
    return union(
        [
            frame.selectExpr(f"{at} as accepted_at", f"{_content(table)} as first_content")
            for table, frame in frames.items()
        ]
    )


def _with_content(repeats: DataFrame, raw: DataFrame, accepted: DataFrame) -> DataFrame:
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
    if not unstable:
        return "false"
    last = last_seen(night, f"{link.name}_marks", joined.marks)
    bounds = {number: last.get((rank, number), -1) for number in unstable}
    above = f"coalesce(first_at > {by_partition(partition_of('first_at'), bounds)}, false)"
    return f"({above} and not {JUDGED} and not {is_late(night, PAYMENTS_DEDUPLICATED, 'partition', 'offset')})"


def _from_history(night: Night, unknown: DataFrame) -> DataFrame:
    """Judge again with the records of earlier cuts; a first one that is in none was not accepted."""
    own = unknown.where("raw_content is null").selectExpr("source_at as at")
    firsts = unknown.where("first_content is null").selectExpr("first_at as at")
    raw = _raw(night.history("payments_raw", bounds_of(own)))
    accepted = _accepted(night, bounds_of(firsts))
    repeats = unknown.drop("raw_at", "accepted_at", "state").withColumnsRenamed(
        {"raw_content": "raw_known", "first_content": "first_known"}
    )
    return (
        _with_content(repeats, raw, accepted)
        .selectExpr(
            *(name for name in repeats.columns if not name.endswith("_known")),
            "coalesce(raw_known, raw_content) as raw_content",
            "coalesce(first_known, first_content) as first_content",
        )
        .selectExpr("*", f"{_STATE} as state")
        .where("state is not null")
    )


def _breaks(rows: DataFrame) -> DataFrame:
    orphan = finding(Kind.ORPHAN, _REPEATS, "its first one, {first}, was not accepted before it", first="first")
    other = finding(
        Kind.AMOUNT,
        _REPEATS,
        "its first one, {first}, says {other}, it says {own}",
        first="first",
        other="to_json(first_content)",
        own="to_json(raw_content)",
    )
    # Where its own raw record is gone, the link reports it
    judged = rows.where(f"not (state = '{_OPEN}' and first_content is not null)").selectExpr(
        "*", f"if(state = '{_MISMATCH}', {other}, {orphan}) as one"
    )
    amount = Amount("raw_content.currency", "raw_content.amount_minor")
    at = (f"'{PAYMENTS_DEDUPLICATED}'", "partition", "offset", "payment_id")
    return breaks(judged, "one", *at, amount=amount, rechecked=_NOT_THERE)
