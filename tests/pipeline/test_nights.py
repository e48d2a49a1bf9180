"""What a night costs: SQL executions, jobs, files and bytes."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.checks import ALL as CHECKS
from spark.land import slices
from tests.pipeline.costs import Cost, measured
from tests.pipeline.flat import FIRST, equal_nights, growths
from tests.pipeline.landings import EqualNights, Landings
from tests.pipeline.mutations import ALL
from tests.pipeline.worlds import Volume
from tests.planted import FILE, MAIL
from tests.tiers import full

EXECUTIONS_MAX = 40
"""SQL executions of a sound night in which effects wait, its landing included."""
NIGHTS = 40
"""Equal ones; `python -m tests.pipeline.flat` makes 100 by default."""


@full
def test_a_small_night_starts_few_executions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = EqualNights()
    landings = Landings(spark, world, tmp_path, monkeypatch)
    for number in range(2):
        world.night()
        paid = world.pay(f"paid-{number}", "client-0", "client-1", 100)
        waits = world.notify(paid.debit, "receipt", FILE)
        world.remove(waits.result)
        world.wait(waits.effect, waits.request.partition)
        cut = landings.cut()
        landings.progress.seconds.clear()
        with measured(spark, monkeypatch) as landing:
            landings.land(cut)
        with measured(spark, monkeypatch) as run:
            report = landings.run(cut)
        with capsys.disabled():
            print(f"\nlanding: {landing}\nrun: {run}")
        assert report.verdict == "clean"
    assert (report.figures["records_in"], report.in_flight["effects_waiting"]) == (11, 2)
    assert landings.progress.seconds.keys() == {
        *(f"land:{part.topic}" for part in slices(cut)),
        *(f"check:{name}" for name in CHECKS),
        *("read_back", "verify", "totals", "register", "publish"),
    }
    assert min(landings.progress.seconds.values()) > 0
    assert len(landing.executions) + len(run.executions) <= EXECUTIONS_MAX


@full
def test_an_effect_that_waits_is_carried_over_nights_without_records(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = EqualNights()
    world.night()
    paid = world.pay("paid", "client-0", "client-1", 100)
    waits, lost = (world.notify(paid.debit, "receipt", destination) for destination in (FILE, MAIL))
    world.remove(waits.result)
    world.remove(lost.result)
    world.wait(waits.effect, waits.request.partition)
    landings = Landings(spark, world, tmp_path, monkeypatch)
    first, *later = (landings.run(landings.cut()) for _ in range(3))
    assert [report.in_flight["effects_waiting"] for report in (first, *later)] == [1, 1, 1]
    assert (first.breaks.total, first.breaks.opened) == (1, 1)
    assert {(report.breaks.total, report.breaks.opened) for report in later} == {(1, 0)}


@full
def test_all_breaks_stay_open_over_a_night_without_records(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Volume()
    planted = [one for mutation in ALL for one in mutation(world)]
    landings = Landings(spark, world, tmp_path, monkeypatch)
    first, second = (landings.run(landings.cut()) for _ in range(2))
    assert first.breaks.total >= len(planted)
    assert (second.breaks.total, second.breaks.opened, second.breaks.closed) == (first.breaks.total, 0, 0)
    assert second.breaks.by_kind == first.breaks.by_kind


@full
@pytest.mark.timeout(3600)
def test_a_night_costs_what_an_earlier_one_did(spark: SparkSession, tmp_path: Path) -> None:
    costs = list(equal_nights(spark, tmp_path, NIGHTS, print))
    assert growths(costs[FIRST - 1], costs[-1]) == []


def test_growth_is_named() -> None:
    first = Cost(["landing", "run"], jobs=50, listed=100, files=100, read_bytes=10_000)
    assert growths(first, Cost(["landing"], jobs=49, listed=105, files=105, read_bytes=10_500)) == []
    more = Cost(["landing", "run", "run"], jobs=51, listed=106, files=106, read_bytes=10_501)
    assert [line.partition(":")[0] for line in growths(first, more)] == [
        *("SQL executions", "jobs", "paths listed", "files read", "bytes read"),
    ]
