"""The postings' sums against the changelog, conservation and money in transit: with traffic, and with errors."""

from collections.abc import Mapping
from random import Random

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from shared.events.catalogue import LEDGER_BALANCES, LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.events.headers import Coordinates
from shared.events.postings import CREDIT, Account, Entry, Posting, encode_account, encode_ledger_event
from shared.events.transfers import AccountOpened
from spark import balances, movements, totals
from spark.manifest import Manifest
from spark.night import BREAKS, Checked
from tests.partitions import partition_for
from tests.pipeline.books import Books, bustle, event_of, kept
from tests.pipeline.nights import rows_of, tables
from tests.tiers import full

ALICE, BOB, CAROL = "client-0", "client-1", "client-2"
GHOST, SHADE, *_ = (name for name in map("ghost-{}".format, range(50)) if partition_for(name) == partition_for(ALICE))


def ledger() -> Books:
    """A few payments between three accounts, all the way through."""
    books = Books()
    for account in (ALICE, BOB, CAROL):
        books.order(AccountOpened(account, None), partition_for(account))
    books.pay("p1", ALICE, BOB, 1000, fee_minor=10)
    books.pay("p2", BOB, CAROL, 300)
    books.pay("p3", CAROL, ALICE, 200, credit_currency="USD", credit_minor=220, rate="1.1")
    books.drain()
    return books


def run(
    spark: SparkSession, books: Books, cut: Manifest, carried: Mapping[str, DataFrame] | None = None
) -> tuple[Checked, dict[str, DataFrame]]:
    """Run one night: the findings, and the tables for the next night."""
    night = books.night(spark, cut, kept(carried or {}))
    checked = balances.check(night, totals.totals(night).currencies)
    every = movements.accounts(night, movements.movements(night))
    return checked, {**tables(checked.carry), "account_balances": movements.account_balances(every)}


def found(checked: Checked) -> list[tuple[str, str, int | None, int | None, str | None, str]]:
    """The breaks but for their topics, sorted."""
    assert checked.breaks is None or checked.breaks.columns == BREAKS.fieldNames()
    return sorted(
        (row.kind, row.check, row.partition, row.offset, row.payment_id, row.detail) for row in rows_of(checked)
    )


def test_a_drained_ledger_is_sound(spark: SparkSession) -> None:
    books = ledger()
    checked, _ = run(spark, books, books.cut())
    assert found(checked) == []
    assert checked.in_flight == {"balances": 0}
    assert checked.figures == {"accounts_off": 0, "currencies": 2, "currencies_off": 0, "legs_under_way": 0}


@full
def test_cuts_through_traffic_give_no_false_alarm(spark: SparkSession) -> None:
    books, random = Books(), Random(1)
    cut: Manifest | None = None
    carried: dict[str, DataFrame] = {}
    under_way = 0
    for _ in range(3):
        bustle(books, random, 150)
        cut = books.cut(cut, lambda: bustle(books, random, random.randrange(12)))
        checked, carried = run(spark, books, cut, carried)
        assert found(checked) == []
        under_way += checked.in_flight["balances"] + checked.figures["legs_under_way"]
    assert under_way > 0
    books.drain()
    checked, carried = run(spark, books, books.cut(cut), carried)
    assert found(checked) == []
    assert (checked.in_flight["balances"], checked.figures["legs_under_way"]) == (0, 0)
    assert not {"postings_late", "transit_open", "transit_early", "transit_waiting"} & set(carried)


@full
def test_each_error_is_named(spark: SparkSession) -> None:
    books = ledger()
    altered = books.misstate(ALICE, 5)
    home = partition_for(CAROL)
    last = max(at for at, posting in books.logs[LEDGER_POSTINGS, home].items() if touches(event_of(posting), CAROL))
    log = books.logs[LEDGER_BALANCES, home]
    for at in [at for at, record in log.items() if record.key == b"account/client-2"]:
        del log[at]
    for account, balance in ((GHOST, 7), (SHADE, 0)):
        books.state_of(account, Account({"EUR": balance}), Coordinates(LEDGER_TRANSFERS, partition_for(account), 0))
    bob = books.state(BOB)
    books.change(bob, headers=(("source", b"ledger.transfers:%d:99999" % bob.partition),))
    checked, _ = run(spark, books, books.cut())
    ghost = books.state(GHOST)
    assert found(checked) == sorted(
        [
            *amounts(altered, ALICE, "EUR -1005 in the changelog, -1010 posted"),
            ("missing", "balances", home, last, "p2", f"{CAROL}: EUR nothing in the changelog, 100 posted"),
            ("orphan", "balances", ghost.partition, ghost.offset, None, f"{GHOST}: EUR 7 in the changelog, 0 posted"),
            (
                "orphan",
                "transfers:balances",
                bob.partition,
                bob.offset,
                None,
                f"{BOB}: its source ledger.transfers:{bob.partition}:99999 is no record of its partition",
            ),
        ]
    )
    assert checked.figures["accounts_off"] == 3
    assert checked.in_flight == {"balances": 0}


