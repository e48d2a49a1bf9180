"""A statement of one account, as the command runs it and as readers may paste it."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 # the usual name

from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.transfers import TransferReversal
from spark.movements import STATEMENT_OF_DAYS_SQL, STATEMENT_SQL
from tests.partitions import partition_for
from tests.pipeline.books import BEGIN_MS, DATE, Books

ALICE, BOB = "client-0", "client-1"


@pytest.fixture(scope="module")
def books() -> Books:
    """Payments to and from an account, one of them reversed, one converted."""
    made = Books()
    made.pay("p1", "cash@1", ALICE, 5000, reference="deposit")
    made.drain()
    made.pay("p2", ALICE, BOB, 1200, fee_minor=30, reference="rent")
    made.drain()
    made.pay("p3", BOB, ALICE, 200, credit_currency="USD", credit_minor=220, rate="1.1")
    made.drain()
    made.order(TransferReversal("r1", ALICE, "p2", DATE, "mistake"), partition_for(ALICE))
    made.drain()
    made.now_ms += 86_400_000
    made.pay("p4", ALICE, BOB, 10)
    made.drain()
    return made


@pytest.fixture(scope="module")
def spark_with_postings(spark: SparkSession, books: Books) -> Iterator[SparkSession]:
    """A session with the view that statements query."""
    books.night(spark, books.cut()).new("postings").createOrReplaceTempView("postings")
    yield spark
    spark.catalog.dropTempView("postings")


def lines(found: DataFrame) -> list[tuple[object, ...]]:
    return [
        (row.payment_id, row.counterparty, row.text, int(row.amount_minor), int(row.balance_minor), row.currency)
        for row in found.orderBy("currency", "partition", "offset", "position").collect()
    ]


def statement(spark: SparkSession, account: str) -> DataFrame:
    return spark.sql(STATEMENT_SQL, args={"account": account})


def test_every_line_of_an_account(spark_with_postings: SparkSession) -> None:
    assert lines(statement(spark_with_postings, ALICE)) == [
        ("p1", "cash@1", "", 5000, 5000, "EUR"),
        ("p2", BOB, "rent, fee 30", -1230, 3770, "EUR"),
        ("r1", BOB, "mistake, reversal of p2", 1230, 5000, "EUR"),
        ("p4", BOB, "", -10, 4990, "EUR"),
        ("p3", BOB, "", 220, 220, "USD"),
    ]
    assert lines(statement(spark_with_postings, "unknown")) == []


def test_the_fields_of_a_line(spark_with_postings: SparkSession, books: Books) -> None:
    found = statement(spark_with_postings, BOB).withColumn("booked_at", F.unix_timestamp("booked_at"))
    first = found.orderBy("partition", "offset").collect()[0]
    home = partition_for(BOB)
    offset = next(at for at, record in sorted(books.logs[LEDGER_POSTINGS, home].items()) if record.key == BOB.encode())
    assert (first.topic, first.partition, first.offset) == (LEDGER_POSTINGS, home, offset)
    assert (first.booked_at, first.value_date) == (BEGIN_MS // 1000, DATE)


def test_a_house_account_and_both_parties(spark_with_postings: SparkSession) -> None:
    assert lines(statement(spark_with_postings, f"fees@{partition_for(ALICE)}")) == [
        ("p2", f"{ALICE} to {BOB}", "rent, fee 30", 30, 30, "EUR"),
        ("r1", f"{ALICE} to {BOB}", "mistake, reversal of p2", -30, 0, "EUR"),
    ]


def test_balances_of_some_days_include_earlier_days(spark_with_postings: SparkSession, books: Books) -> None:
    begin = datetime.fromtimestamp(BEGIN_MS / 1000, UTC).date()
    last = datetime.fromtimestamp(books.now_ms / 1000, UTC).date()
    assert (last - begin).days == 1

    def of_days(first: date | None, last: date | None) -> list[tuple[str, int]]:
        arguments = {"account": ALICE, "first": first, "last": last}
        found = spark_with_postings.sql(STATEMENT_OF_DAYS_SQL, args=arguments).collect()
        return [(row.payment_id, int(row.balance_minor)) for row in found]

    every = [("p1", 5000), ("p2", 3770), ("r1", 5000), ("p4", 4990), ("p3", 220)]
    assert of_days(None, None) == of_days(begin, last) == every
    assert of_days(last, None) == [("p4", 4990)]
    assert of_days(None, begin) == [one for one in every if one[0] != "p4"]
    assert of_days(last + timedelta(days=1), None) == []
