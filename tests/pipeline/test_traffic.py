"""Nights under load: no record in flight is a break, and each decision follows from the records that it names.

Fees, rates and subscriptions change meanwhile, and one cut meets a transaction that is open: it does not wait for it.
Payments arrive one by one where a cut is taken, so that some are in flight. During a night they arrive in bursts: a
transaction of its own for each of them would take a core from the night.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from deploy.checkers.verdict import Kind, Verdict
from deploy.cut import take_cut
from deploy.verification import verify_cluster
from shared.eos.records import Output
from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS
from shared.kafka.admin.groups import PIPELINE, wait_drained
from shared.kafka.client.reader import stable_offsets
from spark.lake import Lake
from spark.manifest import Manifest
from spark.metrics import Progress
from spark.nightly import work
from spark.report import Report
from tests.harness import cluster, eventually, services
from tests.pipeline.traffic import prepare, reference_changes, traffic
from tests.tiers import full
from tests.topics import producing

RECORDS_PER_S = 40
CUTS_MIN = 3
DURATION_S = float(os.environ.get("ONCE_TEST_TRAFFIC_S", "75"))
"""How long the load lasts; half an hour is 1800."""
AFTER_S = 1_800.0
"""More than the nights take after it. A night takes both cores: a minute alone, four where other tests run."""
DRAINED_S = 120.0
TRANSACTION_MS_MAX = 60_000
"""The brokers' limit for an open transaction."""
TAKEN_S_MAX = 20.0
"""A cut under way takes its deadline of a second, and more on two cores."""

pytestmark = [full, pytest.mark.timeout(DURATION_S + AFTER_S)]


class Nights:
    """Cuts of a cluster under load, each reconciled before the next is taken."""

    def __init__(self, spark: SparkSession, brokers: str, lake: Lake) -> None:
        self._spark = spark
        self._brokers = brokers
        self._lake = lake
        self.cuts: list[Manifest] = []
        self.reports: list[Report] = []

    async def cut(self, deadline_s: float = 1.0) -> Manifest:
        previous = self.cuts[-1] if self.cuts else None
        now_ms = time.time_ns() // 1_000_000
        self.cuts.append(await take_cut(self._brokers, previous, now_ms=now_ms, deadline_s=deadline_s))
        return self.cuts[-1]

    async def reconcile(self, cut: Manifest) -> None:
        """Reconcile a cut while the load goes on."""
        done = await asyncio.to_thread(
            work, self._spark, self._lake, cut, self._brokers, listed_max=1000, progress=Progress(print)
        )
        self.reports += done.reports


@asynccontextmanager
async def left_open(brokers: str) -> AsyncIterator[None]:
    """A transaction in the ledger's topics that stays open until the context is left."""
    producer = await producing(brokers, timeout_ms=TRANSACTION_MS_MAX)
    try:
        await producer.begin()
        for topic, partition in ((LEDGER_POSTINGS, 0), (LEDGER_TRANSFERS, 1)):
            producer.append([Output(topic, partition, None, b"never committed", ())], time.time_ns() // 1_000_000)
        await producer.flush()
        yield
        await producer.abort()
    finally:
        await producer.discard()


async def more_postings(brokers: str, count: int = 100) -> None:
    """Wait until the ledger has written `count` more postings."""

    async def written() -> int:
        return sum((await stable_offsets(brokers, [LEDGER_POSTINGS])).values())

    there = await written()

    async def enough() -> bool:
        return await written() >= there + count

    await eventually(enough, f"{count} more postings", 60)


async def cut_into_open_transaction(brokers: str, nights: Nights) -> Manifest:
    async with left_open(brokers):
        await more_postings(brokers)
        begun = time.monotonic()
        cut = await nights.cut()
        assert time.monotonic() - begun < TAKEN_S_MAX
    assert not cut.topics[LEDGER_POSTINGS][0].stable
    assert not cut.topics[LEDGER_TRANSFERS][1].stable
    return cut


async def load(brokers: str, nights: Nights) -> Verdict:
    """Reconcile under load until the time is over, then at rest; returns the verdict of an audit."""
    await prepare(brokers)
    until = time.monotonic() + DURATION_S
    async with traffic(brokers, 1, RECORDS_PER_S) as sent, reference_changes(brokers, 2):
        cut = await cut_into_open_transaction(brokers, nights)
        while True:
            sent.in_bursts()
            await nights.reconcile(cut)
            if time.monotonic() >= until and len(nights.cuts) >= CUTS_MIN:
                break
            await sent.one_by_one()
            cut = await nights.cut()
    # No outbox runs here: its requests have no results
    await wait_drained(brokers, deadline_s=DRAINED_S, pipeline=PIPELINE[:3])
    await nights.reconcile(await nights.cut(deadline_s=30))
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
    waiting = {name: count for name, count in reports[-1].in_flight.items() if count}
    assert waiting == {"outbox": figures["effects_requested"]}
    for name in ("accepted", "transfers", "postings", "declines", "reversals", "credit_legs", "effects_requested"):
        assert figures[name] > 0, name


def sum_of(reports: list[Report]) -> dict[str, int]:
    """Figures of all nights together."""
    names = {name for report in reports for name in report.figures}
    return {name: sum(report.figures.get(name, 0) for report in reports) for name in sorted(names)}
