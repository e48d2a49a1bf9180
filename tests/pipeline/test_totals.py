"""Totals by account, day, house account, currency and hour; several runs and one run agree."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from datetime import date
from random import Random

import pytest
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession

from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.postings import Posting
from spark.manifest import Manifest
from spark.totals import HourTotal, Line, Totals, digest, totals
from tests.pipeline.books import BEGIN_MS, Books, bustle, event_of, kept
from tests.tiers import mostly_full

ALICE, BOB = "client-0", "client-1"
DAY_MS = 86_400_000
Days = dict[tuple[str, str, date], tuple[int, int, int, int, int]]


def two_days() -> Books:
    """A deposit, and on the next day a payment with a fee and one in two currencies."""
    books = Books()
    books.pay("p1", "cash@1", ALICE, 5000)
    books.drain()
    books.now_ms = BEGIN_MS + DAY_MS
    books.pay("p2", ALICE, BOB, 1200, fee_minor=30)
    books.drain()
    books.pay("p3", BOB, ALICE, 200, credit_currency="USD", credit_minor=220, rate="1.1")
    books.drain()
    return books


def run(
    spark: SparkSession, books: Books, cut: Manifest, carried: Mapping[str, DataFrame] | None = None
) -> tuple[Totals, dict[str, DataFrame]]:
    found = totals(books.night(spark, cut, carried))
    return found, kept(found.carry)


def days(found: Totals) -> Days:
    """account_days as a mapping: opening, debits, credits, movements, closing."""
    return {
        (row.account, row.currency, row.day): (
            int(row.opening),
            int(row.debits),
            int(row.credits),
            row.movements,
            int(row.closing),
        )
        for row in found.account_days.collect()
    }


def closings(found: Totals) -> dict[tuple[str, str], int]:
    return {(row.account, row.currency): int(row.closing) for row in found.account_balances.collect()}


def folded(books: Books) -> Counter[tuple[str, str]]:
    """All balances, by hand."""
    sums: Counter[tuple[str, str]] = Counter()
    for (topic, _), log in books.logs.items():
        for record in log.values() if topic == LEDGER_POSTINGS else ():
            event = event_of(record)
            for entry in event.entries if isinstance(event, Posting) else ():
                sums[entry.account, entry.currency] += entry.amount_minor
    return sums


def test_every_table_of_two_days(spark: SparkSession) -> None:
    books = two_days()
    found, _ = run(spark, books, books.cut())
    first, second = date(2026, 1, 5), date(2026, 1, 6)
    of_clients = {key: line for key, line in days(found).items() if key[0] in {ALICE, BOB}}
    assert of_clients == {
        (ALICE, "EUR", first): (0, 0, 5000, 1, 5000),
        (ALICE, "EUR", second): (5000, -1230, 0, 1, 3770),
        (ALICE, "USD", second): (0, 0, 220, 1, 220),
        (BOB, "EUR", second): (0, -200, 1200, 2, 1000),
    }
    assert closings(found) == folded(books)
    assert found.houses == (
        Line("EUR", "cash", 1, 1, 0, -5000, 0, -5000),
        Line("EUR", "fees", 1, 1, 0, 0, 30, 30),
        Line("EUR", "fx:EUR", 1, 1, 0, 0, 200, 200),
        Line("EUR", "in-transit", 3, 3, 0, -6200, 6200, 0),
        Line("USD", "fx:USD", 1, 1, 0, -220, 0, -220),
        Line("USD", "in-transit", 2, 2, 0, -220, 220, 0),
    )
    euro, dollar = found.currencies
    assert (euro.currency, euro.clients, euro.clients_closing_minor, euro.turnover_minor) == ("EUR", 2, 4770, 6430)
    assert (euro.opening_minor, euro.debits_minor, euro.credits_minor, euro.closing_minor) == (0, -12630, 12630, 0)
    assert (dollar.currency, dollar.clients, dollar.in_transit_minor, dollar.turnover_minor) == ("USD", 1, 0, 0)
    assert found.figures == {"accounts": 9, "accounts_moved": 9, "client_accounts": 2}


def test_volume_by_hour(spark: SparkSession) -> None:
    books = two_days()
    found, _ = run(spark, books, books.cut())
    assert found.volume == (
        HourTotal("2026-01-05T08:00Z", "EUR", 2, 5000),
        HourTotal("2026-01-06T08:00Z", "EUR", 3, 1430),
        HourTotal("2026-01-06T08:00Z", "USD", 1, 0),
    )
    rows = found.hours.selectExpr("date_format(hour, 'dd HH:mm')", "currency", "postings", "debits").collect()
    assert sorted(map(tuple, rows)) == [
        ("05 08:00", "EUR", 2, 5000),
        ("06 08:00", "EUR", 3, 1430),
        ("06 08:00", "USD", 1, 0),
    ]


def test_the_digest_is_over_sorted_lines_without_zeros(spark: SparkSession) -> None:
    books = two_days()
    books.pay("p4", BOB, ALICE, 1000)
    books.drain()
    found, _ = run(spark, books, books.cut())
    lines = sorted(f"{account} {currency} {minor}" for (account, currency), minor in folded(books).items() if minor)
    assert folded(books)[BOB, "EUR"] == 0
    assert found.balances_digest == hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
    assert found.balances_digest != digest(lines[1:])


def test_an_account_without_movement_keeps_its_balance(spark: SparkSession) -> None:
    books = two_days()
    cut = books.cut()
    first, carried = run(spark, books, cut)
    second, _ = run(spark, books, books.cut(cut), carried)
    assert closings(second) == closings(first)
    assert second.balances_digest == first.balances_digest
    assert (days(second), second.volume) == ({}, ())
    assert second.figures == {"accounts": 9, "accounts_moved": 0, "client_accounts": 2}
    euro = second.currencies[0]
    assert (euro.clients_closing_minor, euro.debits_minor, euro.turnover_minor) == (4770, 0, 0)


def test_a_cut_without_records(spark: SparkSession) -> None:
    books = Books()
    found, _ = run(spark, books, books.cut())
    assert (closings(found), found.currencies, found.houses, found.volume) == ({}, (), (), ())
    assert found.balances_digest == hashlib.sha256().hexdigest()


def test_sums_beyond_64_bits(spark: SparkSession) -> None:
    books, largest = Books(), 2**63 - 1
    for number in range(4):
        books.pay(f"p{number}", "cash@0", ALICE, largest, currency="JPY")
    books.drain()
    found, _ = run(spark, books, books.cut())
    assert closings(found)[ALICE, "JPY"] == 4 * largest
    assert [line.credits_minor for line in found.houses if line.name == "in-transit"] == [4 * largest]
    assert found.currencies[0].turnover_minor == 4 * largest


@pytest.mark.parametrize("seed", mostly_full(range(2), {0}))
def test_nights_add_up_to_one_run(spark: SparkSession, seed: int) -> None:
    books, random = Books(), Random(seed)
    cut: Manifest | None = None
    carried: dict[str, DataFrame] = {}
    added: Days = {}
    postings = 0
    for _ in range(3):
        bustle(books, random, 200)
        cut = books.cut(cut, lambda: bustle(books, random, 5))
        found, carried = run(spark, books, cut, carried)
        for key, line in days(found).items():
            opening, debits, credits_, movements, closing = added.get(key, (line[0], 0, 0, 0, line[0]))
            assert closing == line[0]  # a day of two nights continues in the second
            added[key] = (opening, debits + line[1], credits_ + line[2], movements + line[3], line[4])
        postings += sum(hour.postings for hour in found.volume)
    assert len({day for _, _, day in added}) > 1
    whole, _ = run(spark, books, joined(cut))
    assert days(whole) == added
    assert closings(whole) == closings(found)
    assert whole.balances_digest == found.balances_digest
    assert sum(hour.postings for hour in whole.volume) == postings


def joined(last: Manifest | None) -> Manifest:
    """The last cut, from the beginning of every log."""
    assert last is not None
    topics = {
        topic: {number: structs.replace(range_, start=0) for number, range_ in of.items()}
        for topic, of in last.topics.items()
    }
    return structs.replace(last, topics=topics)