@full
def test_a_state_of_no_source_and_its_balances_are_breaks_of_their_own(spark: SparkSession) -> None:
    """The source is a fact; the balances may be corrected."""
    books = ledger()
    home = partition_for(GHOST)
    books.state_of(GHOST, Account({"EUR": 7}), Coordinates(LEDGER_TRANSFERS, home, 99999))
    checked, _ = run(spark, books, books.cut())
    kinds = {(row.kind, row.check, row.offset, row.rechecked) for row in rows_of(checked)}
    at = books.state(GHOST).offset
    assert kinds == {("orphan", "balances", at, True), ("orphan", "transfers:balances", at, False)}


@full
def test_only_the_last_state_of_an_account_counts(spark: SparkSession) -> None:
    books = ledger()
    for log in [log for (topic, _), log in books.logs.items() if topic == LEDGER_BALANCES]:
        last = {record.key: at for at, record in sorted(log.items())}
        for at in set(log) - set(last.values()):
            del log[at]
    checked, _ = run(spark, books, books.cut())
    assert found(checked) == []


@full
def test_a_state_that_does_not_contain_the_last_posting(spark: SparkSession) -> None:
    books = ledger()
    at = books.state(BOB)
    del books.logs[at.topic, at.partition][at.offset]
    checked, _ = run(spark, books, books.cut())
    assert found(checked) == [*amounts(books.state(BOB), BOB, "EUR -300 in the changelog, 700 posted")]


@full
def test_a_deleted_state_has_no_balances(spark: SparkSession) -> None:
    books = ledger()
    books.change(books.state(BOB), value=None)
    checked, _ = run(spark, books, books.cut())
    assert found(checked) == [*amounts(books.state(BOB), BOB, "EUR 0 in the changelog, 700 posted")]


@full
def test_a_state_without_a_source_is_compared_at_the_end(spark: SparkSession) -> None:
    books = ledger()
    at = books.misstate(BOB, -1)
    for log in [log for (topic, _), log in books.logs.items() if topic == LEDGER_BALANCES]:
        for offset, record in log.items():
            log[offset] = record._replace(headers=())
    checked, _ = run(spark, books, books.cut())
    assert found(checked) == [*amounts(at, BOB, "EUR 699 in the changelog, 700 posted")]


@full
def test_a_difference_is_a_break_as_long_as_it_is_there(spark: SparkSession) -> None:
    books = ledger()
    first = books.cut()
    at = books.misstate(ALICE, 5)
    first_night, carried = run(spark, books, first)
    books.pay("p4", ALICE, BOB, 100)
    books.drain()
    books.misstate(ALICE, 5)
    again = books.misstate(BOB, 1)
    second = books.cut(first)
    later_night, carried = run(spark, books, second, carried)
    third = books.cut(second)
    at_rest, carried = run(spark, books, third, carried)
    both = [
        *amounts(at, ALICE, "EUR -1005 in the changelog, -1010 posted"),
        *amounts(again, BOB, "EUR 801 in the changelog, 800 posted"),
    ]
    assert (found(first_night), found(later_night), found(at_rest)) == (both[:1], sorted(both), sorted(both))
    assert [night.figures["accounts_off"] for night in (first_night, later_night, at_rest)] == [1, 2, 2]
    whole, _ = run(spark, books, books.cut())
    assert found(whole) == sorted(both)
    books.pay("p5", ALICE, CAROL, 1)
    books.drain()
    mended, _ = run(spark, books, books.cut(third), carried)
    assert found(mended) == both[1:]


@full
def test_a_state_ahead_of_its_postings_is_judged_when_they_come(spark: SparkSession) -> None:
    books = ledger()
    home = partition_for(ALICE)
    books.pay("p4", ALICE, BOB, 100)
    books.work(home)
    books.deliver(home, (LEDGER_BALANCES, home))
    at = books.misstate(ALICE, 5)
    cut = books.cut()
    checked, carried = run(spark, books, cut)
    assert (found(checked), checked.in_flight) == ([], {"balances": 2})  # alice, and in transit
    assert checked.figures["accounts_off"] == 0
    books.drain()
    checked, _ = run(spark, books, books.cut(cut), carried)
    assert found(checked) == [*amounts(at, ALICE, "EUR -1105 in the changelog, -1110 posted")]
    assert checked.in_flight == {"balances": 0}


