"""Every class of error, planted in a system with volume: each is found where it is, and nothing else is reported."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shared.events import catalogue
from shared.events.headers import Coordinates
from shared.events.postings import Entry
from shared.events.transfers import AccountOpened
from spark.night import Kind
from spark.totals import digest
from tests import planted_decisions as planted
from tests import wrong_decisions
from tests.partitions import PARTITIONS, partition_for
from tests.pipeline.found import Found, found
from tests.pipeline.landed import counted, night_of, run
from tests.pipeline.mutations import ALL, passed
from tests.pipeline.sums import Sums
from tests.pipeline.worlds import LARGE, Volume
from tests.planted import FILE, Clean, posting_at, with_entries
from tests.planted_owners import decide_all_kinds
from tests.tiers import full, mostly_full
from tests.world import Trail
from tests.world_effects import EffectTrail

AT_LEAST_OF_EACH = 2
ALSO: dict[Callable[[Clean], None], list[tuple[Kind, Callable[[Clean], Coordinates]]]] = {
    planted.rate_of_another_record: [(Kind.DECISION, lambda world: world.converted.transfer)],
    planted.fee_of_the_house: [(Kind.AMOUNT, wrong_decisions.transfer)],  # the row alone shows it
    planted.accepted_without_a_known_currency: [
        (Kind.AMOUNT, lambda world: world.paid.transfer),
        (Kind.AMOUNT, lambda world: world.repeated[1]),
    ],
}
"""What else a wrong decision breaks."""
OF_CUTS = {Kind.OFFSETS, Kind.EXPIRED}
"""Breaks of a cut, and not of a record."""


@full
def test_a_clean_system_has_no_breaks_and_the_right_totals(spark: SparkSession, tmp_path: Path) -> None:
    world = Volume()
    world.begin_slowly()
    breaks, figures, in_flight, totals = run(night_of(spark, world, tmp_path))
    assert breaks == []
    assert (figures["accounts_off"], figures["currencies_off"]) == (0, 0)
    assert figures["records_in"] == sum(len(world.logs[catalogue.PAYMENTS_RAW, p]) for p in range(PARTITIONS))
    assert {name: count for name, count in in_flight.items() if count} == {
        "ingest": 1,
        "transform": 1,
        "ledger": 2,
        "effects_waiting": len(world.effects["waiting"]),
    }
    assert totals.balances_digest == digest(Sums(world).balances())
    large = next(total for total in totals.currencies if total.currency == LARGE)
    assert large.turnover_minor == world.turnover_large() > 2**63
    assert (large.closing_minor, large.in_transit_minor) == (0, 0)


@pytest.mark.parametrize(("newest", "settled"), mostly_full([(False, True), (True, False)], [(False, True)]))
def test_planted_errors_are_all_found_and_nothing_else(
    spark: SparkSession, tmp_path: Path, newest: bool, settled: bool
) -> None:
    world = Volume(newest=newest)
    if not newest:  # the mutations take the last records then, which these decisions would be
        decide_all_kinds(world)
    expected = Counter(one for mutation in ALL for one in mutation(world))
    expected.update(passed(world))
    of_sums = Sums(world).breaks()
    assert of_sums.total() > 10
    expected += of_sums
    by_kind = Counter(one.kind for one in expected)
    assert all(by_kind[kind] >= AT_LEAST_OF_EACH for kind in set(Kind) - {Kind.UNDECODABLE, *OF_CUTS}), by_kind
    breaks, *_ = run(night_of(spark, world, tmp_path, settled=settled))
    assert counted(breaks) == expected


@full
def test_wrong_decisions_are_all_found_by_all_checks_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    world = Volume(rounds=1)
    expected = Counter[Found]()
    for number, wrong in enumerate(wrong_decisions.ALL, 1):
        world.begin_scene(number)
        wrong.plant(world)
        expected[found(Kind.DECISION, wrong.where(world), world)] += 1
        if wrong.plant in ALSO:
            expected.update(found(kind, where(world), world) for kind, where in ALSO[wrong.plant])
    assert len(expected) >= 25
    expected += Sums(world).breaks()
    breaks, *_ = run(night_of(spark, world, tmp_path))
    assert counted(breaks) == expected


@full
def test_errors_in_the_last_records_before_the_cut_are_found(spark: SparkSession, tmp_path: Path) -> None:
    world = Volume(rounds=1)
    repeated, paid, trail = _edge(world)
    world.change(repeated, b"{}")
    expected = Counter([found(Kind.UNDECODABLE, repeated, world)])
    # On each partition another error
    for at in (paid[1].debit, paid[1].leg, paid[1].credit):
        world.remove(at)
    expected[found(Kind.MISSING, paid[1].transfer, world)] += 1
    expected[found(Kind.DUPLICATE, world.copy(paid[2].debit), world)] += 1
    posting = posting_at(world, paid[3].debit)
    doubled = [Entry(one.account, one.currency, 2 * one.amount_minor) for one in posting.entries]
    world.change(paid[3].debit, with_entries(posting, *doubled))
    expected.update([found(Kind.AMOUNT, paid[3].debit, world), found(Kind.AMOUNT, paid[3].leg, world)])
    world.remove(paid[4].raw)
    expected[found(Kind.UNCOMMITTED, paid[4].accepted, world)] += 1
    world.committed["transform"][5] = paid[5].accepted.offset
    expected[found(Kind.TORN, paid[5].transfer, world)] += 1
    world.change(paid[5].credit, origin=world.first.raw)
    expected[found(Kind.ORPHAN, paid[5].credit, world)] += 1
    world.remove(trail.result)
    expected[found(Kind.EFFECT, trail.request, world)] += 1
    last = {(*at, records[-1].offset) for at, records in world.logs.items() if records}
    assert {one.kind for one in expected if one[1:4] in last} == {
        kind.value for kind in set(Kind) - OF_CUTS - {Kind.DECISION}
    }
    expected += Sums(world).breaks()
    breaks, *_ = run(night_of(spark, world, tmp_path))
    assert counted(breaks) == expected


def _edge(world: Volume) -> tuple[Coordinates, list[Trail], EffectTrail]:
    """A repeat, and a payment from each partition to the next; the first payment has a receipt."""
    repeated = world.repeat(world.last.raw)[1]
    homes = {partition_for(f"edge-{number}"): f"edge-{number}" for number in range(100)}
    for account in homes.values():
        world.account_event(AccountOpened(account, None))
    paid = [world.pay(f"edge-{p}", homes[p], homes[(p + 1) % PARTITIONS], 100 + p) for p in range(PARTITIONS)]
    return repeated, paid, world.notify(paid[0].debit, "receipt", FILE)
