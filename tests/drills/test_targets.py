"""Prometheus scrapes all of a monitored stack, and survives the death of a broker and its own."""

from collections.abc import Callable
from functools import partial

import pytest

from deploy.drills.prometheus import Prometheus, PrometheusError, Sample
from deploy.local.supervisor.monitoring import Monitoring
from deploy.local.supervisor.stack import Stack
from deploy.local.supervisor.topology import SERVICES
from shared.events.catalogue import TOPICS
from tests.harness import wait_until
from tests.partitions import PARTITIONS
from tests.tiers import full

Ask = Callable[[str], list[Sample]]

SERIES_MAX = 1_500
REQUESTS = (
    "Produce",
    "FetchConsumer",
    "FetchFollower",
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddPartitionsToTxnVerification",
    "AddOffsetsToTxn",
    "TxnOffsetCommit",
    "EndTxn",
    "WriteTxnMarkers",
)
OF_EACH_BROKER = (
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_server_replicamanager_atminisrpartitioncount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    "kafka_server_replicamanager_offlinereplicacount",
    "kafka_server_replicamanager_leadercount",
    "kafka_server_replicamanager_partitioncount",
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_isrexpands_total",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_activebrokercount",
    "kafka_controller_kafkacontroller_fencedbrokercount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_server_replicamanager_produceridcount",
    "kafka_server_replicamanager_partitionswithlatetransactionscount",
    "kafka_server_addpartitionstotxnmanager_verificationfailurerate_count_total",
    'kafka_server_addpartitionstotxnmanager_verificationtime_seconds{quantile="0.99"}',
    "kafka_server_brokertopicmetrics_invalidoffsetorsequencerecords_total",
    "kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize",
    "kafka_coordinator_transaction_transactionmarkerchannelmanager_logappendretryqueuesize",
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
    "kafka_server_brokertopicmetrics_messagesin_total",
    'kafka_network_requestmetrics_errors_total{request="Metadata", error="NONE"}',
    *(f'kafka_network_requestmetrics_requests_total{{request="{request}"}}' for request in REQUESTS),
    *(
        f'kafka_network_requestmetrics_totaltime_seconds{{request="{request}", quantile="{quantile}"}}'
        for request in REQUESTS
        for quantile in ("0.50", "0.99", "0.999")
    ),
    'jvm_memory_used_bytes{area="heap"}',
    'jvm_memory_max_bytes{area="heap"}',
    "sum by (broker) (jvm_gc_collection_seconds_sum)",
    'process_cpu_seconds_total{job="kafka"}',
)


@pytest.fixture
def stack(monitored_stack: Stack) -> Stack:
    return monitored_stack


@pytest.fixture
def monitoring(stack: Stack) -> Monitoring:
    assert stack.monitoring is not None
    return stack.monitoring


@pytest.fixture
def ask(monitoring: Monitoring) -> Ask:
    """Query Prometheus; empty while it does not answer."""

    def asked(expression: str) -> list[Sample]:
        try:
            return Prometheus(monitoring.url).query(expression)
        except PrometheusError:
            return []

    return asked


def answer(ask: Ask, expression: str) -> list[Sample]:
    """Wait for the first answer that is not empty."""
    found: list[Sample] = []

    def answered() -> bool:
        found.extend(ask(expression))
        return bool(found)

    wait_until(answered, f"{expression} answered", 20)
    return found


def expected_targets(stack: Stack) -> set[tuple[str, str]]:
    """Job and instance of every target of a stack."""
    return {
        *((name, f"{name}-0") for name in SERVICES),
        *(("kafka", f"broker-{node.node_id}") for node in stack.kafka.nodes),
        ("redis", "redis-0"),
        ("prometheus", "prometheus-0"),
    }


def targets_up(monitoring: Monitoring) -> set[tuple[str, str]]:
    """Job and instance of every target whose last scrape was answered; none while Prometheus does not answer."""
    try:
        found = Prometheus(monitoring.url).targets()
    except PrometheusError:
        return set()
    return {(target.labels["job"], target.labels["instance"]) for target in found if target.up}


def wait_all_up(stack: Stack, monitoring: Monitoring) -> None:
    wanted = expected_targets(stack)
    wait_until(lambda: targets_up(monitoring) == wanted, "every target up, and no others", 20)


def test_every_target_is_up_under_its_name(stack: Stack, monitoring: Monitoring) -> None:
    wait_all_up(stack, monitoring)


def test_every_broker_has_the_figures_that_rules_and_dashboards_use(stack: Stack, ask: Ask) -> None:
    brokers = {str(node.node_id) for node in stack.kafka.nodes}

    def from_all(expression: str) -> bool:
        return {found.labels.get("broker") for found in ask(expression)} == brokers

    for expression in OF_EACH_BROKER:
        wait_until(partial(from_all, expression), f"{expression} of every broker", 20)
    (controllers,) = answer(ask, "sum(kafka_controller_kafkacontroller_activecontrollercount)")
    assert controllers.value == 1
    assert all(found.value < SERIES_MAX for found in answer(ask, 'scrape_samples_scraped{job="kafka"}'))


def test_the_last_stable_offset_is_watched_in_all_topics_of_ours_and_no_others(ask: Ask) -> None:
    wanted = {(topic.name, str(partition)) for topic in TOPICS for partition in range(PARTITIONS)}

    watched: set[tuple[str, str]] = set()

    def all_there() -> bool:
        nonlocal watched
        found = ask("kafka_cluster_partition_laststableoffsetlag")
        watched = {(sample.labels["topic"], sample.labels["partition"]) for sample in found}
        return len(watched) >= len(wanted)

    wait_until(all_there, "every partition", 20)
    assert watched == wanted


def test_redis_is_scraped(ask: Ask) -> None:
    wait_until(lambda: [found.value for found in ask("redis_up")] == [1], "Redis up", 20)


def test_a_killed_prometheus_comes_back_with_its_data(stack: Stack, monitoring: Monitoring, ask: Ask) -> None:
    wait_all_up(stack, monitoring)
    pid = monitoring.prometheus.process.pid
    monitoring.prometheus.kill()
    wait_until(lambda: monitoring.prometheus.process.pid not in {None, pid}, "started again", 20)
    wait_all_up(stack, monitoring)
    (before,) = answer(ask, 'min_over_time(process_start_time_seconds{job="prometheus"}[5m])')
    (now,) = answer(ask, 'process_start_time_seconds{job="prometheus"}')
    assert before.value < now.value, "its data is lost"


@full
def test_a_killed_brokers_target_goes_down_and_comes_back(stack: Stack, monitoring: Monitoring, ask: Ask) -> None:
    wait_all_up(stack, monitoring)
    broker = next(component for component in stack.components if component.name == "broker-1")
    broker.release()  # else it would be back between two scrapes
    broker.kill()
    down = 'up{job="kafka", broker="1"} == 0'
    wait_until(lambda: bool(ask(down)), "the target down", 20)
    broker.start()
    stack.wait_ready(120)
    wait_all_up(stack, monitoring)


def test_prometheus_logs_neither_its_daily_round_nor_errors(stack: Stack) -> None:
    text = (stack.directory / "logs" / "prometheus.log").read_text()
    assert "level=info" not in text
    assert "level=error" not in text
