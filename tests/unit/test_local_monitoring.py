"""The local Prometheus' configuration, as promtool reads it, and the client that asks a Prometheus."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from deploy.drills.prometheus import Prometheus, PrometheusError
from deploy.local.ports import free_ports
from deploy.local.supervisor.monitoring import Target, prometheus_yml

TARGETS = [
    Target("ingest", "ingest-0", 1001),
    Target("kafka", "broker-0", 2001, {"broker": "0"}),
    Target("kafka", "broker-1", 2002, {"broker": "1"}),
    Target("prometheus", "prometheus-0", 3001),
]
RULES = """
groups:
  - name: some
    rules:
      - alert: IngestDown
        expr: up{job="ingest"} == 0
"""


def promtool(directory: Path, targets: list[Target], rules: Path) -> "subprocess.CompletedProcess[str]":
    path = directory / "prometheus.yml"
    path.write_text(prometheus_yml(targets, rules))
    argv = ["promtool", "check", "config", str(path)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["rules", 'with space, "quotes" and #'])
def test_promtool_accepts_the_configuration_and_finds_the_rules(tmp_path: Path, name: str) -> None:
    rules = tmp_path / name
    rules.mkdir()
    (rules / "some.yml").write_text(RULES)
    done = promtool(tmp_path, TARGETS, rules / "*.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout
    assert "1 rules found" in done.stdout


def test_promtool_accepts_a_configuration_without_rules(tmp_path: Path) -> None:
    done = promtool(tmp_path, TARGETS[:1], tmp_path / "none" / "*.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_has_all_its_targets_under_names_that_outlast_their_ports() -> None:
    text = prometheus_yml(TARGETS, Path("/rules/*.yml"))
    jobs = text.split("  - job_name: ")[1:]
    assert [job.partition("\n")[0] for job in jobs] == ['"ingest"', '"kafka"', '"prometheus"']
    services, brokers, _ = jobs
    assert "scrape_interval: 2s" in services
    assert "scrape_interval: 5s" in brokers
    assert brokers.split("      - targets: ")[1:] == [
        f'["127.0.0.1:200{node + 1}"]\n        labels:\n'
        f'          instance: "broker-{node}"\n          broker: "{node}"\n'
        for node in (0, 1)
    ]


class _Server:
    """A Prometheus with one answer to all requests, which it records."""

    def __init__(self) -> None:
        self.body = b""
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                self.send_response(200 if b'"success"' in outer.body else 400)
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class' name
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.client = Prometheus(f"http://127.0.0.1:{self.http.server_port}")

    def answers(self, data: object, status: str = "success", error: str = "") -> None:
        self.body = json.dumps({"status": status, "data": data, "error": error}).encode()


@pytest.fixture
def server() -> Iterator[_Server]:
    made = _Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


def test_a_query_gives_labels_and_values(server: _Server) -> None:
    result = [{"metric": {"job": "kafka", "broker": "1"}, "value": [1.5, "42"]}, {"metric": {}, "value": [1.5, "+Inf"]}]
    server.answers({"resultType": "vector", "result": result})
    found = server.client.query('sum by (job) (up{job="kafka"})')
    assert found == [({"job": "kafka", "broker": "1"}, 42.0), ({}, float("inf"))]
    (asked,) = server.asked
    assert urlsplit(asked).path == "/api/v1/query"
    assert parse_qs(urlsplit(asked).query) == {"query": ['sum by (job) (up{job="kafka"})']}


def test_alerts_have_names_states_and_times(server: _Server) -> None:
    alert = {
        "labels": {"alertname": "IngestDown", "instance": "ingest-0"},
        "annotations": {"summary": "down"},
        "state": "pending",
        "activeAt": "2026-11-21T10:20:25.163457123Z",
        "value": "0e+00",
    }
    server.answers({"alerts": [alert]})
    (found,) = server.client.alerts()
    assert (found.name, found.state, found.labels["instance"]) == ("IngestDown", "pending", "ingest-0")
    assert found.annotations == {"summary": "down"}
    assert found.active_at == datetime(2026, 11, 21, 10, 20, 25, 163457, UTC)


def test_a_target_is_up_once_its_last_scrape_was_answered(server: _Server) -> None:
    def target(instance: str, health: str, error: str) -> dict[str, object]:
        labels = {"job": "ingest", "instance": instance}
        return {"labels": labels, "scrapeUrl": "http://x/metrics", "health": health, "lastError": error}

    server.answers(
        {"activeTargets": [target("a", "up", ""), target("b", "down", "refused"), target("c", "unknown", "")]}
    )
    found = server.client.targets()
    assert [(one.labels["instance"], one.up, one.last_error) for one in found] == [
        ("a", True, ""),
        ("b", False, "refused"),
        ("c", False, ""),
    ]


@pytest.mark.parametrize(
    "ask", [lambda client: client.query("up"), lambda client: client.alerts(), lambda client: client.targets()]
)
def test_an_invalid_answer_is_an_error_and_not_an_empty_list(
    server: _Server, ask: Callable[[Prometheus], object]
) -> None:
    server.answers(None, "error", "parse error")
    with pytest.raises(PrometheusError, match="parse error"):
        ask(server.client)
    server.answers({"resultType": "scalar", "result": [1.5, "1"]})
    with pytest.raises(PrometheusError, match="gives no answer to"):
        ask(server.client)
    server.body = b"<html>"
    with pytest.raises(PrometheusError, match="gives no answer to"):
        ask(server.client)


def test_a_prometheus_that_is_down_is_an_error() -> None:
    with pytest.raises(PrometheusError, match="gives no answer to alerts"):
        Prometheus(f"http://127.0.0.1:{free_ports(1)[0]}").alerts()
