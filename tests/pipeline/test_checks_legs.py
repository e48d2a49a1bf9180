"""A debit posting and its credit leg are visible together, and say the same."""

from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from shared.events import catalogue
from shared.events.headers import Coordinates
from shared.events.postings import encode_ledger_event
from shared.events.transfers import decode_transfer, encode_transfer
from spark.checks import legs
from tests.pipeline.nights import ends, found, kept, manifest, night, rows_of
from tests.planted import ALICE, AWAY, BOB, ELSEWHERE, HOME, Clean, posting_at
from tests.planted_links import FAR_OFFSET
from tests.tiers import full
from tests.world import World

CHECK = "debits:credit-legs"
POSTED, ORDERED = catalogue.LEDGER_POSTINGS, catalogue.LEDGER_TRANSFERS


def change_leg(world: World, where: Coordinates, **changes: Any) -> None:
    event = decode_transfer(world.at(where).value or b"")
    world.change(where, encode_transfer(msgspec.structs.replace(event, **changes)))


@full
def test_a_clean_system_is_counted(spark: SparkSession) -> None:
    checked = legs.check(night(spark, Clean()))
    assert found(checked) == []
    assert checked.figures == {"credit_legs": 6}
    assert checked.in_flight == {"credit_legs": 0, "debit_postings": 0}
    assert not checked.carry


@full
def test_legs_that_are_torn_twice_or_different(spark: SparkSession) -> None:
    world = Clean()
    paid = {name: world.pay(name, ALICE, BOB, 100) for name in "abcdefghijk"}
    fields: dict[str, Any] = {"amount_minor": 99, "currency": "EUR", "value_date": "2026-01-06", "creditor": "carol"}
    for name, (field, value) in zip("abcd", fields.items(), strict=True):
        change_leg(world, paid[name].leg, **{field: value})
    world.remove(paid["e"].leg)
    world.remove(paid["f"].debit)
    again = world.copy(paid["g"].leg)
    world.change(paid["h"].leg, origin=world.first.raw)
    far = world.copy(paid["i"].leg)
    world.change(far, source=paid["i"].transfer._replace(offset=FAR_OFFSET))
    aborted = world.copy(paid["i"].leg)
    world.change(aborted, source=paid["i"].transfer._replace(offset=paid["i"].transfer.offset + 1))
    of_decline = world.copy(paid["i"].leg)
    world.change(of_decline, source=world.declined.transfer, origin=world.declined.raw)
    world.change(paid["j"].debit, b"{}")
    world.change(paid["k"].leg, b"{}")
    house = world.pay("l", ALICE, f"cash@{AWAY}", 100)
    record = world.at(house.leg)
    world.change(house.leg, (record.value or b"").replace(b"cash@%d" % AWAY, b"cash@%d" % HOME))
    checked = legs.check(night(spark, world))
    amounts = [paid[name].leg for name in "abcd"]
    assert found(checked) == sorted(
        [
            *(("amount", CHECK, str(where)) for where in (*amounts, house.leg)),
            ("torn", CHECK, str(paid["e"].debit)),
            ("torn", CHECK, str(paid["f"].leg)),
            ("duplicate", CHECK, str(again)),
            ("orphan", CHECK, str(paid["h"].leg)),
            ("orphan", CHECK, str(far)),
            ("uncommitted", CHECK, str(aborted)),
            ("torn", CHECK, str(of_decline)),
        ]
    )


def test_a_leg_may_be_above_the_cut_on_any_partition(spark: SparkSession) -> None:
    world = Clean()
    earlier = world.pay("q1", ALICE, BOB, 10)
    before = ends(world)
    late = world.pay("q2", ALICE, BOB, 10)
    after = ends(world)
    world.remove(earlier.leg)
    # Bob's partition was read before the transaction's marker was written there
    at = (ORDERED, AWAY)
    cut = manifest(world, stops={at: before[at]}, highs={at: after[at]}, settled=False)
    checked = legs.check(night(spark, world, cut))
    # No record after q1 is visible on that partition either: q1 cannot be judged yet
    assert found(checked) == []
    assert checked.in_flight == {"credit_legs": 2, "debit_postings": 0}
    later = legs.check(night(spark, world, manifest(world, previous=cut), kept(checked.carry)))
    assert found(later) == [("torn", CHECK, str(earlier.debit))]
    assert late.leg.partition == AWAY
    assert set(later.carry) == {"legs_parents_postings"}


@pytest.mark.timeout(120)
def test_a_leg_may_be_above_the_cut_on_any_of_256_partitions(spark: SparkSession) -> None:
    world = Clean(partitions=256)
    earlier = world.pay("q1", ALICE, BOB, 10)
    at = (ORDERED, earlier.leg.partition)
    world.pay("q2", ALICE, BOB, 10)
    late = world.pay("q3", ALICE, BOB, 10)
    after = ends(world)
    world.remove(earlier.leg)
    cut = manifest(world, stops={at: late.leg.offset}, highs={at: after[at]}, settled=False)
    checked = legs.check(night(spark, world, cut))
    # q2 is visible there, so the leg of q1 is lost, and that of q3 may be above the cut
    assert found(checked) == [("torn", CHECK, str(earlier.debit))]
    assert checked.in_flight == {"credit_legs": 1, "debit_postings": 0}
    assert set(checked.carry) == {"legs_marks", "legs_parents_postings"}


