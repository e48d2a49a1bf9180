"""ingest's window of identities: the memory of full ones, and the time in which a new owner restores them.

One instance owns all partitions, which is the worst case.
"""

import asyncio
from datetime import datetime
from pathlib import Path

from deploy.local.kafka.cluster import LocalKafka
from shared.events.catalogue import PAYMENTS_IDENTITIES
from shared.kafka.admin.topics import ensure_topics
from tests.bench.gauges import cpu_s, high_water_mb, say
from tests.harness import Service
from tests.partitions import PARTITIONS
from tests.windows import fill


async def measure_window(directory: Path, entries: int) -> dict[str, float]:
    """Fill the windows of a new cluster, and start an ingest.

    Args:
        directory: for the cluster and the service.
        entries: of each partition's window.

    Returns:
        Seconds from the assignment of the partitions until the last one is restored, CPU seconds of ingest from its
        start, and the peak of its memory.
    """
    await asyncio.to_thread(directory.mkdir, parents=True)
    kafka = LocalKafka(directory / "kafka")
    say(f"{entries} identities into {PAYMENTS_IDENTITIES} of each partition")
    kafka.start()
    try:
        await asyncio.to_thread(kafka.wait_ready, 120)
        await ensure_topics(kafka.bootstrap_servers, PARTITIONS)
        await fill(kafka.bootstrap_servers, entries)
        say("restoring")
        service = Service("ingest", kafka.bootstrap_servers, directory, INGEST_WINDOW=str(entries)).start()
        try:
            return await asyncio.to_thread(_restored, service, entries)
        finally:
            service.process.terminate()
    finally:
        kafka.stop()


def _restored(service: Service, entries: int) -> dict[str, float]:
    service.wait_ready(600)
    used_s = cpu_s(service.process.pid)
    assert service.metric("once_restored_records_total") == entries * PARTITIONS
    times = {
        event: [datetime.fromisoformat(str(line["time"])) for line in service.log() if line["event"] == event]
        for event in ("partitions assigned", "partition taken over")
    }
    assert len(times["partition taken over"]) == PARTITIONS
    taken = max(times["partition taken over"]) - min(times["partitions assigned"])
    return {
        "entries": entries * PARTITIONS,
        "restore_s": round(taken.total_seconds(), 1),
        "cpu_s": round(used_s, 1),
        "rss_mb_max": round(high_water_mb(service.process.pid)),
    }
