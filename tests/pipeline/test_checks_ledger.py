"""Postings book transfers as the ledger does: entries, declines, reversals, identities and terms."""

import dataclasses
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from shared.events import catalogue
from shared.events.clients import OPERATOR
from shared.events.headers import Coordinates
from shared.events.postings import AccountTerms, Decline, Entry, decode_ledger_event, encode_ledger_event
from shared.events.transfers import AccountClosed, AccountOpened, decode_transfer, encode_transfer
from spark.checks import ledger, repeats, reversals
from spark.decisions import cover
from spark.lake import Bounds
from spark.manifest import Manifest, Settings, seal
from spark.night import Night
from tests import planted_decisions as planted
from tests.pipeline.nights import ends, found, kept, manifest, night, rows_of
from tests.planted import ALICE, AWAY, BOB, HOME, Clean, posting_at, with_entries
from tests.tiers import full
from tests.world import World

CHECK = "transfers:postings"


def change_posting(world: World, where: Coordinates, **changes: Any) -> None:
    event = decode_ledger_event(world.at(where).value or b"")
    world.change(where, encode_ledger_event(msgspec.structs.replace(event, **changes)))


def change_transfer(world: World, where: Coordinates, **changes: Any) -> None:
    event = decode_transfer(world.at(where).value or b"")
    world.change(where, encode_transfer(msgspec.structs.replace(event, **changes)))


def book(world: World, where: Coordinates, *entries: tuple[str, str, int]) -> None:
    """Give a posting other entries."""
    world.change(where, with_entries(posting_at(world, where), *(Entry(*entry) for entry in entries)))


def test_a_clean_system_is_counted(spark: SparkSession) -> None:
    checked = ledger.check(night(spark, Clean()))
    assert found(checked) == []
    assert checked.figures == {"postings": 12, "declines": 1, "reversals": 1}
    assert checked.in_flight == {"ledger": 0, "ledger_ahead": 0}
    assert not checked.carry


@full
def test_entries_are_those_that_the_ledger_books(spark: SparkSession) -> None:
    world = Clean()
    transit, suspense = f"in-transit@{HOME}", f"suspense@{HOME}"
    paid = {name: world.pay(name, ALICE, BOB, 100, fee_minor=3) for name in "abcdefgh"}
    converted = world.pay("i", ALICE, BOB, 2500, converted=(100, "EUR", "0.04"))
    # In another order it is still the same posting
    book(world, paid["a"].debit, (f"fees@{HOME}", "CZK", 3), (transit, "CZK", 100), (ALICE, "CZK", -103))
    book(world, paid["a"].credit, (BOB, "CZK", 100), (f"in-transit@{AWAY}", "CZK", -100))
    book(world, paid["b"].debit, (ALICE, "CZK", -103), (transit, "CZK", 100), (f"fees@{HOME}", "CZK", 2))
    book(world, paid["c"].debit, (ALICE, "CZK", -103), (transit, "CZK", 100), (f"fees@{AWAY}", "CZK", 3))
    book(world, paid["d"].debit, (suspense, "CZK", -103), (transit, "CZK", 100), (f"fees@{HOME}", "CZK", 3))
    book(world, paid["e"].credit, (f"in-transit@{AWAY}", "CZK", -100), (f"other@{AWAY}", "CZK", 100))
    book(world, paid["f"].credit, (f"in-transit@{AWAY}", "CZK", -100), (BOB, "EUR", 100))
    book(world, paid["g"].credit)
    book(world, paid["h"].debit, (ALICE, "CZK", -(2**63)), (transit, "CZK", 2**63 - 1), (f"fees@{HOME}", "CZK", 1))
    book(
        world,
        converted.debit,
        *(
            (ALICE, "CZK", -2500),
            (transit, "EUR", 100),
            (f"fx:CZK@{HOME}", "CZK", 2500),
            (f"fx:EUR@{HOME}", "EUR", -99),
        ),
    )
    breaks = rows_of(ledger.check(night(spark, world)))
    entries = {
        ("balanced" if row["check"] == "balanced" else "entries", f"{row['topic']}:{row['partition']}:{row['offset']}")
        for row in breaks
        if row["check"] != CHECK
    }
    assert {row["kind"] for row in breaks} == {"amount"}
    assert entries == {
        ("balanced", str(paid["b"].debit)),
        ("balanced", str(paid["c"].debit)),
        ("entries", str(paid["d"].debit)),
        ("entries", str(paid["e"].credit)),
        ("balanced", str(paid["f"].credit)),
        ("entries", str(paid["g"].credit)),
        ("entries", str(paid["h"].debit)),
        ("balanced", str(converted.debit)),
    }
    details = {
        row["offset"]: row["detail"] for row in breaks if row["check"] == "balanced" and row["partition"] == HOME
    }
    assert details[paid["b"].debit.offset] == "its entries sum to -1 CZK"
    assert details[paid["c"].debit.offset] == f"on partition {HOME} it books to fees@{AWAY}"
    assert details[converted.debit.offset] == "its entries sum to 1 EUR"


