"""Wrong decisions, planted one by one: each is found where it is, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from shared.events.catalogue import LEDGER_BALANCES
from shared.events.postings import Account, encode_account
from spark import totals
from spark.checks import decisions
from tests import planted_decisions as planted
from tests.pipeline.landed import night_of
from tests.pipeline.nights import found, kept, manifest, night
from tests.pipeline.worlds import Volume
from tests.planted import ALICE, BOB, ELSEWHERE, HOME, Clean, posted_elsewhere
from tests.tiers import full, mostly_full

Plant = Callable[[Clean], None]

PRICES: tuple[Plant, ...] = (
    planted.fee_too_high,
    planted.fee_not_charged,
    planted.share_rounded_up,
    planted.fee_beyond_its_bound,
    planted.fee_of_the_house,
    planted.declined_with_a_rate,
    planted.priced_by_a_superseded_fee,
    planted.priced_by_a_later_fee,
    planted.priced_by_no_record,
    planted.priced_by_the_record_of_another_currency,
    planted.priced_by_nothing_though_a_fee_was_in_force,
    planted.a_rate_without_a_conversion,
    planted.fee_of_no_version_that_may_have_been_used,
)


def test_right_decisions_are_no_breaks(spark: SparkSession) -> None:
    checked = decisions.check(night(spark, Clean()))
    assert checked.breaks is None
    assert checked.figures == {"decisions_open": 0}


@pytest.mark.parametrize("plant", mostly_full(PRICES, [planted.fee_too_high]), ids=lambda plant: plant.__name__)
def test_a_wrong_price_is_found(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    plant(world)
    last = max(record.offset for record in world.logs["ledger.transfers", 3] if b'"transfer"' in (record.value or b""))
    # The world's subscriptions are of another time than some of these payments
    judged = [one for one in found(decisions.check(night(spark, world))) if one[1] != "subscribed"]
    assert judged == [("decision", "prices", f"ledger.transfers:3:{last}")]


@full
def test_a_wrong_rate_is_found_in_each_transfer_that_names_it(spark: SparkSession) -> None:
    world = Clean()
    planted.rate_of_another_record(world)
    assert len(found(decisions.check(night(spark, world)))) == len([world.converted, "w"])


COVER: dict[Plant, str] = {
    planted.declined_without_a_limit: "3:12",
    planted.declined_with_cover: "0:14",
    planted.declined_as_closed: "0:14",
    planted.declined_for_funds_though_closed: "0:18",
    planted.booked_beyond_the_limit: "0:14",
    planted.booked_one_beyond_the_limit: "0:16",
    planted.booked_though_closed: "3:14",
    planted.credited_though_closed: "2:6",
    planted.credited_to_suspense_though_open: "0:14",
    planted.reversed_to_suspense_though_open: "3:12",
}


SUBSCRIBED: dict[Plant, str] = {
    planted.request_and_result_lost: "3:10",
    planted.request_that_nobody_subscribed_to: "3:4",
    planted.request_in_another_order: "3:4",
    planted.subscription_for_everybody_ignored: "3:4",
    planted.notified_by_a_superseded_subscription: "3:4",
}


@pytest.mark.parametrize("plant", mostly_full(SUBSCRIBED, [next(iter(SUBSCRIBED))]), ids=lambda plant: plant.__name__)
def test_requests_other_than_those_subscribed_to_are_found(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    plant(world)
    at = f"ledger.postings:{SUBSCRIBED[plant]}"
    assert found(decisions.check(night(spark, world))) == [("decision", "subscribed", at)]


REFUSED: dict[Plant, str] = {
    planted.refuse("currency_unknown", amount_minor=0): "payments.dead-letter:3:0",
    planted.refuse("amount_not_positive", currency="XYZ"): "payments.dead-letter:3:0",
    planted.refuse("wrong_partition"): "payments.dead-letter:3:0",
    planted.refuse("field_invalid"): "payments.dead-letter:3:0",
    planted.refused_for_another_partition: "payments.dead-letter:3:0",
    planted.accepted_without_a_known_currency: "payments.accepted:3:2",
}


@pytest.mark.parametrize("plant", mostly_full(REFUSED, [next(iter(REFUSED))]), ids=lambda plant: plant.__name__)
def test_a_wrong_refusal_and_a_wrong_acceptance_are_found(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    plant(world)
    assert found(decisions.check(night(spark, world))) == [("decision", "refusals", REFUSED[plant])]


REVERSALS: tuple[Plant, ...] = (
    planted.original_found_and_not_reversed,
    planted.original_not_reversed_before,
    planted.original_reversed_and_not_found,
    planted.original_unknown_and_reversed,
)


@pytest.mark.parametrize("plant", mostly_full(REVERSALS, REVERSALS[:1]), ids=lambda plant: plant.__name__)
def test_a_reversal_that_was_declined_wrongly_is_found(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    plant(world)
    last = world.logs["ledger.postings", 3][-1].offset
    assert found(decisions.check(night(spark, world))) == [
        ("decision", "reversals declined", f"ledger.postings:3:{last}")
    ]


@full
def test_a_conflict_is_right_only_where_an_earlier_payment_says_something_else(spark: SparkSession) -> None:
    world = Clean()
    planted.refuse_payment(world, "identity_conflict", payment_id="p2")
    assert found(decisions.check(night(spark, world))) == []
    planted.refused_as_a_conflict_of_equal_content(world)
    planted.refuse_payment(world, "identity_conflict")
    letters = world.logs["payments.dead-letter", 3]
    assert found(decisions.check(night(spark, world))) == [
        ("decision", "refusals", f"payments.dead-letter:3:{letter.offset}") for letter in letters[-2:]
    ]


@pytest.mark.parametrize("plant", mostly_full(COVER, [planted.declined_with_cover]), ids=lambda plant: plant.__name__)
def test_a_wrong_decision_on_cover_is_found(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    plant(world)
    assert found(decisions.check(night(spark, world))) == [("decision", "cover", f"ledger.postings:{COVER[plant]}")]


@full
@pytest.mark.parametrize("plant", [planted.booked_beyond_the_limit, planted.declined_with_cover])
def test_cover_is_judged_with_what_the_run_before_left(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    first = manifest(world)
    before = night(spark, world, first)
    carried = kept({**decisions.check(before).carry, **totals.totals(before).carry})
    plant(world)
    later = night(spark, world, manifest(world, previous=first), carried)
    assert found(decisions.check(later)) == [("decision", "cover", f"ledger.postings:{COVER[plant]}")]


def test_a_decision_by_a_lost_posting_is_a_break_until_a_repair_writes_it(spark: SparkSession) -> None:
    world = Clean()
    at = world.pay("in", ALICE, BOB, 500_000).credit
    world.pay("out", BOB, ALICE, 507_500)
    world.remove(at)
    carried: dict[str, DataFrame] = {}
    cut = manifest(world)
    for expected in (1, 1, 0):
        now = night(spark, world, cut, carried)
        checked = decisions.check(now)
        assert found(checked) == [("decision", "cover", "ledger.postings:0:16")] * expected
        carried = kept({**checked.carry, **totals.totals(now).carry})
        if cut.sequence == 2:
            world.restore(at)
        cut = manifest(world, previous=cut)


def test_requests_above_the_cut_are_in_flight_until_they_are_seen_or_late(spark: SparkSession) -> None:
    world = Clean()
    request = world.last_receipt.request
    log = (request.topic, request.partition)
    stops = {log: request.offset}
    first = manifest(world, stops=stops, highs={log: request.offset + 2}, settled=False)
    checked = decisions.check(night(spark, world, first))
    assert found(checked) == []
    assert checked.in_flight == {"decisions": 1}
    carried = kept(checked.carry)
    seen = decisions.check(night(spark, world, manifest(world, previous=first), carried))
    assert (found(seen), seen.in_flight) == ([], {"decisions": 0})
    world.remove(request)
    lost = decisions.check(night(spark, world, manifest(world, previous=first), carried))
    assert found(lost) == [("decision", "subscribed", f"ledger.postings:{SUBSCRIBED[planted.request_and_result_lost]}")]


def test_a_posting_on_another_partition_than_its_accounts_is_found(spark: SparkSession) -> None:
    world = Clean()
    posted_elsewhere(world)
    record = world.logs["ledger.postings", ELSEWHERE][-1]
    stops = {("ledger.postings", ELSEWHERE): record.offset + 1}
    assert ("decision", "homes", f"ledger.postings:{ELSEWHERE}:{record.offset}") in found(
        decisions.check(night(spark, world, manifest(world, stops=stops)))
    )


@full
def test_a_state_with_terms_that_no_event_gave_is_found(spark: SparkSession, tmp_path: Path) -> None:
    world = Volume(rounds=1)
    state = Account(dict(world.balances[ALICE]), 10**9)
    source = world.logs["ledger.postings", HOME][-1].headers
    at = world.append(LEDGER_BALANCES, HOME, encode_account(state), b"account/alice")
    world.logs[LEDGER_BALANCES, HOME][-1] = world.at(at)._replace(headers=source)
    checked = decisions.check(night_of(spark, world, tmp_path))
    assert found(checked) == [("decision", "terms", str(at))]