@full
def test_postings_ahead_of_the_changelog_are_judged_when_it_comes(spark: SparkSession) -> None:
    books = ledger()
    home = partition_for(ALICE)
    books.pay("p4", ALICE, BOB, 100)
    books.work(home)
    books.deliver(home, (LEDGER_POSTINGS, home))
    at = books.misstate(ALICE, 5)
    first = books.cut()
    checked, carried = run(spark, books, first)
    assert (found(checked), checked.in_flight, checked.figures["accounts_off"]) == ([], {"balances": 2}, 0)
    second = books.cut(first)
    checked, carried = run(spark, books, second, carried)
    assert (found(checked), checked.in_flight) == ([], {"balances": 2})  # no new records
    books.drain()
    checked, _ = run(spark, books, books.cut(second), carried)
    assert found(checked) == [*amounts(at, ALICE, "EUR -1105 in the changelog, -1110 posted")]
    assert checked.in_flight == {"balances": 0}


@full
def test_a_difference_is_known_while_it_cannot_be_judged(spark: SparkSession) -> None:
    books = ledger()
    at = books.misstate(ALICE, 5)
    first = books.cut()
    _, carried = run(spark, books, first)
    home = partition_for(ALICE)
    books.pay("p4", ALICE, BOB, 100)
    books.work(home)
    books.deliver(home, (LEDGER_BALANCES, home))
    books.misstate(ALICE, 5)
    second = books.cut(first)
    checked, carried = run(spark, books, second, carried)
    assert checked.in_flight == {"balances": 2}
    books.drain()
    checked, _ = run(spark, books, books.cut(second), carried)
    assert found(checked) == [*amounts(at, ALICE, "EUR -1005 in the changelog, -1010 posted")]


@full
def test_a_difference_that_was_mended_is_forgotten(spark: SparkSession) -> None:
    books, carried = ledger(), dict[str, DataFrame]()
    cut: Manifest | None = None
    for number, by in enumerate((5, 0, 7)):
        books.pay(f"q{number}", ALICE, BOB, 100)
        books.drain()
        at = books.misstate(ALICE, by)
        books.misstate(BOB, 3)  # each night: there are faults to carry
        cut = books.cut(cut)
        checked, carried = run(spark, books, cut, carried)
        posted = -1110 - 100 * number
        text = f"EUR {posted + by} in the changelog, {posted} posted"
        of_bob = [row for row in found(checked) if row[-1].startswith(f"{BOB}: ")]
        assert of_bob
        assert [row for row in found(checked) if row not in of_bob] == (amounts(at, ALICE, text) if by else [])
        faulty = {row.account for row in carried["balance_faults"].collect()}
        assert faulty == ({ALICE, BOB} if by else {BOB})


@full
def test_a_difference_that_was_corrected_is_over(spark: SparkSession) -> None:
    books = ledger()
    books.misstate(ALICE, 5)
    for number in (4, 5):
        books.pay(f"p{number}", ALICE, BOB, 100)
        books.drain()
    at = books.misstate(ALICE, 7)
    checked, _ = run(spark, books, books.cut())
    assert found(checked) == [*amounts(at, ALICE, "EUR -1203 in the changelog, -1210 posted")]


@full
def test_an_account_that_has_nothing_left_needs_a_state(spark: SparkSession) -> None:
    books, account = ledger(), "client-3"
    home = partition_for(account)
    books.order(AccountOpened(account, None), home)
    for number, parties in enumerate(((ALICE, account), (account, ALICE))):
        books.pay(f"q{number}", *parties, 100)
        books.drain()
    log = books.logs[LEDGER_BALANCES, home]
    for at in [at for at, record in log.items() if record.key == b"account/client-3"]:
        del log[at]
    checked, _ = run(spark, books, books.cut())
    assert [(kind, detail) for kind, *_, detail in found(checked)] == [
        ("missing", f"{account}: EUR nothing in the changelog, 0 posted")
    ]


@full
def test_records_in_both_topics_are_judged_while_others_are_in_flight(spark: SparkSession) -> None:
    books = ledger()
    home = partition_for(ALICE)
    books.pay("p4", ALICE, BOB, 100)  # its posting and state are the last ones that are visible on this partition
    books.drain()
    at = books.misstate(ALICE, 5)
    books.pay("p5", f"cash@{home}", BOB, 100)
    books.work(home)
    checked, _ = run(spark, books, books.cut())
    assert found(checked) == [*amounts(at, ALICE, "EUR -1105 in the changelog, -1110 posted")]
    assert checked.in_flight == {"balances": 0}