@full
def test_postings_match_what_was_ordered(spark: SparkSession) -> None:
    world = Clean()
    amount = world.pay("a", ALICE, BOB, 100)
    book(world, amount.debit, (ALICE, "CZK", -99), (f"in-transit@{HOME}", "CZK", 99))
    fields: dict[str, Any] = {
        "rate": "0.04",
        "value_date": "2026-01-06",
        "creditor": "carol",
        "payment_id": "other",
        "reference": "other",
        "reverses": "p1",
    }
    debits = [world.pay(f"d{name}", ALICE, BOB, 100).debit for name in fields]
    for where, (name, value) in zip(debits, fields.items(), strict=True):
        change_posting(world, where, **{name: value})
    charged = world.pay("f", ALICE, BOB, 100, fee_minor=3)
    change_transfer(world, charged.transfer, fee_minor=4)
    credit = world.pay("g", ALICE, BOB, 100).credit
    change_posting(world, credit, fee_minor=1)
    expected = [str(where) for where in (amount.debit, *debits, charged.debit, credit)]
    assert found(ledger.check(night(spark, world))) == sorted(("amount", CHECK, where) for where in expected)


@full
def test_declines_only_where_allowed(spark: SparkSession) -> None:
    world = Clean()
    reasons = ("no_rate", "original_not_found", "made up")
    declined = [world.decline(f"d{number}", BOB, ALICE).debit for number in range(len(reasons))]
    for where, reason in zip(declined, reasons, strict=True):
        change_posting(world, where, reason=reason)
    house = world.decline("d3", f"cash@{AWAY}", ALICE).debit
    right = world.decline("d4", BOB, ALICE)
    change_transfer(world, right.transfer, decline="no_rate")
    change_posting(world, right.debit, reason="no_rate")
    other = world.decline("d5", BOB, ALICE)
    change_transfer(world, other.transfer, decline="no_rate")
    closed = world.decline("d6", f"cash@{AWAY}", ALICE).debit
    change_posting(world, closed, reason="debtor_closed")
    booked = world.pay("d7", ALICE, BOB, 7)
    change_transfer(world, booked.transfer, decline="no_rate")
    change_posting(world, world.declined.debit, payment_id="p9")
    of_reversal = _declined_reversal(world, "r7", "already_reversed")
    wrong = _declined_reversal(world, "r8", "insufficient_funds")
    expected = [*declined, house, other.debit, booked.debit, world.declined.debit, wrong]
    checked = ledger.check(night(spark, world))
    assert found(checked) == sorted(("amount", CHECK, str(where)) for where in expected)
    assert of_reversal not in expected
    assert "declined as made up, ordered to be booked" in {row["detail"] for row in rows_of(checked)}


def _declined_reversal(world: Clean, payment_id: str, reason: str) -> Coordinates:
    trail = world.reverse(payment_id, ALICE, "p1")
    for where in (trail.leg, trail.credit):
        world.remove(where)
    declined = Decline(payment_id, ALICE, reason, "2026-01-05", reversal=True, submitted_by=OPERATOR)
    world.change(trail.debit, encode_ledger_event(declined))
    return trail.debit


@full
def test_the_source_of_a_record_is_of_its_kind(spark: SparkSession) -> None:
    world = Clean()
    world.change(world.declined.debit, source=world.paid.leg)
    change_posting(world, world.last.debit, leg="both")
    reversal = world.reverse("r9", ALICE, "p2")
    change_posting(world, reversal.debit, reversal=False)
    checked = found(ledger.check(night(spark, world)))
    assert {one for one in checked if one[0] != "amount"} == {
        ("missing", CHECK, str(world.declined.transfer)),
        ("orphan", CHECK, str(world.declined.debit)),
        ("duplicate", CHECK, str(world.declined.debit)),
        ("orphan", CHECK, str(world.last.debit)),
        ("orphan", CHECK, str(reversal.debit)),
    }


