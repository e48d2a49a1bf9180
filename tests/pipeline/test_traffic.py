"""Cuts while the services work, one with a transaction left open: no breaks, and no cut waits for it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from deploy.cut import take_cut
from shared.eos.records import Output
from shared.events import catalogue
from shared.kafka.admin.groups import PIPELINE, wait_drained
from shared.kafka.client.reader import stable_offsets
from spark.lake import Lake
from spark.manifest import Manifest
from spark.metrics import Progress
from spark.nightly import work
from tests.harness import cluster, eventually, services
from tests.pipeline.traffic import prepare, traffic
from tests.tiers import full
from tests.topics import producing

pytestmark = full


TRANSACTION_MS_MAX = 60_000
"""The brokers' limit for an open transaction."""
TAKEN_S_MAX = 20.0
"""A cut under way takes its deadline of 5 s, and more on two cores."""


@asynccontextmanager
async def left_open(brokers: str) -> AsyncIterator[None]:
    """A transaction in the ledger's topics that stays open until the context is left."""
    producer = await producing(brokers, timeout_ms=TRANSACTION_MS_MAX)
    try:
        await producer.begin()
        for topic, partition in ((catalogue.LEDGER_POSTINGS, 0), (catalogue.LEDGER_TRANSFERS, 1)):
            producer.append([Output(topic, partition, None, b"never committed", ())], time.time_ns() // 1_000_000)
        await producer.flush()
        yield
        await producer.abort()
    finally:
        await producer.discard()


async def more_postings(brokers: str, than: int, count: int = 500) -> int:
    """Wait until the ledger has written `count` more postings; returns the total."""

    async def written() -> int:
        return sum((await stable_offsets(brokers, [catalogue.LEDGER_POSTINGS])).values())

    async def enough() -> bool:
        return await written() >= than + count

    await eventually(enough, f"{count} more postings", 60)
    return await written()


async def take_cuts(brokers: str) -> list[Manifest]:
    """Take a cut under load, one with a transaction open as well, and one at rest."""
    await prepare(brokers)
    async with traffic(brokers, 1):
        there = await more_postings(brokers, 0)
        cuts = [await take_cut(brokers, None, now_ms=_now_ms())]
        async with left_open(brokers):
            await more_postings(brokers, there)
            begun = time.monotonic()
            cuts.append(await take_cut(brokers, cuts[0], now_ms=_now_ms()))
            assert time.monotonic() - begun < TAKEN_S_MAX
    # No outbox runs here: its requests wait
    await wait_drained(brokers, deadline_s=60, pipeline=PIPELINE[:3])
    return [*cuts, await take_cut(brokers, cuts[1], now_ms=_now_ms(), deadline_s=30)]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_records_in_flight_are_never_a_break(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    with cluster(tmp_path / "kafka") as kafka:
        brokers = kafka.bootstrap_servers
        with services(brokers, tmp_path, "ingest", "transform", "ledger"):
            cuts = asyncio.run(take_cuts(brokers))
        reports = [
            report
            for cut in cuts
            for report in work(spark, lake, cut, brokers, listed_max=1000, progress=Progress(print)).reports
        ]
    assert [report.breaks.listed for report in reports] == [(), (), ()]
    assert [cut.settled for cut in cuts] == [False, False, True]
    assert not cuts[1].topics[catalogue.LEDGER_POSTINGS][0].stable
    assert not cuts[1].topics[catalogue.LEDGER_TRANSFERS][1].stable
    for report in reports[:2]:
        assert sum(report.in_flight.values()) > report.in_flight["outbox"]
    waiting = {name: count for name, count in reports[-1].in_flight.items() if count}
    assert waiting == {"outbox": sum(report.figures["effects_requested"] for report in reports)}
    for name in ("records_in", "accepted", "transfers", "postings", "declines", "reversals", "credit_legs"):
        assert sum(report.figures[name] for report in reports) > 0, name
