"""Find payments whose identity was debited twice under different origins: a repeat that ingest accepted.

ingest remembers the last accepted identities of each partition, counted. A later repeat is another payment by the
system's own promise, and not a break. So the distance in accepted records counts; it is computed only for identities
that occur more than once. Of earlier cuts, only the end is read, however long the history is.
"""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 # as everybody writes it

from spark.night import Checked, Kind, Night, breaks, finding, together, union
from spark.places import Log, place

IDENTITY_WINDOW: Final = 100_000
"""Identities that ingest remembers of a partition by default, see the README."""
_LOOK_BACK = 4 * IDENTITY_WINDOW  # offsets before the run: of a debit, a credit, and ends of transactions
_CHECK = "identities"
_ORIGIN = place("origin_partition", "origin_offset")


def check(night: Night) -> Checked:
    debits = _debits(night)
    # By a digest first, on narrow rows: it can only name too many, and these few are then compared exactly
    suspects = (
        debits.groupBy("digest")
        .agg(F.expr("count(*)").alias("rows"), F.expr("bool_or(fresh)").alias("fresh"))
        .where("rows > 1 and fresh")
        .select("digest")
        .persist()
    )
    if not suspects.count():
        return Checked(together(night.spark, []))
    rows = debits.join(suspects, on="digest", how="left_semi")
    order = "over (partition by debtor, payment_id order by origin_partition, origin_offset)"
    pairs = rows.selectExpr(
        "*", f"lag(origin) {order} as origin_before", f"lag(concat(partition, ':', offset)) {order} as before"
    ).where("fresh and origin <> origin_before")
    ranks = _ranks(night)
    later = pairs.join(ranks.toDF("origin", "rank"), on="origin", how="left")
    both = later.join(ranks.toDF("origin_before", "rank_before"), on="origin_before", how="left")
    # One that was not accepted lately was accepted before all that were
    close = both.where(f"rank is null or rank - coalesce(rank_before, 0) <= {IDENTITY_WINDOW}")
    found = finding(
        Kind.DUPLICATE,
        _CHECK,
        "ledger.postings:{before} debited this payment of {debtor} before",
        before="before",
        debtor="debtor",
    )
    broken = breaks(close, found, "'ledger.postings'", "partition", "offset", "payment_id").persist()
    return Checked(together(night.spark, [broken] if broken.count() else []))


def _debits(night: Night) -> DataFrame:
    """Return debit postings of payments, in this run and shortly before it."""
    start = Log(night.manifest, "ledger.postings").start("partition")
    parts = [
        (night.new("postings"), "true"),
        (night.history("postings").where(f"offset >= {start} - {_LOOK_BACK}"), "false"),
    ]
    columns = ("partition", "offset", "payment_id", "debtor", "origin_partition", "origin_offset")
    digest = "xxhash64(debtor, payment_id) as digest"
    return union(
        [
            frame.where("leg = 'debit' and not reversal").selectExpr(
                *columns, f"{_ORIGIN} as origin", digest, f"{fresh} as fresh"
            )
            for frame, fresh in parts
        ]
    )


def _ranks(night: Night) -> DataFrame:
    """Return accepted records by their place in payments.raw, numbered within each partition."""
    start = Log(night.manifest, "payments.accepted").start("partition")
    # A transaction has one record at least and one end, so these hold at least as many records as ingest remembers
    lately = f"offset >= {start} - {2 * IDENTITY_WINDOW}"
    frames = [
        frame for table in ("payments", "reversals") for frame in (night.new(table), night.history(table).where(lately))
    ]
    number = "row_number() over (partition by origin_partition order by origin_offset)"
    places = union([frame.select("origin_partition", "origin_offset") for frame in frames])
    return places.selectExpr(_ORIGIN, number)