def test_a_reversal_is_the_opposite_of_its_payment_once(spark: SparkSession) -> None:
    world = Clean()
    to_suspense = world.reverse("r1a", ALICE, "p2", to_suspense=True)
    again = world.reverse("r2", ALICE, "p3")
    part = world.reverse("r3", ALICE, "p6")
    book(world, part.debit, (ALICE, "CZK", 3999), (f"in-transit@{HOME}", "CZK", -3999))
    unbalanced = world.reverse("r4", ALICE, "p1")
    book(world, unbalanced.debit, (ALICE, "CZK", 1000), (f"in-transit@{HOME}", "CZK", -999))
    nothing = world.reverse("r5", ALICE, "p1")
    change_transfer(world, nothing.transfer, reverses="r1")  # a reversal is never reversed
    change_posting(world, nothing.debit, reverses="r1")
    elsewhere = world.pay("p7", ALICE, BOB, 40)
    moved = world.reverse("r6", ALICE, "p7")
    change_posting(world, moved.debit, creditor="carol")
    checked = ledger.check(night(spark, world))
    assert found(checked) == sorted(
        [
            ("duplicate", "reversals", str(again.debit)),
            ("amount", "reversals", str(part.debit)),
            ("amount", "balanced", str(unbalanced.debit)),
            ("amount", "reversals", str(unbalanced.debit)),
            ("orphan", "reversals", str(nothing.debit)),
            ("amount", "reversals", str(moved.debit)),
        ]
    )
    assert checked.figures["reversals"] == 7
    assert to_suspense.debit != elsewhere.debit


@full
def test_reversals_of_payments_of_an_earlier_cut(spark: SparkSession) -> None:
    world = Clean()
    first = manifest(world)
    sound, again = world.reverse("r2", ALICE, "p2"), world.reverse("r3", ALICE, "p3")
    checked = ledger.check(night(spark, world, manifest(world, previous=first)))
    assert found(checked) == [("duplicate", "reversals", str(again.debit))]
    assert sound.debit.offset < again.debit.offset


@full
def test_a_reversal_of_a_lost_payment_is_a_break_until_a_repair_writes_it(spark: SparkSession) -> None:
    world = Clean()
    lost = world.pay("p7", ALICE, BOB, 40).debit
    undone = world.reverse("r7", ALICE, "p7").debit
    nothing = world.reverse("r8", ALICE, "p7")
    change_transfer(world, nothing.transfer, reverses="r1")
    change_posting(world, nothing.debit, reverses="r1")
    world.remove(lost)
    of_both = [("orphan", "reversals", str(at)) for at in (undone, nothing.debit)]
    carried: dict[str, DataFrame] = {}
    cut = manifest(world)
    for expected in (of_both, of_both, of_both[1:], of_both[1:]):
        checked = ledger.check(night(spark, world, cut, carried))
        of_reversals = [row for row in rows_of(checked) if row["check"] == "reversals"]
        assert [one for one in found(checked) if one[1] == "reversals"] == sorted(expected)
        assert all(row["rechecked"] for row in of_reversals)
        carried = kept(checked.carry)
        if cut.sequence == 2:
            world.restore(lost)
        cut = manifest(world, previous=cut)
    assert found(ledger.check(night(spark, world))) == of_both[1:]


@full
def test_an_identity_is_debited_once(spark: SparkSession) -> None:
    world = Clean()
    first = manifest(world)
    again = world.pay("p2", ALICE, BOB, 1)
    other = world.pay("p2", BOB, ALICE, 1)
    third = world.pay("p2", ALICE, BOB, 1)
    expected = [("duplicate", "identities", str(trail.debit)) for trail in (again, third)]
    assert found(repeats.check_identities(night(spark, world))) == expected
    assert found(repeats.check_identities(night(spark, world, manifest(world, previous=first)))) == expected
    assert found(repeats.check_identities(night(spark, world, first))) == []
    assert other.debit.partition == AWAY


@full
def test_an_identity_has_one_outcome_whatever_it_is(spark: SparkSession) -> None:
    """ingest must drop repeats of all that it accepts: what is declined, reversed or opened is decided once as well."""
    world = Clean()
    poor, opened = world.client("poor", HOME), world.client("opened", HOME)
    world.reverse("undo", ALICE, "p2")
    world.open("open", opened)
    world.decline("never", poor, BOB)
    first = manifest(world)
    planted.decline_reversal(world, "p2", "already_reversed")
    again = [
        world.decline("p2", ALICE, BOB, because="debtor_closed").debit,
        world.decline("undo", ALICE, BOB, because="debtor_closed").debit,
        world.open("open", opened)[1],
        world.decline("never", poor, BOB).debit,
    ]
    expected = sorted(("duplicate", "identities", str(at)) for at in again)
    assert found(repeats.check_identities(night(spark, world))) == expected
    assert found(repeats.check_identities(night(spark, world, manifest(world, previous=first)))) == expected
    world.account_event(AccountOpened(opened, 5))
    world.account_event(AccountOpened(opened, 6))  # operators' commands have no identity
    assert found(repeats.check_identities(night(spark, world))) == expected


