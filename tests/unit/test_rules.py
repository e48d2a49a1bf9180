"""Prometheus' rules: well formed, complete, and covered by their promtool tests, which fail for broken rules."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.telemetry.catalogue import BY_NAME, Kind
from tests import queries
from tests.harness import ROOT
from tests.queries import RULES, Group, Rule
from tests.tiers import full

PROMTOOL_TESTS = RULES.parent / "tests"
SEVERITIES = {"critical", "warning", "info"}
THRESHOLD = "once:threshold:"
STATES = {  # the only good value is 0
    "ServiceDown",
    "TransactionWithoutCoordinator",
    "RedisDistrusted",
    "RedisDown",
    "ReconciliationNotClean",
    "PartitionsUnderMinIsr",
    "PartitionsOffline",
    "ControllerMissing",
    "UncleanLeaderElection",
    "ThresholdsMissing",
}

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


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=300)


def test_promtool_finds_no_fault_in_the_rules() -> None:
    result = promtool("check", "rules", "--lint-fatal", *sorted(RULES.glob("*.yml")))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.stack
def test_every_alert_is_silent_fires_and_ends_as_its_tests_say() -> None:
    result = promtool("test", "rules", *sorted(PROMTOOL_TESTS.glob("*.yml")))
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


# The tests, tested: each rule is broken in turn, and they must fail


@dataclass(frozen=True)
class Failure:
    """An expectation that was not met, as promtool reports it."""

    alert: str
    expected: bool
    got: bool


def failures(text: str) -> set[Failure]:
    """The failures in promtool's output, without those where other labels or annotations were expected."""
    found = re.findall(r"alertname: (\w+), time: \S+, *\n\s+exp:\[(\]?).*?\n\s+got:\[(\]?)", text, re.DOTALL)
    return {Failure(alert, not nothing, not silent) for alert, nothing, silent in found}


def broken(directory: Path, change: Callable[[Rule], dict[str, Any]]) -> set[Failure]:
    """Return the tests' failures with every rule changed."""
    shutil.copytree(PROMTOOL_TESTS, directory / "tests")
    (directory / "rules").mkdir()
    files: dict[str, list[dict[str, Any]]] = {}
    for group in queries.rule_groups():
        files.setdefault(Path(group.file).name, []).append(written(group, change))
    for name, groups in files.items():
        (directory / "rules" / name).write_text(json.dumps({"groups": groups}))  # JSON is YAML
    result = promtool("test", "rules", *sorted((directory / "tests").glob("*.yml")))
    assert "FAILED" in result.stdout + result.stderr
    return failures(result.stdout + result.stderr)


def written(group: Group, change: Callable[[Rule], dict[str, Any]]) -> dict[str, Any]:
    rules = []
    for rule in group.rules:
        plain: dict[str, Any] = {"expr": rule.query, "labels": rule.labels}
        if rule.type == "recording":
            plain["record"] = rule.name
        else:
            plain |= {"alert": rule.name, "annotations": rule.annotations, "for": f"{rule.duration:g}s"}
        rules.append(plain | change(rule))
    return {"name": group.name, "rules": rules}


@full
def test_an_alert_that_never_fires_is_noticed(tmp_path: Path) -> None:
    found = broken(tmp_path, lambda rule: {"expr": "vector(1) > 2"} if rule.type == "alerting" else {})
    assert found == {Failure(name, expected=True, got=False) for name in ALERTS}


@full
def test_an_alert_that_always_fires_is_noticed(tmp_path: Path) -> None:
    found = broken(tmp_path, lambda rule: {"expr": "vector(1)", "for": "0s"} if rule.type == "alerting" else {})
    assert {failure.alert for failure in found if not failure.expected and failure.got} == set(ALERTS)


@full
def test_an_alert_that_does_not_wait_is_noticed(tmp_path: Path) -> None:
    found = broken(tmp_path, lambda rule: {"for": "0s"} if rule.type == "alerting" else {})
    patient = {name for name, alert in ALERTS.items() if alert.duration > 0}
    assert found == {Failure(name, expected=False, got=True) for name in patient}


@pytest.mark.parametrize(("factor", "expected"), [(0.7, False), (100.0, True)], ids=["lower", "out of reach"])
@full
def test_another_threshold_is_noticed(tmp_path: Path, factor: float, *, expected: bool) -> None:
    def change(rule: Rule) -> dict[str, Any]:
        if not rule.name.startswith(THRESHOLD):
            return {}
        value = float(rule.query.removeprefix("vector(").removesuffix(")"))
        return {"expr": f"vector({value * factor if value else factor - 1})"}

    found = broken(tmp_path, change)
    compared = {name for name in ALERTS if name not in STATES}
    assert {
        failure.alert for failure in found if failure.expected is expected and failure.got is not expected
    } == compared
