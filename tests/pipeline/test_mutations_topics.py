"""Every class of error on the topics of a real cluster, over three nights: found by the run of its night, and by one
run over all; also where brokers have compacted, where a night was missed, and where a landed file was altered.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from pyspark.sql import SparkSession

from deploy.cut import take_cut
from shared.events import catalogue
from shared.events.effects import EffectState
from shared.events.headers import Coordinates
from spark.lake import Lake, LakeError
from spark.land import land
from spark.manifest import Manifest
from spark.metrics import Progress
from spark.nightly import work
from spark.report import Report
from spark.totals import digest
from tests.harness import cluster
from tests.pipeline.found import Found, Mutation
from tests.pipeline.mutations import ALL, passed
from tests.pipeline.sums import SUM, Sums
from tests.pipeline.worlds import Stages, Volume, finish
from tests.planted import MAIL
from tests.topics import Topics, ends
from tests.world import Trail

pytestmark = pytest.mark.full


NIGHTS = 3
ROUNDS = 4
LISTED_MAX = 10_000
ADDED_UP = {
    "records_in",
    "accepted",
    "deduplicated",
    "dead_lettered",
    "transfers",
    "postings",
    "declines",
    "reversals",
    "credit_legs",
    "effects_requested",
    "undecodable",
}
"""Figures of nights that add up to those of one run over all."""


class Nights:
    """A system that grows by a night at a time, with errors in each.

    Attributes:
        cuts: taken after each night.
        expected: breaks of records, over all nights.
        gaps: breaks of sums after each night.
    """

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self.world = Volume(rounds=0)
        self.cuts: list[Manifest] = []
        self.expected = Counter[Found]()
        self.gaps: list[dict[tuple[str, str], int]] = []
        self._topics = Topics(brokers, self.world)
        self._under_way: list[Stages] = []
        self._written: dict[tuple[str, int], int] = {}

    async def grow(self, mutations: Sequence[Mutation]) -> None:
        """Add a night: open payments end, payments of every kind, errors, payments that stay open, the cut."""
        world = self.world
        finish(self._under_way)
        for trails in (world.trails, world.pairs, world.effects):
            trails.clear()  # written records can no longer be altered
        for _ in range(ROUNDS):
            world.round()
        self._decide_twice(world.pay(f"doubtful-{len(self.cuts)}", "alice", "bob", 10))
        for mutation in mutations:
            self.expected.update(mutation(world))
        self._under_way = world.begin_slowly()
        _compact(world, self._written)
        await self._topics.write()
        self._written = ends(world)
        previous = self.cuts[-1] if self.cuts else None
        self.cuts.append(await take_cut(self.brokers, previous, now_ms=1_767_686_400_000 + len(self.cuts)))
        self.gaps.append(Sums(world).gaps())

    def _decide_twice(self, paid: Trail) -> None:
        """An effect in doubt that a person resolved: two results, and brokers keep the last."""
        trail = self.world.notify(paid.debit, "receipt", MAIL, EffectState.IN_DOUBT)
        self.world.decide(trail.effect, trail.request.partition, EffectState.SENT, revision=2, resends=1)
        self.world.remove(trail.result)


def _compact(world: Volume, since: dict[tuple[str, int], int]) -> None:
    """Remove all but the last new record of every second account, as compaction would."""
    for (topic, partition), records in list(world.logs.items()):
        if topic == catalogue.LEDGER_BALANCES:
            new = [record for record in records if record.offset >= since.get((topic, partition), 0)]
            last = {record.key: record.offset for record in new}
            for record in new:
                if sum(record.key or b"") % 2 and record.offset != last[record.key]:
                    world.remove(Coordinates(topic, partition, record.offset))


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    """Three nights, the mutations spread over them. Those of the first few come first, see ALL."""
    with cluster(tmp_path_factory.mktemp("mutations")) as kafka:
        made = Nights(kafka.bootstrap_servers)
        share = -(-len(ALL) // NIGHTS)
        for night in range(NIGHTS):
            asyncio.run(made.grow(ALL[night * share : (night + 1) * share]))
        made.expected.update(passed(made.world))
        made.expected.update(Sums(made.world).of_accounts())
        yield made


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The lake of the nights."""
    return Lake(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def reports(spark: SparkSession, nights: Nights, lake: Lake) -> list[Report]:
    """One report for each night. The second run did not take place; the third caught up on it."""
    found: list[Report] = []
    for number, cut in enumerate(nights.cuts):
        if number == 1:
            land(spark, cut, nights.brokers, lake, Progress(print))
        else:
            found += work(spark, lake, cut, nights.brokers, listed_max=LISTED_MAX, progress=Progress(print)).reports
    assert [report.cut.sequence for report in found] == [1, 2, 3]
    return found


@pytest.fixture(scope="module")
def full(spark: SparkSession, nights: Nights, lake: Lake, reports: list[Report]) -> Report:
    """The report of one run over all three nights."""
    [report], _ = work(spark, lake, nights.cuts[-1], None, full=True, listed_max=LISTED_MAX, progress=Progress(print))
    return report


def listed(report: Report) -> Counter[Found]:
    """Count the breaks that a report lists, which is all of them."""
    found = [Found(one.kind, one.topic, one.partition, one.offset, one.payment_id) for one in report.breaks.listed]
    assert len(found) == report.breaks.total
    return Counter(found)


def identities(report: Report) -> set[str]:
    """The ids of the breaks that a report lists."""
    found = [one.break_id for one in report.breaks.listed]
    assert len(found) == len(set(found))
    return set(found)


def test_each_error_is_found_in_one_run_over_all_nights(nights: Nights, full: Report) -> None:
    assert listed(full) == nights.expected + Counter({SUM: len(nights.gaps[-1])})
    assert full.verdict == "breaks"
    assert full.totals.digest == digest(Sums(nights.world).balances())


def test_after_the_last_night_the_same_breaks_are_open(nights: Nights, reports: list[Report], full: Report) -> None:
    assert listed(reports[-1]) == listed(full)
    assert identities(reports[-1]) == identities(full)
    assert all(report.breaks.opened for report in reports)
    for name in ADDED_UP:
        assert sum(report.figures[name] for report in reports) == full.figures[name], name
    assert set(full.figures) == {name for report in reports for name in report.figures}
    assert reports[-1].in_flight == full.in_flight
    assert reports[-1].totals.digest == full.totals.digest
    closing = [
        {one.currency: (one.closing_minor, one.in_transit_minor, one.clients) for one in report.totals.currencies}
        for report in (reports[-1], full)
    ]
    assert closing[0] == closing[1]


@pytest.mark.parametrize("fault", ["was altered", "is gone"])
def test_a_landed_file_that_is_altered_or_gone_is_noticed(
    spark: SparkSession, nights: Nights, lake: Lake, reports: list[Report], fault: str
) -> None:
    first, last = nights.cuts[0], nights.cuts[-1]
    landed = lake.landed(first).tables["postings"].files[0]
    path = lake.root / landed.path
    kept = path.read_bytes()
    if fault == "was altered":
        path.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    else:
        path.unlink()
    try:
        with pytest.raises(LakeError, match=f"{path.name} {fault}"):
            work(spark, lake, last, None, now_ms=1, progress=Progress(print))  # no audit is recorded: one is due
    finally:
        path.write_bytes(kept)


def test_the_nights_have_gaps_and_removed_records(nights: Nights) -> None:
    assert all(cut.settled for cut in nights.cuts)
    assert all(nights.gaps)
    balances = [at for at in nights.world.removed if at.topic == catalogue.LEDGER_BALANCES]
    results = [at for at in nights.world.removed if at.topic == catalogue.EFFECTS_RESULTS]
    assert len(balances) > 50
    assert len(results) >= NIGHTS
