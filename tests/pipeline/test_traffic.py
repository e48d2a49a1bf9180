"""Cuts while the services work, one with a transaction left open: no breaks, and no cut waits for it."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from deploy.cut import take_cut
from shared.eos.records import Output
from shared.events import catalogue
from shared.events.effects import EVERY_ACCOUNT, Subscription, Subscriptions, encode_subscriptions
from shared.events.transfers import AccountOpened, encode_transfer
from shared.kafka.admin.groups import PIPELINE, wait_drained
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import stable_offsets
from spark.lake import Lake
from spark.manifest import Manifest
from spark.nightly import work
from tests.bulk import payments
from tests.harness import cluster, eventually, services
from tests.partitions import partition_for, partition_for_bytes
from tests.tiers import full
from tests.topics import producing

pytestmark = full


CLIENTS = 40
RECORDS_PER_S = 400
TRANSACTION_MS_MAX = 60_000
"""The brokers' limit for an open transaction."""
TAKEN_S_MAX = 20.0
"""A cut under way takes its deadline of 5 s, and more on two cores."""


async def prepare(brokers: str) -> None:
    """Open most of the accounts, and subscribe all accounts to effects."""
    subscriptions = Subscriptions(
        (Subscription("receipt", "file:receipts"), Subscription("event", "https://example.org/hook"))
    )
    async with IdempotentWriter(brokers) as writer:
        await writer.send(
            catalogue.REFERENCE_SUBSCRIPTIONS, 0, EVERY_ACCOUNT.encode(), encode_subscriptions(subscriptions)
        )
        for number in range(CLIENTS - 4):
            account = f"client-{number}"
            value = encode_transfer(AccountOpened(account, None))
            await writer.send(catalogue.LEDGER_TRANSFERS, partition_for(account), account.encode(), value)


@asynccontextmanager
async def traffic(brokers: str, seed: int) -> AsyncIterator[None]:
    """Payments of all kinds at a steady rate until the context is left."""
    task = asyncio.create_task(_send(brokers, seed))
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _send(brokers: str, seed: int) -> None:
    begun, count = time.monotonic(), 0
    async with IdempotentWriter(brokers) as writer:
        for debtor, value in payments(10**6, CLIENTS, random.Random(seed), prefix=f"night-{seed}"):
            partition = partition_for_bytes(value) if debtor is None else partition_for(debtor)
            key = None if debtor is None else debtor.encode()
            await writer.write(catalogue.PAYMENTS_RAW, partition, key, value)
            count += 1
            await asyncio.sleep(max(begun + count / RECORDS_PER_S - time.monotonic(), 0))


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
            for report in work(spark, lake, cut, brokers, listed_max=1000, progress=print).reports
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
