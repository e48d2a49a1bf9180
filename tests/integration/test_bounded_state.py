"""ingest with full windows stays within its memory: 100,000 identities in each of the 6 partitions, below 250 MB."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from tests.harness import Service, cluster, wait_until
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import send_raw
from tests.tiers import full
from tests.windows import fill

pytestmark = [full, pytest.mark.timeout(180)]

WINDOW = 100_000
NEW = 20_000
RSS_MAX_MB = 250


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for this module only: ingest of other tests would have to restore these windows too."""
    with cluster(tmp_path_factory.mktemp("own-kafka")) as running:
        yield running


def peak_mb(service: Service) -> float:
    """Return the peak of resident memory."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024 / 1_000_000


def work(service: Service, records: int) -> float:
    """Wait until the service has consumed this many records in all; return the largest resident memory seen, in MB."""
    seen = [service.rss_mb()]

    def done() -> bool:
        seen.append(service.rss_mb())
        return service.metric("kafka_consumer_records_consumed_total") >= records

    wait_until(done, f"{records} records consumed")
    return max(seen)


def test_full_windows_stay_within_memory(
    own_kafka: LocalKafka, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    servers = own_kafka.bootstrap_servers
    repeats = asyncio.run(fill(servers, WINDOW))
    ingest = Service("ingest", servers, tmp_path).start()
    try:
        ingest.wait_ready()
        restored_mb = ingest.rss_mb()
        assert ingest.metric("once_restored_records_total") == WINDOW * PARTITIONS

        asyncio.run(send_raw(servers, repeats))
        work(ingest, len(repeats))
        assert ingest.metric("once_deduplicated_total") == len(repeats)
        asyncio.run(send_raw(servers, payments("new", NEW)))
        working_mb = work(ingest, len(repeats) + NEW)
        # The oldest entry was evicted: sent again, its payment is new
        asyncio.run(send_raw(servers, repeats[:1]))
        work(ingest, len(repeats) + NEW + 1)
        assert ingest.metric("once_deduplicated_total") == len(repeats)
        figures = {"restored_mb": restored_mb, "working_mb": working_mb, "peak_mb": peak_mb(ingest)}
    finally:
        ingest.process.terminate()
    for name, figure in figures.items():
        record_property(name, round(figure, 1))
    assert max(figures.values()) < RSS_MAX_MB, figures
