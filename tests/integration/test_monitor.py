"""The monitor as a process on real brokers: its metrics of transactions, groups and the last reconciliation."""

import asyncio
import json
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from deploy.cli.txn import txn
from deploy.drills.hanging import leave_hanging, unverified
from deploy.local.kafka.cluster import LocalKafka
from shared.events.catalogue import PAYMENTS_DEDUPLICATED, PAYMENTS_RAW, RECONCILIATION_RUNS
from shared.events.operations import RUN_SCHEMA_VERSION, RunOutcome, encode_run_outcome
from shared.kafka.client.idempotent import IdempotentWriter
from shared.settings import EXIT_CONFIG
from shared.telemetry.catalogue import BY_NAME
from tests.harness import Service, services, wait_until
from tests.open_transaction import abandon
from tests.partitions import partition_for
from tests.tiers import full

pytestmark = pytest.mark.timeout(180)

INTERVAL_S = 0.5
ANSWER_S = 1.0
OPEN = "kafka_cluster_transaction_open_seconds"
STUCK = "kafka_cluster_partition_lso_stuck_seconds"
LSO_LAG = "kafka_cluster_partition_lso_lag"
HANGING = "kafka_cluster_transactions_hanging"
BEHIND = "kafka_cluster_group_offsets_behind"
LAST_RUN = "once_reconcile_last_run_timestamp_seconds"


