"""ingest with full windows stays within its memory: 100,000 identities in each of the 6 partitions, below 250 MB."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from services.ingest.domain import remember
from services.ingest.service import IDENTITY_PREFIX
from shared.events import catalogue
from shared.events.identity import content_digest, identity_digest
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.kafka.client.idempotent import IdempotentWriter
from tests.harness import Service, cluster, wait_until
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import send_raw
from tests.tiers import full

pytestmark = [full, pytest.mark.timeout(180)]

WINDOW = 100_000
ENTRY_BYTES = 40  # two digests and an offset
KNOWN_EVERY = 10_000
NEW = 20_000
RSS_MAX_MB = 250


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for this module only: ingest of other tests would have to restore these windows too."""
    with cluster(tmp_path_factory.mktemp("own-kafka")) as running:
        yield running


def known(partition: int, number: int) -> Payment:
    """Return a payment whose identity is in the window."""
    return Payment(f"known-{number}", f"cash@{partition}", "2378", 100 + number, "CZK", SCHEMA_VERSION)


async def fill(servers: str) -> list[bytes]:
    """Write a full window of each partition to the changelog and return the payments of some entries."""
    chance = random.Random(1)
    repeats = []
    async with IdempotentWriter(servers) as writer:
        for partition in range(PARTITIONS):
            for number in range(WINDOW):
                entry = chance.randbytes(ENTRY_BYTES)
                if number % KNOWN_EVERY == 0:
                    payment = known(partition, number)
                    identity = identity_digest(payment.debtor, payment.payment_id)
                    # Not at the offset of the repeat: a record is not a repeat of itself
                    entry = identity + remember(content_digest(payment), WINDOW + number)
                    repeats.append(encode_instruction(payment))
                assert len(entry) == ENTRY_BYTES
                key = b"%b%d" % (IDENTITY_PREFIX, number)
                await writer.write(catalogue.PAYMENTS_IDENTITIES, partition, key, entry)
    return repeats


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
    repeats = asyncio.run(fill(servers))
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
