"""Cost of the metrics: CPU seconds of the services for the same payments with and without them, in turns.

Invariant: a pair runs back to back on one cluster, in alternating order, so that warm-up and growth affect both alike.
Services with metrics are scraped every two seconds, as by the local Prometheus.
"""

import asyncio
import statistics
import time
import urllib.request
from pathlib import Path

from deploy.local.kafka.cluster import LocalKafka
from shared.kafka.admin.groups import wait_drained
from tests.bench.gauges import cpu_s, say
from tests.harness import Service
from tests.payments import payments
from tests.proof import send_raw

SERVICES = ("ingest", "transform", "ledger")
_SCRAPE_S = 2.0


async def measure_overhead(kafka: LocalKafka, directory: Path, pairs: int, count: int) -> dict[str, object]:
    """Run pairs, and compare.

    Args:
        kafka: with the topics, drained.
        directory: for logs.
        pairs: how many.
        count: payments in each run.

    Returns:
        Medians of CPU seconds per 100,000 payments of all three services, with and without; and each pair's overhead in
        per cent: median, least and most.
    """
    found: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs):
        for shown in (True, False) if pair % 2 else (False, True):
            name = f"{'with' if shown else 'without'}-{pair}"
            say(f"metrics' cost: pair {pair + 1} of {pairs}, {'with' if shown else 'without'}")
            found[shown].append(await _run(kafka, directory / name, name, count, shown=shown))
    cost = [100 * (with_s / without_s - 1) for with_s, without_s in zip(found[True], found[False], strict=True)]
    return {
        "pairs": pairs,
        "cpu_s_per_100k_with": round(statistics.median(found[True]), 2),
        "cpu_s_per_100k_without": round(statistics.median(found[False]), 2),
        "cost_percent": {
            "median": round(statistics.median(cost), 1),
            "least": round(min(cost), 1),
            "most": round(max(cost), 1),
        },
    }


async def _run(kafka: LocalKafka, directory: Path, name: str, count: int, *, shown: bool) -> float:
    """CPU seconds for each 100,000 payments, from when the services are ready until all is drained."""
    running = [Service(service, kafka.bootstrap_servers, directory) for service in SERVICES]
    for service in running:
        if not shown:
            service.process.argv[1:] = ["-m", "tests.bench.bare", service.name]
        service.start()
    try:
        for service in running:
            await asyncio.to_thread(service.wait_ready)
        before = sum(cpu_s(service.process.pid) for service in running)
        scrapes = asyncio.create_task(_scrape(running)) if shown else None
        await send_raw(kafka.bootstrap_servers, payments(name, count, accounts=5000))
        await wait_drained(kafka.bootstrap_servers, deadline_s=300)
        if scrapes is not None:
            scrapes.cancel()
        return (sum(cpu_s(service.process.pid) for service in running) - before) * 100_000 / count
    finally:
        for service in running:
            service.process.terminate()


async def _scrape(services: list[Service]) -> None:
    next_s = time.monotonic()
    while True:
        for service in services:
            await asyncio.to_thread(_get, service.port)
        next_s += _SCRAPE_S
        await asyncio.sleep(max(next_s - time.monotonic(), 0))


def _get(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        answer.read()
