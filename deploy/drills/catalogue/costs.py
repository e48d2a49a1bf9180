"""E: what the guarantees cost: throughput by the producer's settings, and a reader's latency by the commit interval."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from statistics import median, quantiles
from typing import Final

from deploy.drills.clients.raw import committed_count, log_of
from deploy.drills.clients.tools import PRODUCER_PERFORMANCE, kafka_tool
from deploy.drills.drill import TARGETS, Series, drill
from deploy.drills.hops import until_settled
from deploy.drills.producers import producer, put
from deploy.drills.stage import Stage
from deploy.drills.waiting import until
from shared.eos.records import Output
from shared.kafka.client.batches import pages
from shared.kafka.client.cluster import Cluster

RECORDS, WARM_UP, RECORD_BYTES = 20_000, 5_000, 200
PARTITIONS: Final = 3
IN_FLIGHT: Final = (1, 5)
INTERVALS_MS: Final = (10, 50, 200, 1_000)
EVERY_S: Final = 0.01
"""Between two records whose latency is measured."""
MEASURED_S: Final = 2.0
_FIGURES: Final = re.compile(r"([\d.]+) records/sec .*, ([\d.]+) ms avg latency, .* (\d+) ms 99th")


@drill(
    "E10",
    "costs",
    "A read_committed reader waits for the commit; the tables have its latency, and what idempotence costs a producer",
    tags=["costs"],
    within_s=240.0,
    reading=["KIP-98", "docs/adr/0007-pacing.md"],
)
async def costs(stage: Stage) -> None:
    """Kafka's own performance test writes with and without idempotence, with one and with five requests in flight. Then
    a transactional producer writes a record every 10 ms and commits at several intervals, while a read_committed reader
    follows. On a busy machine, compare rows of one table only: they were measured in the same minute.
    """
    await throughput(stage)
    medians = await latencies(stage)
    longest = INTERVALS_MS[-1]
    stage.expect_that(
        f"median latency with a commit every {longest} ms",
        f"{medians[longest]:.0f} ms",
        "at least a quarter of the interval",
        holds=medians[longest] >= longest / 4,
    )


async def throughput(stage: Stage) -> None:
    """Fill the table and the plot of a producer's throughput."""
    rows = stage.journal.tables["cost of idempotence, Java client, acks=all"] = []
    lines: dict[str, list[tuple[float, float]]] = {"with idempotence": [], "without": []}
    for in_flight in IN_FLIGHT:
        for line, idempotent in (("without", False), ("with idempotence", True)):
            per_s, average_ms, worst_ms = await performance(stage, in_flight, idempotent=idempotent)
            lines[line].append((in_flight, per_s))
            rows.append(
                {
                    "producer": line,
                    "in flight": in_flight,
                    "records per s": round(per_s),
                    "mean ms to the acknowledgement": average_ms,
                    "p99 ms": worst_ms,
                }
            )
    stage.journal.plots.append(Series("Throughput of one producer", "requests in flight", "records per s", lines))


async def performance(stage: Stage, in_flight: int, *, idempotent: bool) -> tuple[float, float, float]:
    """Run the Java client's performance test; return records per second, and mean and p99 of the latency in ms."""
    topic = await stage.topic(partitions=PARTITIONS)
    words = f"--topic {topic} --num-records {RECORDS} --warmup-records {WARM_UP} --record-size {RECORD_BYTES}"
    properties = (
        f"bootstrap.servers={stage.bootstrap_servers}",
        "acks=all",
        f"enable.idempotence={str(idempotent).lower()}",
        f"max.in.flight.requests.per.connection={in_flight}",
    )
    stage.step(f"{'with' if idempotent else 'without'} idempotence, {in_flight} in flight")
    ended = await kafka_tool(
        PRODUCER_PERFORMANCE, *words.split(), "--throughput", "-1", "--command-property", *properties
    )
    batches = [batch for number in range(PARTITIONS) for batch in await log_of(stage.access, topic, number)]
    stored = sum(batch.last_offset - batch.base_offset + 1 for batch in batches)
    stage.journal.records += stored
    stage.expect("records stored", stored, RECORDS)
    stage.expect("batches have a sequence", all(one.base_sequence >= 0 for one in batches), idempotent)
    found = _FIGURES.findall(ended.output)
    stage.expect("exit code of the performance test", ended.exit_code, 0)
    per_s, average_ms, worst_ms = (float(figure) for figure in found[-1])
    return per_s, average_ms, worst_ms


async def latencies(stage: Stage) -> dict[int, float]:
    """Fill the table and the plot of a reader's latency; return the medians in ms, by commit interval."""
    rows = stage.journal.tables["latency of a read_committed reader, by commit interval"] = []
    medians: list[tuple[float, float]] = []
    worst: list[tuple[float, float]] = []
    for interval_ms in INTERVALS_MS:
        found, transactions = await latency(stage, interval_ms)
        cuts = quantiles(found, n=100, method="inclusive")
        medians.append((interval_ms, cuts[49]))
        worst.append((interval_ms, cuts[98]))
        rows.append(
            {
                "commit every ms": interval_ms,
                "transactions": transactions,
                "records": len(found),
                "p50 ms": round(cuts[49], 1),
                "p99 ms": round(cuts[98], 1),
                "max ms": round(max(found), 1),
            }
        )
    lines = {"p50": medians, "p99": worst}
    stage.journal.plots.append(Series("Latency of a reader", "commit interval, ms", "ms", lines))
    return {int(interval_ms): median for interval_ms, median in medians}


