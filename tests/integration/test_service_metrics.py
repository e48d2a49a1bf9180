"""Metrics of running services: they agree with the topics, and lag is exactly 0 when caught up."""

import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from shared.events import catalogue
from shared.telemetry.catalogue import BY_NAME
from tests.harness import Service, services, wait_until
from tests.partitions import PARTITIONS
from tests.payments import payments
from tests.proof import assert_exactly_once, send_raw, verdict
from tests.tiers import full

pytestmark = pytest.mark.timeout(180)

PAYMENTS = 3_000
WAITED_S = 2.0


@pytest.fixture(scope="module")
def running(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    brokers, directory = kafka.bootstrap_servers, tmp_path_factory.mktemp("services")
    with (
        services(brokers, directory, "ingest", "ledger") as others,
        services(brokers, directory, "transform") as paused,
    ):
        yield others | paused


def scraped(service: Service) -> dict[str, dict[str, float]]:
    """Scrape the values by name and by labels as written."""
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            found.setdefault(name, {})[labels.rstrip("}")] = float(value)
    return found


async def test_load_shows_in_every_metric(kafka: LocalKafka, running: dict[str, Service]) -> None:
    before = verdict(kafka.bootstrap_servers)["accepted"]  # includes other modules' payments, processed by now
    consumed = {name: service.metric("kafka_consumer_records_consumed_total") for name, service in running.items()}
    values = list(payments("shown", PAYMENTS, accounts=200))
    await send_raw(kafka.bootstrap_servers, [*values, values[0], b"no payment"])
    result = verdict(kafka.bootstrap_servers)
    assert_exactly_once(result)
    assert result["accepted"] == before + PAYMENTS
    inputs = {"ingest": PAYMENTS + 2, "transform": PAYMENTS, "ledger": 2 * PAYMENTS}
    hops = {
        "ingest": catalogue.PAYMENTS_ACCEPTED,
        "transform": catalogue.LEDGER_TRANSFERS,
        "ledger": catalogue.LEDGER_POSTINGS,
    }
    for name, service in running.items():
        wait_until(lambda service=service: caught_up(service), f"{name} is caught up")  # type: ignore[misc]
        shown = scraped(service)
        # A batch that is aborted and read again counts once
        assert sum(shown["kafka_consumer_records_consumed_total"].values()) - consumed[name] == inputs[name]
        assert set(shown["kafka_consumer_lso_lag"].values()) == {0.0}
        assert set(shown["once_restore_remaining_offsets"].values()) == {0.0}
        assert len(shown["kafka_producer_epoch"]) == 1
        assert set(shown["kafka_producer_open_transaction_age_seconds"].values()) == {0.0}
        commits = shown["kafka_producer_transactions_total"]['cause="none",outcome="committed"']
        assert commits == shown["kafka_producer_txn_commit_seconds_count"][""] > 0
        assert shown["kafka_producer_transaction_records_sum"][""] >= inputs[name]
        label = f'hop="{hops[name]}"'
        assert 0 < shown["once_end_to_end_latency_seconds_count"][label] <= commits
        assert shown["process_resident_memory_bytes"][""] > 0
        assert "python_gc_collections_total" in shown
    assert running["ingest"].metric("once_dead_letters_total") >= 1
    assert running["ingest"].metric("once_deduplicated_total") >= 1
    entries, size = (running["ingest"].metric(name) for name in ("once_state_entries", "once_state_bytes"))
    assert entries >= PAYMENTS
    assert 20 < size / entries < 200


def caught_up(service: Service) -> bool:
    lags = scraped(service).get("kafka_consumer_records_lag", {})
    return len(lags) == PARTITIONS and set(lags.values()) == {0.0}


@full
async def test_latency_includes_the_wait_for_a_paused_service(kafka: LocalKafka, running: dict[str, Service]) -> None:
    before = {name: latency_sum(running[name]) for name in ("transform", "ledger")}
    running["transform"].process.pause()
    begun_s = time.monotonic()
    try:
        await send_raw(kafka.bootstrap_servers, payments("waited", 60, accounts=200))
        wait_until(lambda: caught_up(running["ingest"]), "ingest has processed them")
        wait_until(lambda: time.monotonic() - begun_s > WAITED_S, "they have waited for longer than hops take")
    finally:
        running["transform"].process.resume()
    assert_exactly_once(verdict(kafka.bootstrap_servers))
    for name, already in before.items():
        assert latency_sum(running[name]) - already > WAITED_S / 2


def latency_sum(service: Service) -> float:
    return service.metric("once_end_to_end_latency_seconds_sum")


def test_a_log_line_about_a_partition_names_its_ids(running: dict[str, Service]) -> None:
    for name, service in running.items():
        lines = [line for line in service.log() if line["event_id"] == "partition-taken-over"]
        assert len(lines) >= PARTITIONS
        for line in lines:
            assert line["transactional_id"] == f"{name}-0"
            assert isinstance(line["producer_epoch"], int)
            assert isinstance(line["member_epoch"], int)


def test_every_exported_name_is_in_the_catalogue(running: dict[str, Service]) -> None:
    for service in running.values():
        names = {
            re.sub(r"_(bucket|count|sum)$", "", name) if name not in BY_NAME else name for name in scraped(service)
        }
        own = {name for name in names if name.startswith(("once_", "kafka_"))}
        assert own
        assert own <= BY_NAME.keys()


def test_a_revoked_partition_loses_its_series(kafka: LocalKafka, running: dict[str, Service], tmp_path: Path) -> None:
    second = Service("transform", kafka.bootstrap_servers, tmp_path, instance="second").start()
    try:
        second.wait_ready()
        wait_until(
            lambda: [len(scraped(s).get("once_state_entries", {})) for s in (running["transform"], second)] == [3, 3],
            "each has half of the partitions",
        )
        for service in (running["transform"], second):
            shown = scraped(service)
            assert len(shown["once_state_entries"]) == len(shown["once_restore_remaining_offsets"]) == 3
            assert shown["kafka_consumer_rebalance_total"][""] >= 1
            assert shown["kafka_consumer_rebalance_latency_seconds_count"][""] >= 1
    finally:
        second.process.terminate()
