"""The movements of a run by time: by hour and business day of arrival, and by the value date of the payment.

A business day is a day in the time zone of the manifest's settings; it has 23 or 25 hours when the clocks change there.
Which day a posting is of follows from its record's timestamp.

Invariant: value dates and business days each add up to the totals of their currency.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 # the usual alias

from spark.movements import nothing, total
from spark.report import Day, Hour

IN_TRANSIT: Final = "in-transit"
FEES: Final = "fees"
POSITION: Final = "fx:"  # how the names of positions in a currency begin
HOUR, VALUE_DATE, BUSINESS_DAY = "hour", "value_date", "business_day"
SUMS: Final = ("debits", "credits", "fees", "turnover")
_KEYS: Final = (HOUR, VALUE_DATE, BUSINESS_DAY)


class TotalsError(ArithmeticError):
    """Sums of the same movements differ."""


class Sums(NamedTuple):
    """Sums of one currency, in the order of SUMS."""

    debits_minor: int
    credits_minor: int
    fees_minor: int
    turnover_minor: int


def times(moved: DataFrame) -> DataFrame:
    """Return the sums of each hour, each value date and each business day, in one pass over `movements`.

    Columns: by (HOUR, VALUE_DATE or BUSINESS_DAY), the column of that name (the others are null), currency, postings,
    and SUMS. Debits are negative; turnover is positive, and leaves out accounts that money only passes through.
    """
    begin = F.timestamp_add("HOUR", F.col("hour"), F.col("day").cast("timestamp"))
    passing = F.col("account").rlike(f"^({IN_TRANSIT}|{POSITION}.*)@")
    of_fees = F.col("account").startswith(f"{FEES}@")
    columns = {
        HOUR: begin,
        "turnover": F.when(passing, nothing()).otherwise(-F.col("debits")),
        "fees": F.when(of_fees, F.col("debits") + F.col("credits")).otherwise(nothing()),
    }
    sums = moved.withColumns(columns).groupingSets([["currency", key] for key in _KEYS], "currency", *_KEYS)
    by = F.coalesce(*(F.when(F.grouping(key) == 0, key) for key in _KEYS)).alias("by")
    return sums.agg(by, F.sum("postings").alias("postings"), *(total(name).alias(name) for name in SUMS))


def by_hour(by_time: DataFrame) -> DataFrame:
    """Return each hour's volume from `times`: hour (timestamp of its beginning), currency, postings, debits (positive).

    Debits are of the same accounts as a turnover.
    """
    rows = by_time.where(F.col("by") == HOUR)
    return rows.select(HOUR, "currency", "postings", F.col("turnover").alias("debits"))


def by_day(by_time: DataFrame, key: str) -> DataFrame:
    """Return the sums of each VALUE_DATE or BUSINESS_DAY from `times`: that column, currency, postings, SUMS."""
    return by_time.where(F.col("by") == key).select(key, "currency", "postings", *SUMS)


def time_text() -> Column:
    """Return the hour or day of a row of `times`, as the report has it."""
    # As text: a timestamp would reach Python in the driver's own time zone
    begin = F.date_format(HOUR, "yyyy-MM-dd'T'HH:mm'Z'")
    return F.coalesce(begin, VALUE_DATE, F.col(BUSINESS_DAY).cast("string"))


def hours(rows: Iterable[Row]) -> tuple[Hour, ...]:
    """Return hours in their order, from rows with name, currency, postings and turnover."""
    found = (Hour(row["name"], str(row["currency"]), row["postings"], row["turnover"]) for row in rows)
    return tuple(sorted(found, key=lambda hour: (hour.hour, hour.currency)))


def days(rows: Iterable[Row]) -> tuple[Day, ...]:
    """Return days in their order, from rows with name, currency, postings and SUMS."""
    found = (Day(row["name"], str(row["currency"]), row["postings"], *(row[column] for column in SUMS)) for row in rows)
    return tuple(sorted(found, key=lambda day: (day.day, day.currency)))


def raise_if_unequal(expected: Mapping[str, Sums], found: Mapping[str, Iterable[Day]]) -> None:
    """Compare the sums of all days with those of the currencies, by currency.

    Args:
        found: days by what they are, for the message.

    Raises:
        TotalsError: they differ, so this run's totals cannot be trusted.
    """
    none = Sums(0, 0, 0, 0)
    for by, of_days in found.items():
        added: defaultdict[str, Sums] = defaultdict(lambda: none)
        for day in of_days:
            amounts = (day.debits_minor, day.credits_minor, day.fees_minor, day.turnover_minor)
            added[day.currency] = Sums(*(int(a + b) for a, b in zip(added[day.currency], amounts, strict=True)))
        for currency in sorted(expected.keys() | added.keys()):
            if added[currency] != expected.get(currency, none):
                raise TotalsError(
                    f"the totals of {currency} by {by} are {added[currency]}, and those of the currency are "
                    f"{expected.get(currency, none)}: no report was made. If a second run fails alike, report a bug"
                )
