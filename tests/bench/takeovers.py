"""Cost of a take-over: after a clean end, after a kill, and after a torn transaction.

The kinds take turns on one cluster, so that warm-up and growth affect all alike.
"""

import statistics
import time
from pathlib import Path

from deploy.local.kafka.cluster import LocalKafka
from shared.events import catalogue
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Target
from tests.bench.gauges import say
from tests.owners import Owner
from tests.partitions import PARTITIONS

RECORDS = 1000
POSTINGS: Target = (catalogue.LEDGER_POSTINGS, 0)
REQUESTS: Target = (catalogue.EFFECTS_REQUESTS, 0)
KINDS = ("clean", "killed", "torn")


async def measure_takeovers(directory: Path, rounds: int) -> dict[str, object]:
    """Measure take-overs whose last transaction wrote RECORDS records to two partitions.

    Args:
        directory: for the brokers.
        rounds: of each kind.

    Returns:
        By kind, medians in milliseconds: of InitProducerId, which waits for the coordinator to end the predecessor's
        transaction, and of the new owner's recovery after it.
    """
    kafka = LocalKafka(directory / "kafka")
    say("starting three brokers")
    kafka.start()
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    try:
        kafka.wait_ready(120)
        await ensure_topics(kafka.bootstrap_servers, PARTITIONS)
        async with Brokers(kafka.bootstrap_servers) as brokers:
            for _ in range(rounds):
                for kind in KINDS:
                    taken[kind].append(await _take_over_after(kafka.bootstrap_servers, brokers, kind))
    finally:
        kafka.stop()
    return {
        "records": RECORDS,
        "rounds": rounds,
        **{
            kind: {
                "init_producer_id_ms": round(statistics.median(first for first, _ in times), 1),
                "recover_ms": round(statistics.median(second for _, second in times), 1),
                "recover_ms_max": round(max(second for _, second in times), 1),
            }
            for kind, times in taken.items()
        },
    }


async def _take_over_after(servers: str, brokers: Brokers, kind: str) -> tuple[float, float]:
    first = _owner(servers)
    await first.take_over()
    if kind == "clean":
        await first.commit((POSTINGS, REQUESTS), RECORDS // 2)
        await first.let_go()
    else:
        await first.prepare((POSTINGS, REQUESTS), RECORDS // 2)
        await first.tear(brokers, *([POSTINGS] if kind == "torn" else []))
    second = _owner(servers)
    begun = time.monotonic()
    await second.fence()
    fenced = time.monotonic()
    await second.recover()
    ended = time.monotonic()
    await second.let_go()
    return (fenced - begun) * 1000, (ended - fenced) * 1000


def _owner(servers: str) -> Owner:
    return Owner(servers, "owners", [0], catalogue.LEDGER_BALANCES)