class Monitor:
    """A monitor process and its metrics."""

    def __init__(self, kafka: LocalKafka, directory: Path) -> None:
        self.kafka = kafka
        self.service = Service(
            "monitor",
            kafka.bootstrap_servers,
            directory,
            MONITOR_INTERVAL_S=str(INTERVAL_S),
            MONITOR_ANSWER_TIMEOUT_S=str(ANSWER_S),
        )

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """The series of a metric by label values, in the catalogue's order."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.service.port}/metrics", timeout=5) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return {
            tuple(sample.labels[label] for label in BY_NAME[name].labels): sample.value
            for family in families
            for sample in family.samples
            if sample.name == name
        }

    def rounds(self, outcome: str) -> float:
        """Return how many rounds had this outcome."""
        return self.series("once_monitor_rounds_total")[(outcome,)]

    def after_rounds(self, count: int, outcome: str = "answered") -> None:
        """Wait for further rounds, which show every earlier change."""
        wanted = self.rounds(outcome) + count
        wait_until(lambda: self.rounds(outcome) >= wanted, f"{count} more rounds {outcome}")


@contextmanager
def monitoring(kafka: LocalKafka, directory: Path) -> Iterator[Monitor]:
    """Run a monitor of these brokers, ready."""
    started = Monitor(kafka, directory)
    started.service.start()
    try:
        started.service.wait_ready()
        yield started
    finally:
        assert started.service.process.terminate() == 0


@pytest.fixture(scope="module")
def monitor(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitor]:
    with monitoring(kafka, tmp_path_factory.mktemp("monitor")) as started:
        yield started


@pytest.fixture
def monitor_of_three(replicated: LocalKafka, tmp_path: Path) -> Iterator[Monitor]:
    with monitoring(replicated, tmp_path) as started:
        yield started


def abort(kafka: LocalKafka, *words: str) -> None:
    result = CliRunner().invoke(txn, ["abort", *words, "--yes", "--bootstrap-servers", kafka.bootstrap_servers])
    assert result.exit_code == 0, result.output


def listed(kafka: LocalKafka, transactional_id: str) -> dict[str, Any]:
    """Return the row of `once txn list` for this transactional.id."""
    result = CliRunner().invoke(txn, ["list", "--all", "--json", "--bootstrap-servers", kafka.bootstrap_servers])
    rows: list[dict[str, Any]] = json.loads(result.stdout)["transactions"]
    return next(row for row in rows if row["transactional_id"] == transactional_id)


def test_an_open_transaction_ages_and_holds_the_last_stable_offset_until_it_ends(
    monitor: Monitor, tmp_path: Path
) -> None:
    name, target = f"monitored-{uuid.uuid4()}", (PAYMENTS_DEDUPLICATED, 2)
    where = (target[0], str(target[1]))
    begun = time.time()
    abandon(monitor.kafka.bootstrap_servers, tmp_path, name, [target])
    # The two metrics are not from the same moment: one may be older
    wait_until(
        lambda: monitor.series(STUCK)[where] > 1.5 and monitor.series(OPEN).get((name,), 0) > 1.0,
        "the last stable offset stuck",
    )
    first, age_s = monitor.series(STUCK)[where], monitor.series(OPEN)[(name,)]
    assert 1.0 < age_s < time.time() - begun + 1
    assert monitor.series(LSO_LAG)[where] == 1
    assert monitor.series("kafka_cluster_transactions_ongoing")[()] >= 1
    monitor.after_rounds(2)
    assert monitor.series(STUCK)[where] > first
    assert monitor.series(OPEN)[(name,)] > age_s
    assert monitor.series(HANGING)[where] == 0, "a transaction of the coordinator counts as hanging"
    abort(monitor.kafka, name)
    monitor.after_rounds(2)
    assert (name,) not in monitor.series(OPEN)
    assert (monitor.series(STUCK)[where], monitor.series(LSO_LAG)[where]) == (0, 0)


@full
def test_a_hanging_transaction_is_counted_on_its_partition_until_it_is_aborted(monitor: Monitor) -> None:
    target = (PAYMENTS_DEDUPLICATED, 5)
    where = (target[0], str(target[1]))

    async def hang() -> None:
        async with unverified(monitor.kafka):
            await leave_hanging(monitor.kafka.bootstrap_servers, target, b"hangs")

    asyncio.run(hang())
    wait_until(lambda: monitor.series(HANGING)[where] == 1, "the hanging transaction counted")
    result = CliRunner().invoke(txn, ["find-hanging", "--json", "--bootstrap-servers", monitor.kafka.bootstrap_servers])
    [hung] = json.loads(result.stdout)["hanging"]
    assert (hung["topic"], hung["partition"]) == target
    abort(
        monitor.kafka, "--topic", target[0], "--partition", str(target[1]), "--start-offset", str(hung["start_offset"])
    )
    wait_until(lambda: monitor.series(HANGING)[where] == 0, "no hanging transaction counted")
    assert sum(monitor.series(HANGING).values()) == 0


def test_the_last_reconciliation_is_the_newest_record(monitor: Monitor) -> None:
    def report_run(cut_id: str, verdict: str, **breaks: int) -> None:
        outcome = RunOutcome(RUN_SCHEMA_VERSION, cut_id, "m", "r", verdict, False, breaks)

        async def write() -> None:
            async with IdempotentWriter(monitor.kafka.bootstrap_servers) as writer:
                partition = partition_for(cut_id)
                await writer.send(RECONCILIATION_RUNS, partition, cut_id.encode(), encode_run_outcome(outcome))

        asyncio.run(write())

    begun = time.time()
    report_run("000001-aaaaaaaa", "breaks", lost=2, torn=1)
    wait_until(lambda: monitor.series("once_reconcile_breaks") == {("lost",): 2, ("torn",): 1}, "the breaks of the run")
    assert monitor.series("once_reconcile_clean") == {(): 0}
    first = monitor.series(LAST_RUN)[()]
    assert begun - 1 <= first <= time.time()
    report_run("000002-bbbbbbbb", "clean")
    wait_until(lambda: monitor.series("once_reconcile_clean") == {(): 1}, "the next run clean")
    assert monitor.series("once_reconcile_breaks") == {}
    assert monitor.series(LAST_RUN)[()] > first


def test_a_groups_lag_and_its_transactions_instances_are_shown(monitor: Monitor, tmp_path: Path) -> None:
    partition = partition_for("unknown")

    async def write() -> None:
        async with IdempotentWriter(monitor.kafka.bootstrap_servers) as writer:
            await writer.send(PAYMENTS_RAW, partition, b"unknown", b"no payment")

    asyncio.run(write())
    where, transactional_id = ("ingest", PAYMENTS_RAW, str(partition)), "ingest-0"
    wait_until(lambda: monitor.series(BEHIND).get(where, 0) >= 1, "ingest behind")
    with services(monitor.kafka.bootstrap_servers, tmp_path, "ingest"):
        wait_until(lambda: monitor.series(BEHIND)[where] == 0, "ingest caught up")
        # The offset counts as soon as its marker is written, before the coordinator records completion
        wait_until(lambda: listed(monitor.kafka, transactional_id)["state"] == "CompleteCommit", "its commit complete")
        row = listed(monitor.kafka, transactional_id)
    assert (row["service"], row["instance"], row["input"]) == ("ingest", "0", f"{PAYMENTS_RAW}:0,1,2,3,4,5")


@full
def test_a_killed_broker_is_named_and_the_others_answers_continue(monitor_of_three: Monitor, tmp_path: Path) -> None:
    monitor = monitor_of_three
    kafka, service = monitor.kafka, monitor.service
    name, target = f"survivor-{uuid.uuid4()}", (PAYMENTS_DEDUPLICATED, 4)
    where = (target[0], str(target[1]))
    abandon(kafka.bootstrap_servers, tmp_path, name, [target])
    wait_until(lambda: monitor.series(STUCK)[where] > 1 and (name,) in monitor.series(OPEN), "stuck")
    failed = monitor.rounds("failed")
    kafka.processes[1].kill()
    try:
        wait_until(lambda: "broker 1: " in service.not_ready_reasons().get("cluster", ""), "not ready, broker 1 named")
        before = monitor.series(STUCK)
        assert before[where] > 1, "the last value is lost"
        assert (name,) in monitor.series(OPEN)
        wait_until(lambda: monitor.rounds("failed") >= failed + 2, "one more round failed")
        wait_until(lambda: service.ready, "the other brokers have taken over")
        monitor.after_rounds(1)
        assert monitor.series(STUCK)[where] > before[where]
        assert monitor.series(STUCK).keys() == before.keys()
        assert (name,) in monitor.series(OPEN)
        abort(kafka, name)  # before its coordinator ends it by timeout
    finally:
        kafka.processes[1].start()
        kafka.wait_in_sync()
    wait_until(lambda: monitor.series(STUCK)[where] == 0, "free")
    assert service.logged("the cluster does not answer all")
    assert service.logged("the cluster answers all again")


def test_it_waits_for_a_cluster_and_names_the_reason(tmp_path: Path) -> None:
    alone = Service("monitor", "127.0.0.1:1", tmp_path, MONITOR_INTERVAL_S=str(INTERVAL_S)).start()
    try:
        wait_until(
            lambda: alone.process.running and "127.0.0.1:1" in str(_reasons(alone)), "not ready, with the reason"
        )
        assert alone.metric("once_monitor_rounds_total") >= 1
        assert alone.metric("once_monitor_last_round_timestamp_seconds") == 0
    finally:
        assert alone.process.terminate() == 0


def _reasons(service: Service) -> dict[str, str]:
    try:
        return service.not_ready_reasons()
    except OSError:
        return {}


def test_an_interval_of_0_is_refused(tmp_path: Path) -> None:
    refused = Service("monitor", "127.0.0.1:1", tmp_path, MONITOR_INTERVAL_S="0").start()
    assert refused.wait_exit() == EXIT_CONFIG
    assert refused.logged("settings refused")
