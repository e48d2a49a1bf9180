"""The ledger's totals: by account and day, by house account, by currency, and by time.

By time is by hour and business day of arrival, and by the value date of the payment. A business day is a day in the
time zone of the manifest's settings; it has 23 or 25 hours when the clocks change there. Which day a posting is of
follows from its record's timestamp.

Invariant: opening + debits + credits = closing, in every line. Postings of earlier runs are in the opening balances
only, so nights add up to what one run over all of them gives. Value dates and business days each add up to the totals
of their currency. Amounts are minor units, debits negative.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 # the usual alias

from spark.movements import ACCOUNT, account_balances, accounts, movements, nothing, total
from spark.night import Night
from spark.report import Day, Hour
from spark.schemas import MONEY

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


CLIENTS: Final = ""  # in place of a house account's name: all client accounts
_LINES_BITS: Final = 14  # 16,384 lines in one text: less than a megabyte
_LINE, _ACCOUNTS = "line", "accounts"
_AMOUNTS: Final = ("opening", "debits", "credits", "closing")


class Line(msgspec.Struct, frozen=True):
    """Accounts of one kind in one currency. Minor units, debits negative."""

    currency: str
    name: str  # of the house account, over all partitions; CLIENTS for client accounts
    accounts: int  # how many ever had a posting
    moved: int  # of these, in this run
    opening_minor: int
    debits_minor: int
    credits_minor: int
    closing_minor: int


class CurrencyTotal(msgspec.Struct, frozen=True):
    """One currency over all accounts, house accounts included. Minor units, debits negative.

    Attributes:
        turnover_minor: debits of this run, as a positive amount. Accounts that money only passes through (in transit,
            positions in a currency) are left out, so that a payment counts once.
    """

    currency: str
    clients: int  # client accounts that ever had a posting in it
    opening_minor: int
    debits_minor: int
    credits_minor: int
    closing_minor: int
    clients_closing_minor: int  # of client accounts alone
    in_transit_minor: int  # closing of the in-transit accounts: in flight between partitions
    turnover_minor: int


@dataclass(frozen=True)
class Totals:
    """One run's totals.

    Attributes:
        tables: `account_days`, see the function; `hours`, `value_dates` and `business_days`, see `times`.
        account_balances: account, currency, closing, movements, partition, last_offset; every account. Carried.
        currencies, houses, hours, value_dates, business_days: for the report, in order.
    """

    tables: Mapping[str, DataFrame]
    account_balances: DataFrame
    currencies: tuple[CurrencyTotal, ...]
    houses: tuple[Line, ...]
    hours: tuple[Hour, ...]
    value_dates: tuple[Day, ...]
    business_days: tuple[Day, ...]
    figures: dict[str, int]  # accounts, accounts_moved, client_accounts
    balances_digest: str

    @property
    def carry(self) -> dict[str, DataFrame]:
        return {"account_balances": self.account_balances}


def totals(night: Night) -> Totals:
    """Add up one run, from its postings and the carried `account_balances`.

    Keeps its small tables in memory until the session clears its cache.

    Raises:
        TotalsError: the sums by value date or by business day are not those of their currency.
    """
    moved = movements(night).persist()
    every = accounts(night, moved).persist()
    by_time = times(moved).persist()
    # One pass: each query by itself would cost more than its sums
    found = defaultdict[str, list[Row]](list)
    for row in _of_lines(every).unionByName(_of_accounts(every)).unionByName(_of_times(by_time)).collect():
        found[row["part"]].append(row)
    lines, [counts] = _lines(found[_LINE]), found[_ACCOUNTS]
    value_dates, business_days = days(found[VALUE_DATE]), days(found[BUSINESS_DAY])
    currencies = _currencies(lines)
    raise_if_unequal(_moved(currencies, lines), {"value date": value_dates, "business day": business_days})
    return Totals(
        tables={
            "account_days": account_days(night, moved),
            "hours": by_hour(by_time),
            "value_dates": by_day(by_time, VALUE_DATE),
            "business_days": by_day(by_time, BUSINESS_DAY),
        },
        account_balances=account_balances(every),
        currencies=currencies,
        houses=tuple(line for line in lines if line.name != CLIENTS),
        hours=hours(found[HOUR]),
        value_dates=value_dates,
        business_days=business_days,
        figures={"accounts": counts["a"], "accounts_moved": counts["b"], "client_accounts": counts["c"]},
        balances_digest=balances_digest(every),
    )


def account_days(night: Night, moved: DataFrame) -> DataFrame:
    """Return each account's days: the day before's closing balance, the movements, and the new closing balance.

    `moved` is of `spark.movements.movements`.

    Columns: account, currency, day, opening, debits, credits, movements, closing. A day that two runs share has a line
    in each, and the later one opens with the earlier one's closing balance.
    """
    days = moved.groupBy(*ACCOUNT, "day").agg(
        total("debits").alias("debits"), total("credits").alias("credits"), F.sum("movements").alias("movements")
    )
    carried = night.carried("account_balances")
    days = days.withColumn("carried", nothing())
    if carried is not None:
        before = carried.select(
            *ACCOUNT,
            F.lit(None).cast("date").alias("day"),
            nothing().alias("debits"),
            nothing().alias("credits"),
            F.lit(0).cast("long").alias("movements"),
            F.col("closing").alias("carried"),
        )
        days = days.unionByName(before)
    # The carried balance has no day, and nulls come first
    until_then = Window.partitionBy(*ACCOUNT).orderBy("day").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    change = F.col("carried") + F.col("debits") + F.col("credits")
    running = days.withColumn("closing", F.sum(change).over(until_then).cast(MONEY)).where(F.col("day").isNotNull())
    opening = F.col("closing") - F.col("debits") - F.col("credits")
    return running.select(
        *ACCOUNT, "day", opening.cast(MONEY).alias("opening"), "debits", "credits", "movements", "closing"
    )


def balances_digest(every: DataFrame) -> str:
    """Return SHA-256, hex, over all balances but 0: one line `account currency minor` each, sorted by its bytes.

    Equal balances give the same digest on any machine. Spark sorts the lines and joins them to texts; the driver hashes
    one text after the other, and never holds more than a partition of them.
    """
    line = F.concat_ws(" ", "account", "currency", F.col("closing").cast("string")).alias("line")
    in_order = every.where(F.col("closing") != 0).select(line).orderBy("line")
    # Numbers by partition, then by row: in the order of the lines
    numbered = in_order.select("line", F.shiftright(F.monotonically_increasing_id(), _LINES_BITS).alias("text"))
    texts = numbered.groupBy("text").agg(F.array_join(F.sort_array(F.collect_list("line")), "\n").alias("lines"))
    return digest(row["lines"] for row in texts.orderBy("text").toLocalIterator(prefetchPartitions=True))


def digest(lines: Iterable[str]) -> str:
    """Return SHA-256, hex, over sorted lines, each ended by a newline."""
    found = hashlib.sha256()
    for line in lines:
        found.update(line.encode() + b"\n")
    return found.hexdigest()


def _of_lines(every: DataFrame) -> DataFrame:
    at = F.instr("account", "@")
    name = F.when(at > 0, F.substring_index("account", "@", 1)).otherwise(CLIENTS)
    sums = every.groupBy("currency", name.alias("name")).agg(
        F.count(F.lit(1)).alias("a"),
        F.count_if(F.col("moved") > 0).alias("b"),
        *(total(column).alias(column) for column in _AMOUNTS),
    )
    return _summed(sums, F.lit(_LINE), "currency", "name", "a", "b", *_AMOUNTS)


def _of_accounts(every: DataFrame) -> DataFrame:
    by_account = every.groupBy("account").agg(F.max("moved").alias("moved"))
    counts = by_account.agg(
        F.count(F.lit(1)).alias("a"),
        F.count_if(F.col("moved") > 0).alias("b"),
        F.count_if(F.instr("account", "@") == 0).alias("c"),
    )
    return _summed(counts, F.lit(_ACCOUNTS), "a", "b", "c")


def _of_times(by_time: DataFrame) -> DataFrame:
    rows = by_time.select("by", time_text().alias("name"), "currency", "postings", *SUMS)
    return _summed(rows, F.col("by"), "name", "currency", "postings", *SUMS)


def _summed(rows: DataFrame, part: Column, *columns: str) -> DataFrame:
    """Return rows of one part of the summary, null in the columns that it does not have."""
    kinds = {**dict.fromkeys(("currency", "name"), "string"), **dict.fromkeys((*"abc", "postings"), "bigint")}
    kinds |= dict.fromkeys((*_AMOUNTS, *SUMS), MONEY.simpleString())
    every: list[Column] = [
        (F.col(name) if name in columns else F.lit(None)).cast(kind).alias(name) for name, kind in kinds.items()
    ]
    return rows.select(part.alias("part"), *every)


def _lines(rows: Iterable[Row]) -> tuple[Line, ...]:
    found = (
        Line(str(row["currency"]), row["name"], row["a"], row["b"], *(int(row[column]) for column in _AMOUNTS))
        for row in rows
    )
    return tuple(sorted(found, key=lambda line: (line.currency, line.name)))


def _currencies(lines: Iterable[Line]) -> tuple[CurrencyTotal, ...]:
    """Sum lines, which are in the order of their currencies."""
    return tuple(_currency(currency, list(of)) for currency, of in groupby(lines, key=lambda line: line.currency))


def _currency(currency: str, lines: list[Line]) -> CurrencyTotal:
    clients = [line for line in lines if line.name == CLIENTS]
    paying = [line for line in lines if line.name != IN_TRANSIT and not line.name.startswith(POSITION)]
    return CurrencyTotal(
        currency,
        clients=sum(line.accounts for line in clients),
        opening_minor=sum(line.opening_minor for line in lines),
        debits_minor=sum(line.debits_minor for line in lines),
        credits_minor=sum(line.credits_minor for line in lines),
        closing_minor=sum(line.closing_minor for line in lines),
        clients_closing_minor=sum(line.closing_minor for line in clients),
        in_transit_minor=sum(line.closing_minor for line in lines if line.name == IN_TRANSIT),
        turnover_minor=-sum(line.debits_minor for line in paying),
    )


def _moved(currencies: Iterable[CurrencyTotal], lines: Iterable[Line]) -> dict[str, Sums]:
    """Return what this run moved, by currency."""
    fees = Counter[str]()
    for line in lines:
        fees[line.currency] += line.debits_minor + line.credits_minor if line.name == FEES else 0
    return {
        one.currency: Sums(one.debits_minor, one.credits_minor, fees[one.currency], one.turnover_minor)
        for one in currencies
    }
