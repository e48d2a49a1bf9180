"""Prometheus' rules: well formed and complete."""

import json
import re
from pathlib import Path

import pytest

from shared.telemetry.catalogue import BY_NAME, Kind
from tests import queries
from tests.harness import ROOT
from tests.queries import RULES, STATES, THRESHOLD, Rule, promtool

SEVERITIES = {"critical", "warning", "info"}

BROKERS = {
    "kafka_cluster_partition_laststableoffsetlag",
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "kafka_controller_kafkacontroller_activebrokercount",
    "kafka_controller_kafkacontroller_activecontrollercount",
    "kafka_controller_kafkacontroller_fencedbrokercount",
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "kafka_network_requestmetrics_errors_total",
    "kafka_network_requestmetrics_requests_total",
    "kafka_network_requestmetrics_totaltime_seconds",
    "kafka_server_addpartitionstotxnmanager_verificationfailurerate_count_total",
    "kafka_server_brokertopicmetrics_bytesin_total",
    "kafka_server_brokertopicmetrics_bytesout_total",
    "kafka_server_brokertopicmetrics_messagesin_total",
    "kafka_server_replicamanager_isrshrinks_total",
    "kafka_server_replicamanager_leadercount",
    "kafka_server_replicamanager_partitionswithlatetransactionscount",
    "kafka_server_replicamanager_produceridcount",
    "kafka_server_replicamanager_underminisrpartitioncount",
    "kafka_server_replicamanager_underreplicatedpartitions",
    "jvm_memory_used_bytes",
    "jvm_gc_collection_seconds_sum",
}
"""Metrics of the JMX agents, as deploy/prometheus/jmx.yml names them."""
REDIS = {
    "redis_commands_processed_total",
    "redis_connected_clients",
    "redis_db_keys",
    "redis_evicted_keys_total",
    "redis_memory_max_bytes",
    "redis_memory_used_bytes",
    "redis_up",
    "redis_uptime_in_seconds",
}
EVERYWHERE = {
    "ALERTS",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "scrape_duration_seconds",
    "up",
}
FOREIGN = BROKERS | REDIS | EVERYWHERE

ALERTS = {rule.name: rule for rule in queries.alerts()}


def test_promtool_finds_no_fault_in_the_rules() -> None:
    result = promtool("check", "rules", "--lint-fatal", *sorted(RULES.glob("*.yml")))
    assert result.returncode == 0, result.stdout + result.stderr


def test_prometheus_can_parse_the_queries_of_dashboards_and_runbooks(tmp_path: Path) -> None:
    asked = queries.dashboard_queries() + queries.runbook_queries()
    rules = [{"record": f"asked:number{number}", "expr": query.expression} for number, query in enumerate(asked)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "asked", "rules": rules}]}))  # JSON is YAML
    result = promtool("check", "rules", file)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(asked) > 100


def test_names_are_unique_and_in_the_form_of_their_kind() -> None:
    names = [rule.name for rule in (*queries.alerts(), *queries.recorded())]
    assert len(names) == len(set(names))
    for name in ALERTS:
        assert re.fullmatch(r"([A-Z][a-z]+){2,}", name), name
    for rule in queries.recorded():
        assert re.fullmatch(r"[a-z_]+:[a-z_]+:[a-z0-9_]+", rule.name), rule.name


@pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)
def test_an_alert_has_a_severity_a_description_and_links(alert: Rule) -> None:
    assert alert.labels.keys() == {"severity"}
    assert alert.labels["severity"] in SEVERITIES
    assert alert.annotations.keys() == {"summary", "description", "runbook_url", "dashboard"}
    assert not alert.annotations["summary"].endswith(".")
    assert alert.annotations["description"].endswith(".")
    assert alert.annotations["runbook_url"] == f"docs/runbooks/{alert.name}.md"
    assert (ROOT / alert.annotations["runbook_url"]).is_file()
    assert alert.annotations["dashboard"] in {board["uid"] for board in queries.dashboards().values()}
    assert alert.duration <= 30


def test_thresholds_are_in_one_file_and_each_is_used_and_watched() -> None:
    groups = queries.rule_groups()
    defined = {
        rule.name.removeprefix(THRESHOLD)
        for group in groups
        for rule in group.rules
        if rule.name.startswith(THRESHOLD) and Path(group.file).name == "thresholds.yml"
    }
    watched = ALERTS["ThresholdsMissing"].query
    assert set(re.findall(rf"absent\({THRESHOLD}(\w+)\)", watched)) == defined
    assert set(re.findall(r'"threshold", "(\w+)"', watched)) == defined
    compared = {
        name
        for alert in ALERTS.values()
        if alert.name != "ThresholdsMissing"
        for name in re.findall(rf"{THRESHOLD}(\w+)", alert.query)
    }
    assert compared == defined
    assert {alert.name for alert in ALERTS.values() if THRESHOLD not in alert.query} == STATES - {"ThresholdsMissing"}


def test_every_name_is_in_the_catalogue_or_known_as_foreign() -> None:
    ours = set(BY_NAME) | {f"{name}_bucket" for name, row in BY_NAME.items() if row.kind is Kind.HISTOGRAM}
    ours |= {f"{name}_{end}" for name, row in BY_NAME.items() if row.kind is Kind.HISTOGRAM for end in ("sum", "count")}
    made = {rule.name for rule in queries.recorded()}
    read = {name for query in queries.queries() for name in queries.metric_names(query.expression)}
    assert read
    assert read - ours - made - FOREIGN == set()
    assert FOREIGN - read == set()


def test_every_recorded_series_is_read_somewhere() -> None:
    reads = [(query.expression, queries.metric_names(query.expression)) for query in queries.queries()]
    for rule in queries.recorded():
        assert any(rule.name in names for expression, names in reads if expression != rule.query), rule.name


def test_selectors_use_labels_of_the_catalogue() -> None:
    scraped = {"job", "instance", "broker", "le"}
    asked = {pair for query in queries.queries() for pair in queries.selected_labels(query.expression)}
    of_ours = {(name, label) for name, label in asked if name in BY_NAME}
    assert of_ours
    assert {pair for pair in of_ours if pair[1] not in {*BY_NAME[pair[0]].labels, *scraped}} == set()
