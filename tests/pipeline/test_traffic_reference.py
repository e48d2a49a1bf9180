"""Fees, rates and subscriptions that change under load: each decision follows from the records that it names."""

import asyncio
import os
import time
from pathlib import Path

from pyspark.sql import SparkSession

from deploy.checkers.verdict import Kind, Verdict
from deploy.cut import take_cut
from deploy.verification import verify_cluster
from shared.kafka.admin.groups import PIPELINE, wait_drained
from spark.lake import Lake
from spark.manifest import Manifest
from spark.metrics import Progress
from spark.nightly import work
from spark.report import Report
from tests.harness import cluster, services
from tests.pipeline.traffic import prepare, reference_changes, traffic
from tests.tiers import full

pytestmark = full

RECORDS_PER_S = 40
CUTS_MIN = 3
DURATION_S = float(os.environ.get("ONCE_TEST_TRAFFIC_S", "75"))
"""How long the load lasts; half an hour is 1800."""
DRAINED_S = 120.0


class Nights:
    """Cuts of a cluster under load, each reconciled before the next is taken."""

    def __init__(self, spark: SparkSession, brokers: str, lake: Lake) -> None:
        self._spark = spark
        self._brokers = brokers
        self._lake = lake
        self.cuts: list[Manifest] = []
        self.reports: list[Report] = []

    async def reconcile(self, deadline_s: float = 1.0) -> None:
        """Take a cut, and reconcile it while the load goes on."""
        previous = self.cuts[-1] if self.cuts else None
        now_ms = time.time_ns() // 1_000_000
        cut = await take_cut(self._brokers, previous, now_ms=now_ms, deadline_s=deadline_s)
        self.cuts.append(cut)
        done = await asyncio.to_thread(
            work, self._spark, self._lake, cut, self._brokers, listed_max=1000, progress=Progress(print)
        )
        self.reports += done.reports


async def load(brokers: str, nights: Nights) -> Verdict:
    """Reconcile under load until the time is over, then at rest; returns the verdict of an audit."""
    await prepare(brokers)
    until = time.monotonic() + DURATION_S
    async with traffic(brokers, 1, RECORDS_PER_S), reference_changes(brokers, 2):
        while time.monotonic() < until or len(nights.cuts) < CUTS_MIN:
            await nights.reconcile()
    # No outbox runs here: its requests have no results
    await wait_drained(brokers, deadline_s=DRAINED_S, pipeline=PIPELINE[:3])
    await nights.reconcile(deadline_s=30)
    return await verify_cluster(brokers, wait=False)


def test_decisions_by_reference_data_that_changes_are_right(spark: SparkSession, tmp_path: Path) -> None:
    with cluster(tmp_path / "kafka") as kafka:
        brokers = kafka.bootstrap_servers
        nights = Nights(spark, brokers, Lake(tmp_path / "lake"))
        with services(brokers, tmp_path, "ingest", "transform", "ledger"):
            verdict = asyncio.run(load(brokers, nights))
    reports, figures = nights.reports, sum_of(nights.reports)
    print({"cuts": len(reports), **figures, "verify": verdict.kinds, "verify_open": verdict.decisions_open})
    assert [report.breaks.listed for report in reports] == [()] * len(nights.cuts)
    assert [cut.settled for cut in nights.cuts] == [False] * (len(nights.cuts) - 1) + [True]
    assert (reports[-1].verdict, figures["decisions_open"], reports[-1].in_flight["decisions"]) == ("clean", 0, 0)
    assert verdict.kinds == {Kind.EFFECT_MISSING.value: verdict.effects_requested}
    assert verdict.decisions_open == 0
    assert verdict.records_in == figures["records_in"]
    for name in ("transfers", "declines", "effects_requested"):
        assert figures[name] > 0, name


def sum_of(reports: list[Report]) -> dict[str, int]:
    """Figures of all nights together."""
    names = {name for report in reports for name in report.figures}
    return {name: sum(report.figures.get(name, 0) for report in reports) for name in sorted(names)}