async def latency(stage: Stage, interval_ms: int) -> tuple[list[float], int]:
    """Return the times from each record's write to its reader in ms, and how many transactions there were."""
    topic = await stage.topic()
    async with reading(stage, topic) as arrived:
        written, transactions = await commit_every(stage, topic, interval_ms)
        await until(lambda: len(arrived) >= written, "the reader has all records")
    stage.journal.records += written
    stage.expect(f"records read, {interval_ms} ms", len(arrived), written)
    return [(at_ns - begun_ns) / 1e6 for begun_ns, at_ns in arrived], transactions


async def commit_every(stage: Stage, topic: str, interval_ms: int) -> tuple[int, int]:
    """Write records that carry their time, and commit at an interval; return how many records and transactions."""
    written = commits = 0
    async with producer(stage, topic, timeout_ms=30_000) as producing:
        await producing.init(30)
        end_s = time.monotonic() + max(MEASURED_S, 3 * interval_ms / 1000)
        while time.monotonic() < end_s:
            await producing.begin()
            commit_s = time.monotonic() + interval_ms / 1000
            while True:
                value = json.dumps(time.monotonic_ns()).encode()
                producing.append([Output(topic, 0, None, value, ())], time.time_ns() // 1_000_000)
                await producing.flush()
                written += 1
                if time.monotonic() + EVERY_S >= commit_s:
                    break
                await asyncio.sleep(EVERY_S)
            await asyncio.sleep(max(0.0, commit_s - time.monotonic()))
            await producing.commit()
            commits += 1
    return written, commits


@asynccontextmanager
async def reading(stage: Stage, topic: str) -> AsyncIterator[list[tuple[int, int]]]:
    """Follow a topic read_committed; yield a growing list of records' times of writing and of arrival, in ns."""
    arrived: list[tuple[int, int]] = []
    target = topic, 0

    async def follow() -> None:
        async with Cluster(stage.access) as cluster:
            await cluster.partitions([topic])
            async with aclosing(pages(cluster, {target: 0}, committed=True)) as read:
                async for page in read:
                    now_ns = time.monotonic_ns()
                    for batch in page.batches:
                        arrived.extend((int(record.value or b"0"), now_ns) for record in batch.records(target))

    following = asyncio.create_task(follow())
    try:
        yield arrived
    finally:
        following.cancel()
        await asyncio.wait({following})


SIZES: Final = (1, 10, 100, 1_000, 10_000)
COMMIT_ROUNDS: Final = 12
WARM_UP_ROUNDS: Final = 3
COMMITTED_BYTES: Final = 250
GROWTH_MAX: Final = 3.0
"""How much longer a commit of 10,000 records may take than one of a single record, by their medians."""


@drill(
    "B18",
    "commit-cost-by-size",
    "The commit of 10,000 records takes no longer than that of one",
    targets=TARGETS,
    tags=["transactions", "figures"],
    reading=["KIP-98", "docs/performance.md"],
)
async def commit_cost_by_size(stage: Stage) -> None:
    """Commit transactions of 1 to 10,000 records, all sizes in turn, and time two parts of each: writing the records,
    and EndTxn up to its answer. EndTxn is one request and its markers one for each partition, whatever was written.
    """
    topic = await stage.topic()
    written: dict[int, list[float]] = {size: [] for size in SIZES}
    committed: dict[int, list[float]] = {size: [] for size in SIZES}
    async with producer(stage, f"{stage.name}-0", timeout_ms=60_000) as producing:
        await producing.init(30)
        for number in range(WARM_UP_ROUNDS + COMMIT_ROUNDS):
            for size in SIZES:
                await producing.begin()
                begun_s = time.monotonic()
                await put(producing, topic, *[bytes(COMMITTED_BYTES)] * size)
                flushed_s = time.monotonic()
                await producing.commit()
                if number >= WARM_UP_ROUNDS:
                    written[size].append((flushed_s - begun_s) * 1000)
                    committed[size].append((time.monotonic() - flushed_s) * 1000)
    stage.journal.records = (WARM_UP_ROUNDS + COMMIT_ROUNDS) * sum(SIZES)
    await until_settled(stage, topic)  # EndTxn is answered before its markers are written
    in_log = await committed_count(stage.access, topic)
    stage.expect("records committed", in_log, stage.journal.records)
    writes = {size: round(median(times), 2) for size, times in written.items()}
    commits = {size: round(median(times), 2) for size, times in committed.items()}
    stage.journal.tables["a transaction's time by its records, medians"] = [
        {"records": size, "write ms": writes[size], "commit ms": commits[size]} for size in SIZES
    ]
    lines = {
        "write": [(float(size), writes[size]) for size in SIZES],
        "commit": [(float(size), commits[size]) for size in SIZES],
    }
    stage.journal.plots.append(Series("A transaction's time by its size", "records", "ms", lines))
    grown = round(commits[SIZES[-1]] / commits[SIZES[0]], 2)
    stage.expect_that(
        f"commit of {SIZES[-1]} records, by that of one", grown, f"at most {GROWTH_MAX}", holds=grown <= GROWTH_MAX
    )
    stage.expect_that(
        f"writing {SIZES[-1]} records, by commit",
        writes[SIZES[-1]],
        "more",
        holds=writes[SIZES[-1]] > commits[SIZES[-1]],
    )
