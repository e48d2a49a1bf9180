"""The movements of the postings: one pass over their entries, the small tables that all sums are made from, statements.

Invariant: entries are read once and summed by account, currency, hour, value date and business day. Sums are
DECIMAL(38,0), so amounts near 2^63 add up exactly and an overflow raises. `day` is the UTC day of the record's
timestamp, and a business day is the day of it in the time zone of the manifest's settings.
"""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 # the usual alias

from spark.night import Night
from spark.schemas import MONEY

ACCOUNT: Final = ("account", "currency")


def entries(postings: DataFrame) -> DataFrame:
    """Return one row for each entry of each posting.

    Columns: partition, offset, source_offset, timestamp, day, hour (0 to 23 UTC), value_date, position (of the entry in
    its posting, from 0), account, currency, amount (minor units).
    """
    hour = F.hour("timestamp").alias("hour")
    entry = F.posexplode("entries").alias("position", "entry")
    of_posting = ("partition", "offset", "source_offset", "timestamp", "day", "value_date")
    exploded = postings.select(*of_posting, hour, entry)
    amount = F.col("entry.amount_minor").cast(MONEY).alias("amount")
    return exploded.select(
        *of_posting,
        "hour",
        "position",
        F.col("entry.account").alias("account"),
        F.col("entry.currency").alias("currency"),
        amount,
    )


def movements(night: Night) -> DataFrame:
    """Return what this run's postings move, by account, currency, hour, value date and business day.

    The plan is the same for the same night, so where one caller keeps it (`persist`), Spark serves the next from there.

    Columns: account, currency, day, hour, value_date (text, as in the payment), business_day, debits (the negative
    entries' sum), credits, movements (entries), postings (those of which this is the first entry, so that each counts
    once), partition, last_offset (of the last posting).
    """
    amount = F.col("amount")
    # The session's time zone is UTC, so this is the local day, however many hours it has
    local = F.to_date(F.from_utc_timestamp("timestamp", night.manifest.settings.time_zone))
    return (
        entries(night.new("postings"))
        .groupBy(*ACCOUNT, "day", "hour", "value_date", local.alias("business_day"))
        .agg(
            total(F.when(amount < 0, amount)).alias("debits"),
            total(F.when(amount >= 0, amount)).alias("credits"),
            F.count(F.lit(1)).alias("movements"),
            F.count_if(F.col("position") == 0).alias("postings"),
            F.max("partition").alias("partition"),
            F.max("offset").alias("last_offset"),
        )
    )


def accounts(night: Night, moved: DataFrame) -> DataFrame:
    """Return all accounts with a posting in this run or before it, from `movements`.

    Columns: account, currency, opening, debits, credits, closing = opening + debits + credits, moved (entries in this
    run), movements (entries ever), partition, last_offset (of the last posting ever).
    """
    rows = moved.select(
        *ACCOUNT,
        nothing().alias("opening"),
        "debits",
        "credits",
        F.col("movements").alias("moved"),
        "movements",
        "partition",
        "last_offset",
    )
    carried = night.carried("account_balances")
    if carried is not None:
        before = carried.select(
            *ACCOUNT,
            F.col("closing").alias("opening"),
            nothing().alias("debits"),
            nothing().alias("credits"),
            F.lit(0).cast("long").alias("moved"),
            "movements",
            "partition",
            "last_offset",
        )
        rows = rows.unionByName(before)
    closing = total("opening") + total("debits") + total("credits")
    return rows.groupBy(*ACCOUNT).agg(
        total("opening").alias("opening"),
        total("debits").alias("debits"),
        total("credits").alias("credits"),
        closing.cast(MONEY).alias("closing"),
        F.sum("moved").alias("moved"),
        F.sum("movements").alias("movements"),
        F.max("partition").alias("partition"),
        F.max("last_offset").alias("last_offset"),
    )


def account_balances(every: DataFrame) -> DataFrame:
    """Return what the next run starts from: account, currency, closing, movements, partition, last_offset."""
    return every.select(*ACCOUNT, "closing", "movements", "partition", "last_offset")


def nothing() -> Column:
    """Return 0 in DECIMAL(38,0). A function, as a column needs a session."""
    return F.lit(0).cast(MONEY)


def total(amounts: Column | str) -> Column:
    """Return a sum in DECIMAL(38,0), 0 over nothing; an overflow raises."""
    return F.coalesce(F.sum(amounts), nothing()).cast(MONEY)


STATEMENT_SQL: Final = """\
SELECT timestamp AS booked_at,
       value_date,
       payment_id,
       CASE WHEN leg = 'debit' AND debtor = :account THEN creditor
            WHEN leg = 'credit' AND creditor = :account THEN debtor
            ELSE concat(debtor, ' to ', creditor) END AS counterparty,
       concat_ws(', ',
                 nullif(reference, ''),
                 CASE WHEN reversal THEN concat_ws(' ', 'reversal of', coalesce(reverses, 'a payment')) END,
                 CASE WHEN fee_minor <> 0 THEN concat('fee ', fee_minor) END,
                 concat('rate ', rate)) AS text,
       CAST(entry.amount_minor AS DECIMAL(38, 0)) AS amount_minor,
       CAST(sum(CAST(entry.amount_minor AS DECIMAL(38, 0))) OVER (
              PARTITION BY entry.currency ORDER BY partition, offset, position
              ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS DECIMAL(38, 0)) AS balance_minor,
       entry.currency AS currency,
       topic,
       partition,
       offset,
       position
FROM postings LATERAL VIEW posexplode(entries) AS position, entry
WHERE entry.account = :account
"""
"""Lines of an account, over a table or view `postings` with everything from the first posting on. It is run by
`spark.sql(STATEMENT_SQL, args={"account": "..."})`; elsewhere, write the account in quotes in place of `:account`.

Every entry of the account is a line of its own with the balance after it, in minor units, and names its posting. An
account lives on one partition, so the order of its offsets is the order of its bookings."""

STATEMENT_OF_DAYS_SQL: Final = f"""\
SELECT * EXCEPT (position)
FROM ({STATEMENT_SQL})
WHERE to_date(booked_at) BETWEEN coalesce(:first, DATE'0001-01-01') AND coalesce(:last, DATE'9999-12-31')
ORDER BY currency, partition, offset, position
"""  # noqa: S608 # made of constants
"""The lines of some days in UTC, in their order; balances include earlier lines. `first` and `last` may be null."""
