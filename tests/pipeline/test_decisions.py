"""Wrong decisions, planted one by one: each is found where it is, and nothing else."""

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark import totals
from spark.checks import decisions
from tests import planted_decisions as planted
from tests.pipeline.nights import found, kept, manifest, night
from tests.planted import ALICE, BOB, Clean

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
    assert checked.breaks.collect() == []
    assert checked.figures == {"decisions_open": 0}


@pytest.mark.parametrize("plant", PRICES, ids=lambda plant: plant.__name__)
def test_a_wrong_price_is_found(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    plant(world)
    last = max(record.offset for record in world.logs["ledger.transfers", 3] if b'"transfer"' in (record.value or b""))
    assert found(decisions.check(night(spark, world))) == [("decision", "prices", f"ledger.transfers:3:{last}")]


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


@pytest.mark.parametrize("plant", COVER, ids=lambda plant: plant.__name__)
def test_a_wrong_decision_on_cover_is_found(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    plant(world)
    assert found(decisions.check(night(spark, world))) == [("decision", "cover", f"ledger.postings:{COVER[plant]}")]


@pytest.mark.parametrize("plant", [planted.booked_beyond_the_limit, planted.declined_with_cover])
def test_cover_is_judged_with_what_the_run_before_left(spark: SparkSession, plant: Plant) -> None:
    world = Clean()
    first = manifest(world)
    before = night(spark, world, first)
    carried = kept(decisions.check(before).carry | totals.totals(before).carry)
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
        carried = kept(checked.carry | totals.totals(now).carry)
        if cut.sequence == 2:
            world.restore(at)
        cut = manifest(world, previous=cut)