@full
def test_a_torn_leg_is_a_break_until_the_other_half_comes(spark: SparkSession) -> None:
    world = Clean()
    legless, orphaned = world.pay("q1", ALICE, BOB, 10), world.pay("q2", BOB, ALICE, 10)
    for at in (legless.leg, orphaned.debit):
        world.remove(at)
    first = manifest(world)
    both = sorted(("torn", CHECK, str(at)) for at in (orphaned.leg, legless.debit))
    checked = legs.check(night(spark, world, first))
    assert found(checked) == both
    assert {(row["currency"], int(row["amount_minor"]), row["rechecked"]) for row in rows_of(checked)} == {
        ("CZK", 10, True)
    }
    # A later cut that cannot see all of the topics hides nothing that was judged
    tail = {(topic, p): end + 5 for (topic, p), end in ends(world).items()}
    second = manifest(world, highs=tail, settled=False, previous=first)
    again = legs.check(night(spark, world, second, kept(checked.carry)))
    assert (found(again), again.in_flight) == (both, {"credit_legs": 0, "debit_postings": 0})
    for at in (legless.leg, orphaned.debit):
        world.restore(at)
    third = manifest(world, previous=second)
    come = legs.check(night(spark, world, third, kept(again.carry)))
    assert found(come) == []
    assert not come.carry


@full
def test_a_leg_before_a_visible_one_can_no_longer_arrive(spark: SparkSession) -> None:
    world = Clean()
    lost = world.pay("q1", ALICE, BOB, 10)
    world.pay("q2", ALICE, BOB, 10)
    world.remove(lost.leg)
    at = (ORDERED, AWAY)
    cut = manifest(world, highs={at: ends(world)[at] + 5}, settled=False)
    checked = legs.check(night(spark, world, cut))
    assert found(checked) == [("torn", CHECK, str(lost.debit))]
    assert set(checked.carry) == {"legs_marks", "legs_parents_postings"}


@full
def test_a_posting_may_be_above_the_cut(spark: SparkSession) -> None:
    world = Clean()
    torn = world.pay("q1", ALICE, BOB, 10)
    world.pay("q2", ALICE, BOB, 10)
    world.remove(torn.debit)
    before = ends(world)
    world.pay("q3", ALICE, BOB, 10)
    after = ends(world)
    at = (POSTED, HOME)
    cut = manifest(world, stops={at: before[at]}, highs={at: after[at]}, settled=False)
    checked = legs.check(night(spark, world, cut))
    assert found(checked) == [("torn", CHECK, str(torn.leg))]
    assert checked.in_flight == {"credit_legs": 0, "debit_postings": 1}
    carried = kept(checked.carry)
    assert set(carried) == {"legs_children_credit_legs", "legs_marks"}
    later = legs.check(night(spark, world, manifest(world, previous=cut), carried))
    assert found(later) == found(checked)
    assert later.in_flight == {"credit_legs": 0, "debit_postings": 0}


@full
def test_a_duplicate_in_a_later_cut(spark: SparkSession) -> None:
    world = Clean()
    first = manifest(world)
    again = world.copy(world.paid.leg)
    world.copy(world.first.debit)  # the ledger's own link names it
    missing = world.copy(world.last.leg)
    world.remove(world.last.debit)
    checked = legs.check(night(spark, world, manifest(world, previous=first)))
    assert found(checked) == [("duplicate", CHECK, str(again)), ("torn", CHECK, str(missing))]


@full
def test_a_leg_may_be_above_the_cut_on_the_partition_seen_least(spark: SparkSession) -> None:
    world = Clean()
    late = world.pay("q1", ALICE, BOB, 10)
    world.pay("q2", ALICE, BOB, 10)
    world.remove(late.leg)
    highs = {(ORDERED, number): ends(world)[ORDERED, number] + 5 for number in (AWAY, ELSEWHERE)}
    checked = legs.check(night(spark, world, manifest(world, highs=highs, settled=False)))
    assert found(checked) == []
    assert checked.in_flight["credit_legs"] > 0


@full
def test_a_posting_without_a_source_has_no_leg_to_be_found(spark: SparkSession) -> None:
    """The ledger's own link reports it."""
    world = Clean()
    again = world.copy(world.paid.debit)
    world.change(again, source=world.paid.transfer._replace(offset=FAR_OFFSET))
    assert found(legs.check(night(spark, world))) == []


@full
def test_a_leg_of_a_transfer_beyond_the_cut_waits(spark: SparkSession) -> None:
    world = Clean()
    paid = world.pay("q1", ALICE, BOB, 10)
    world.remove(paid.debit)
    at = (ORDERED, HOME)
    cut = manifest(world, stops={at: paid.transfer.offset}, highs={at: ends(world)[at]}, settled=False)
    checked = legs.check(night(spark, world, cut))
    assert found(checked) == []
    assert checked.in_flight == {"credit_legs": 0, "debit_postings": 1}


@full
def test_legs_of_house_accounts_are_compared_and_live_where_their_name_says(spark: SparkSession) -> None:
    world = Clean()
    world.pay("q1", ALICE, f"cash@{AWAY}", 100)
    altered = world.pay("q2", ALICE, f"cash@{AWAY}", 100)
    change_leg(world, altered.leg, amount_minor=99)
    elsewhere = world.pay("q3", ALICE, f"cash@{AWAY}", 100)
    named = msgspec.structs.replace(posting_at(world, elsewhere.debit), creditor=f"cash@{HOME}")
    world.change(elsewhere.debit, encode_ledger_event(named))
    change_leg(world, elsewhere.leg, creditor=f"cash@{HOME}")
    checked = legs.check(night(spark, world))
    assert found(checked) == [("amount", CHECK, str(trail.leg)) for trail in (altered, elsewhere)]