@full
def test_a_payment_outside_ingests_window_is_another_payment(spark: SparkSession) -> None:
    world = Clean()
    world.pay("p6", ALICE, BOB, 1)  # 1 accepted later
    world.pay("p2", ALICE, BOB, 1)  # 5
    again = world.pay("p6", ALICE, BOB, 1)  # 2 after the last one
    cut = _windowed(manifest(world), 3)
    where = [row[2] for row in found(repeats.check_identities(night(spark, world, cut)))]
    assert len(where) == 2
    assert str(again.debit) in where


@full
@pytest.mark.parametrize(("between", "within"), [(2, True), (3, False)])
@pytest.mark.parametrize("aborted", [0, 15])
def test_the_window_counts_accepted_identities_however_many_records_came_between(
    spark: SparkSession, between: int, within: bool, aborted: int
) -> None:
    world = Clean()
    cuts: list[Manifest] = []

    def end_night() -> None:
        cuts.append(_windowed(manifest(world, previous=cuts[-1] if cuts else None), 3))

    for number in range(4):
        world.pay(f"before-{number}", ALICE, BOB, 1)
        end_night()
    first = world.pay("again", ALICE, BOB, 1)
    for number in range(between):
        world.pay(f"between-{number}", ALICE, BOB, 1)
    end_night()
    for number in range(20):  # on the partition of their creditor
        world.pay(f"credit-{number}", BOB, ALICE, 1)
    world._next[catalogue.PAYMENTS_ACCEPTED, HOME] += aborted
    end_night()
    second = world.pay("again", ALICE, BOB, 1)
    end_night()
    now, asked = watched(dataclasses.replace(night(spark, world, cuts[-1]), history_cuts=cuts[:-1]))
    found_ = found(repeats.check_identities(now))
    assert found_ == [("duplicate", "identities", str(second.debit))] * within
    assert all(bounds[HOME][0] > 0 for _, bounds in asked)
    assert first.debit.offset < second.debit.offset


def watched(now: Night) -> tuple[Night, list[tuple[str, Bounds]]]:
    """The same input, and what it is asked for of earlier cuts: tables and bounds."""
    asked: list[tuple[str, Bounds]] = []

    def history(table: str, bounds: Bounds, /) -> DataFrame:
        asked.append((table, bounds))
        return now.history(table, bounds)

    return dataclasses.replace(now, history=history), asked


def _windowed(cut: Manifest, identities: int) -> Manifest:
    settings = Settings(identity_window=identities)
    return seal(msgspec.structs.replace(cut, settings=settings))


@full
def test_account_events_are_posted_where_they_change_a_state(spark: SparkSession) -> None:
    world = Clean()  # alice is open without a limit, carol is closed
    first = manifest(world)

    def order(event: AccountOpened | AccountClosed) -> Coordinates:
        at, posted = world.account_event(event)
        world.remove(posted)
        return at

    world.terms |= dict.fromkeys(("dave", "erin", f"cash@{HOME}"), AccountTerms("operator", 0))
    silent: list[AccountOpened | AccountClosed] = [
        AccountOpened(ALICE, None),
        AccountClosed("carol"),
        AccountOpened("dave", 0),
        AccountOpened(f"cash@{HOME}", None),
    ]
    lost: list[AccountOpened | AccountClosed] = [
        AccountOpened(ALICE, 5),
        AccountOpened("carol", 1000),
        AccountClosed("erin"),
        AccountOpened("dave", 1),
    ]
    for event in silent:
        order(event)
    missing = [order(event) for event in lost]
    twice, changed = world.copy(world.opened[1]), world.account_event(AccountOpened("frank", 7))[1]
    world.change(changed, encode_ledger_event(AccountOpened("frank", 8)))
    terms = [("missing", "terms", str(where)) for where in missing]
    full = ledger.check(night(spark, world))
    expected = [*terms, ("duplicate", CHECK, str(twice)), ("amount", CHECK, str(changed))]
    assert found(full) == sorted(expected)
    later = ledger.check(night(spark, world, manifest(world, previous=first)))
    assert found(later) == sorted(expected)


