"""Wrong decisions, planted one by one: each is found where it is, and nothing else."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from spark.checks import decisions
from tests import planted_decisions as planted
from tests.pipeline.nights import found, night
from tests.planted import Clean

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