@full
def test_a_currency_that_does_not_sum_to_zero(spark: SparkSession) -> None:
    books = ledger()
    home = partition_for(BOB)
    offset = max(at for at, record in books.logs[LEDGER_POSTINGS, home].items() if record.key == BOB.encode())
    at = Coordinates(LEDGER_POSTINGS, home, offset)
    posting: Posting = event_of(books.logs[LEDGER_POSTINGS, home][offset])
    entries = (*posting.entries, Entry(BOB, "SEK", 3))
    books.change(at, value=encode_ledger_event(msgspec.structs.replace(posting, entries=entries)))
    state: Account = event_of(books.logs[LEDGER_BALANCES, home][books.state(BOB).offset])
    books.change(books.state(BOB), value=encode_account(Account({**state.balances, "SEK": 3}, None)))
    cut = books.cut()
    checked, carried = run(spark, books, cut)
    assert found(checked) == [("amount", "conservation", None, None, None, "all balances in SEK sum to 3")]
    checked, _ = run(spark, books, books.cut(cut), carried)
    assert found(checked) == [("amount", "conservation", None, None, None, "all balances in SEK sum to 3")]
    [row] = (row for row in rows_of(checked) if row["check"] == "conservation")
    assert (row["subject"], row["currency"], int(row["amount_minor"])) == ("closing SEK", "SEK", 3)


def test_a_currency_that_sums_below_zero(spark: SparkSession) -> None:
    books = ledger()
    night = books.night(spark, books.cut())
    off = [msgspec.structs.replace(one, closing_minor=-3) for one in totals.totals(night).currencies[:1]]
    rows = rows_of(balances.check_conservation(night, off))
    detail = f"all balances in {off[0].currency} sum to -3"
    assert [(row["detail"], int(row["amount_minor"])) for row in rows] == [(detail, 3)]


@full
def test_a_credit_posting_that_never_came_stays_in_transit(spark: SparkSession) -> None:
    books = ledger()
    home = partition_for(BOB)
    log = books.logs[LEDGER_POSTINGS, home]
    offset = next(at for at, posting in log.items() if is_credit(event_of(posting)))
    amount = event_of(log[offset]).entries[-1].amount_minor
    del log[offset]
    cut = books.cut()
    checked, carried = run(spark, books, cut)
    conservation = [row for row in found(checked) if row[1] == "conservation"]
    assert conservation == [
        ("amount", "conservation", None, None, None, f"{amount} EUR more in transit than the credit legs under way")
    ]
    checked, _ = run(spark, books, books.cut(cut), carried)
    assert [row for row in found(checked) if row[1] == "conservation"] == conservation


@pytest.mark.parametrize(
    ("reached", "legs"), [((), 0), ((LEDGER_POSTINGS,), 1), ((LEDGER_TRANSFERS,), 0), (None, 1)], ids=str
)
@full
def test_legs_under_way(spark: SparkSession, reached: tuple[str, ...] | None, legs: int) -> None:
    books = ledger()
    home, away = partition_for(ALICE), partition_for(BOB)
    assert home != away
    books.pay("p4", ALICE, BOB, 100)
    books.work(home)
    if reached is None:
        books.deliver(home)
    for topic in reached or ():
        books.deliver(home, (topic, away if topic == LEDGER_TRANSFERS else home))
    cut = books.cut()
    checked, carried = run(spark, books, cut)
    assert (found(checked), checked.figures["legs_under_way"]) == ([], legs)
    books.drain()
    checked, _ = run(spark, books, books.cut(cut), carried)
    assert (found(checked), checked.figures["legs_under_way"]) == ([], 0)


@full
def test_the_leg_at_the_committed_offset_is_under_way(spark: SparkSession) -> None:
    books = ledger()
    home, away = partition_for(ALICE), partition_for(BOB)
    for number in (4, 5):
        books.pay(f"p{number}", ALICE, BOB, 100)
    books.work(home)  # in one transaction: no marker is between the two legs
    books.deliver(home)
    books.work(away, records=1)
    books.deliver(away)
    checked, _ = run(spark, books, books.cut())
    assert (found(checked), checked.figures["legs_under_way"]) == ([], 1)


@full
def test_amounts_beyond_64_bits_are_exact(spark: SparkSession) -> None:
    books, largest = Books(), 2**63 - 1
    for number in range(3):
        books.pay(f"p{number}", "cash@0", ALICE, largest, currency="JPY")
    books.drain()
    cut = books.cut()
    checked, carried = run(spark, books, cut)
    assert found(checked) == []
    [row] = carried["account_balances"].where(f"account = '{ALICE}'").collect()
    assert row.closing == 3 * largest


def amounts(at: Coordinates, account: str, text: str) -> list[tuple[str, str, int, int, None, str]]:
    return [("amount", "balances", at.partition, at.offset, None, f"{account}: {text}")]


def touches(event: object, account: str) -> bool:
    return isinstance(event, Posting) and account in {entry.account for entry in event.entries}


def is_credit(event: object) -> bool:
    return isinstance(event, Posting) and event.leg == CREDIT
