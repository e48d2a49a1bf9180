"""What a night costs: SQL executions, jobs, files and bytes."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.costs import measured
from tests.pipeline.landings import EqualNights, Landings

EXECUTIONS_MAX = 40
"""SQL executions of a sound night, its landing included."""


def test_a_small_night_starts_few_executions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = EqualNights()
    landings = Landings(spark, world, tmp_path, monkeypatch)
    for _ in range(2):
        world.night()
        cut = landings.cut()
        with measured(spark, monkeypatch) as landing:
            landings.land(cut)
        with measured(spark, monkeypatch) as run:
            report = landings.run(cut)
        with capsys.disabled():
            print(f"\nlanding: {landing}\nrun: {run}")
        assert report.verdict == "clean"
    assert report.figures["records_in"] == 10
    assert len(landing.executions) + len(run.executions) <= EXECUTIONS_MAX