@full
def test_an_account_event_is_judged_by_the_terms_that_the_run_before_left(spark: SparkSession) -> None:
    world = Clean()
    dave = world.account_event(AccountOpened("dave", 1))[0]
    cuts, carried = [manifest(world)], dict[str, DataFrame]()

    def end_night() -> tuple[list[tuple[str, str, str]], list[Bounds]]:
        before = cuts[-1]
        left = cover.check(night(spark, world, before, dict(carried))).terms
        carried[cover.TERMS] = kept({cover.TERMS: left})[cover.TERMS]
        cuts.append(manifest(world, previous=before))
        now, asked = watched(night(spark, world, cuts[-1], dict(carried)))
        checked = ledger.check(now)
        carried.update(kept(checked.carry))
        # Only terms are judged by closings; the check of identities reads openings each night
        return found(checked), [bounds for table, bounds in asked if table == "accounts_closed"]

    for overdraft_minor in (1, 0):  # these are its terms, and those of an account that was never opened
        at, posted = world.account_event(AccountOpened("dave", overdraft_minor))
        world.remove(posted)
    missing = [("missing", "terms", str(at))]
    assert end_night() == (missing, [])
    world.account_event(AccountOpened("dave", 3))
    assert end_night() == (missing, [])
    # The lost event is older than the newest terms now
    everything = {dave.partition: (0, cuts[-1].topics[catalogue.LEDGER_POSTINGS][dave.partition].end)}
    assert end_night() == (missing, [everything])


@full
def test_an_account_event_may_still_be_posted(spark: SparkSession) -> None:
    world = Clean()
    before = ends(world)
    world.account_event(AccountOpened(ALICE, 5))
    postings = (catalogue.LEDGER_POSTINGS, HOME)
    stop, high = before[postings], ends(world)[postings]
    cut = manifest(world, stops={postings: stop}, highs={postings: high}, settled=False)
    checked = ledger.check(night(spark, world, cut))
    assert found(checked) == []
    assert checked.in_flight == {"ledger": 1, "ledger_ahead": 0}
    later = ledger.check(night(spark, world, manifest(world, previous=cut), kept(checked.carry)))
    assert found(later) == []
    assert not later.carry


@full
def test_what_is_debited_is_put_in_transit(spark: SparkSession) -> None:
    world = Clean()
    paid = world.pay("q1", ALICE, BOB, 100)
    book(world, paid.debit, (ALICE, "CZK", -100), (f"in-transit@{HOME}", "CZK", 99))
    assert found(ledger.check(night(spark, world))) == [
        ("amount", "balanced", str(paid.debit)),
        ("amount", CHECK, str(paid.debit)),
    ]


@full
def test_a_reversal_books_on_its_own_partition(spark: SparkSession) -> None:
    world = Clean()
    reversal = world.reverse("r2", ALICE, "p2").debit
    entries = ((ALICE, "CZK", 2530), (f"in-transit@{AWAY}", "CZK", -2500), (f"fees@{HOME}", "CZK", -30))
    book(world, reversal, *entries)
    assert found(ledger.check(night(spark, world))) == [
        ("amount", "balanced", str(reversal)),
        ("amount", "reversals", str(reversal)),
    ]


@full
def test_the_original_of_a_reversal_is_found_however_old_it_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reversals, "_LOOK_BACK", 1)
    world = Clean()
    first = manifest(world)
    world.reverse("r2", ALICE, "p2")
    now, asked = watched(night(spark, world, manifest(world, previous=first)))
    assert found(ledger.check(now)) == []
    postings = [bounds for table, bounds in asked if table == "postings"]
    older = [bounds[HOME] for bounds in postings if bounds.keys() == {HOME}]
    assert older
    assert max(begin for begin, _ in older) < postings[0][HOME][0]
    assert AWAY in postings[0]


@full
def test_the_last_payment_of_ingests_window_is_the_same_payment(spark: SparkSession) -> None:
    world = Clean()
    again = world.pay("p2", ALICE, BOB, 1).debit  # four accepted after the first
    for window, expected in ((4, [("duplicate", "identities", str(again))]), (3, [])):
        cut = seal(msgspec.structs.replace(manifest(world), settings=Settings(identity_window=window)))
        assert found(repeats.check_identities(night(spark, world, cut))) == expected


@full
def test_a_duplicated_posting_is_not_another_payment(spark: SparkSession) -> None:
    world = Clean()
    world.copy(world.paid.debit)
    assert found(repeats.check_identities(night(spark, world))) == []


@full
def test_a_credit_leg_is_not_declined(spark: SparkSession) -> None:
    world = Clean()
    credit = world.pay("q1", ALICE, BOB, 100).credit
    world.change(credit, encode_ledger_event(Decline("q1", ALICE, "debtor_closed", "2026-01-05")))
    assert found(ledger.check(night(spark, world))) == [("orphan", CHECK, str(credit))]
