"""Totals by account, day, house account, currency and hour; several runs and one run agree."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import date, datetime
from decimal import Decimal
from random import Random

import pytest
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession

from deploy.reconciliation import settings_of, validate_time_zone
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.postings import Posting
from shared.settings import ReconcileSettings, SettingsError
from spark import totals as totals_module
from spark.manifest import VERSION, Manifest, Settings
from spark.report import Day, Hour
from spark.totals import Line, Sums, Totals, TotalsError, digest, raise_if_unequal, totals
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
    books.pay("p3", BOB, ALICE, 200, credit_currency="USD", credit_minor=220, rate="1.1", value_date="2026-02-01")
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
        for row in found.tables["account_days"].collect()
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
    assert found.hours == (
        Hour("2026-01-05T08:00Z", "EUR", 2, Decimal(5000)),
        Hour("2026-01-06T08:00Z", "EUR", 3, Decimal(1430)),
        Hour("2026-01-06T08:00Z", "USD", 1, Decimal(0)),
    )
    rows = found.tables["hours"].selectExpr("date_format(hour, 'dd HH:mm')", "currency", "postings", "debits").collect()
    assert sorted(map(tuple, rows)) == [
        ("05 08:00", "EUR", 2, 5000),
        ("06 08:00", "EUR", 3, 1430),
        ("06 08:00", "USD", 1, 0),
    ]


def test_sums_by_value_date_and_by_business_day(spark: SparkSession) -> None:
    books = two_days()
    found, _ = run(spark, books, books.cut())
    assert found.value_dates == tuple(
        Day(day, currency, postings, *map(Decimal, sums))
        for day, currency, postings, sums in [
            ("2026-01-05", "EUR", 4, (-12430, 12430, 30, 6230)),
            ("2026-02-01", "EUR", 1, (-200, 200, 0, 200)),
            ("2026-02-01", "USD", 1, (-440, 440, 0, 0)),
        ]
    )
    assert found.business_days == tuple(
        Day(day, currency, postings, *map(Decimal, sums))
        for day, currency, postings, sums in [
            ("2026-01-05", "EUR", 2, (-10000, 10000, 0, 5000)),
            ("2026-01-06", "EUR", 3, (-2630, 2630, 30, 1430)),
            ("2026-01-06", "USD", 1, (-440, 440, 0, 0)),
        ]
    )
    for name, column in (("value_dates", "value_date"), ("business_days", "business_day")):
        table = found.tables[name]
        assert table.columns == [column, "currency", "postings", "debits", "credits", "fees", "turnover"]
        rows = [(str(row[0]), *row[1:]) for row in table.collect()]
        assert sorted(rows) == [structs.astuple(day) for day in getattr(found, name)]


@pytest.mark.parametrize(("zone", "known"), [("Europe/Prague", True), ("UTC", True), ("EST", True), ("Factory", False)])
def test_a_time_zone_that_java_does_not_know_is_refused(spark: SparkSession, zone: str, known: bool) -> None:
    cut = Manifest(VERSION, 1, 1, "cluster", {}, {}, settled=True, settings=Settings(time_zone=zone))
    assert settings_of(ReconcileSettings(time_zone=zone)).time_zone == zone
    with nullcontext() if known else pytest.raises(SettingsError, match="set ONCE_RECONCILE_TIME_ZONE to another"):
        validate_time_zone(spark, cut)


@pytest.mark.parametrize(
    ("zone", "instants"),
    [
        (  # 23 hours on 29 March, 25 hours on 25 October
            "Europe/Prague",
            {
                "2026-03-28T22:59:59.999Z": "2026-03-28",
                "2026-03-28T23:00:00.000Z": "2026-03-29",
                "2026-03-29T21:59:59.999Z": "2026-03-29",
                "2026-03-29T22:00:00.000Z": "2026-03-30",
                "2026-10-24T21:59:59.999Z": "2026-10-24",
                "2026-10-24T22:00:00.000Z": "2026-10-25",
                "2026-10-25T00:30:00.000Z": "2026-10-25",  # 02:30 twice
                "2026-10-25T01:30:00.000Z": "2026-10-25",
                "2026-10-25T22:59:59.999Z": "2026-10-25",
                "2026-10-25T23:00:00.000Z": "2026-10-26",
            },
        ),
        (  # midnight within an hour of UTC
            "Asia/Kolkata",
            {"2026-03-28T18:29:59.999Z": "2026-03-28", "2026-03-28T18:30:00.000Z": "2026-03-29"},
        ),
    ],
)
def test_a_business_day_is_local_whatever_its_length(
    spark: SparkSession, zone: str, instants: Mapping[str, str]
) -> None:
    books = Books()
    wanted = Counter[str]()
    for number, (instant, day) in enumerate(instants.items()):
        books.now_ms = round(datetime.fromisoformat(instant).timestamp() * 1000)
        books.pay(f"p{number}", "cash@1", ALICE, 1 << number)
        books.drain()
        wanted[day] += 1 << number
    cut = books.cut()
    found, _ = run(spark, books, structs.replace(cut, settings=Settings(time_zone=zone)))
    assert {day.day: day.turnover_minor for day in found.business_days} == wanted
    assert len(found.value_dates) == 1


def test_sums_of_days_that_are_not_those_of_the_currency_end_the_run() -> None:
    expected = {"EUR": Sums(-10, 10, 1, 5), "USD": Sums(0, 0, 0, 0)}
    days = (
        Day("2026-01-05", "EUR", 1, Decimal(-7), Decimal(7), Decimal(1), Decimal(5)),
        Day("2026-01-06", "EUR", 1, Decimal(-3), Decimal(3), Decimal(0), Decimal(0)),
    )
    raise_if_unequal(expected, {"value date": days, "business day": days})
    with pytest.raises(TotalsError, match="totals of EUR by business day are"):
        raise_if_unequal(expected, {"value date": days, "business day": days[:1]})
    other = structs.replace(days[0], currency="CZK")
    with pytest.raises(TotalsError, match="totals of CZK by value date are"):
        raise_if_unequal(expected, {"value date": (*days, other)})
    for field in ("debits_minor", "credits_minor", "fees_minor", "turnover_minor"):
        wrong = structs.replace(days[1], **{field: Decimal(99)})
        with pytest.raises(TotalsError):
            raise_if_unequal(expected, {"value date": (days[0], wrong)})


def test_a_run_whose_days_do_not_add_up_ends(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    books = two_days()
    original = totals_module.times
    monkeypatch.setattr(
        totals_module, "times", lambda moved: original(moved).where("by <> 'value_date' or currency = 'EUR'")
    )
    with pytest.raises(TotalsError, match="totals of USD by value date"):
        run(spark, books, books.cut())


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
    assert (days(second), second.hours) == ({}, ())
    assert second.figures == {"accounts": 9, "accounts_moved": 0, "client_accounts": 2}
    euro = second.currencies[0]
    assert (euro.clients_closing_minor, euro.debits_minor, euro.turnover_minor) == (4770, 0, 0)


def test_a_cut_without_records(spark: SparkSession) -> None:
    books = Books()
    found, _ = run(spark, books, books.cut())
    assert (closings(found), found.currencies, found.houses, found.hours) == ({}, (), (), ())
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
    by_day = Counter[tuple[str, str, str]]()
    postings = 0
    for _ in range(3):
        bustle(books, random, 200)
        cut = books.cut(cut, lambda: bustle(books, random, 5))
        found, carried = run(spark, books, cut, carried)
        for key, line in days(found).items():
            opening, debits, credits_, movements, closing = added.get(key, (line[0], 0, 0, 0, line[0]))
            assert closing == line[0]  # a day of two nights continues in the second
            added[key] = (opening, debits + line[1], credits_ + line[2], movements + line[3], line[4])
        postings += sum(hour.postings for hour in found.hours)
        by_day += turnovers(found)
    assert len({day for _, _, day in added}) > 1
    whole, _ = run(spark, books, joined(cut))
    assert days(whole) == added
    assert closings(whole) == closings(found)
    assert whole.balances_digest == found.balances_digest
    assert sum(hour.postings for hour in whole.hours) == postings
    assert turnovers(whole) == by_day


def turnovers(found: Totals) -> Counter[tuple[str, str, str]]:
    return Counter(
        {
            (name, day.day, day.currency): int(day.turnover_minor)
            for name, days in (("value", found.value_dates), ("business", found.business_days))
            for day in days
            if day.turnover_minor
        }
    )


def joined(last: Manifest | None) -> Manifest:
    """The last cut, from the beginning of every log."""
    assert last is not None
    topics = {
        topic: {number: structs.replace(range_, start=0) for number, range_ in of.items()}
        for topic, of in last.topics.items()
    }
    return structs.replace(last, topics=topics)
