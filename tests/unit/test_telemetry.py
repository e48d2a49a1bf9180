"""Metrics catalogue, health, telemetry endpoint and logs."""

import io
import json
import logging
import re
from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from shared.telemetry import metrics
from shared.telemetry.health import Health
from shared.telemetry.logs import JsonFormatter, configure
from shared.telemetry.server import TelemetryServer
from tests.harness import ROOT

KINDS = {"counter": "Counter", "gauge": "Gauge", "histogram": "Histogram"}


def test_every_metric_of_the_module_is_in_the_catalogue_once() -> None:
    objects = [
        value for name, value in vars(metrics).items() if name.isupper() and type(value).__name__ in KINDS.values()
    ]
    names = [row.name for row in metrics.CATALOGUE]
    assert len(objects) == len(names) == len(set(names)) > 15


@pytest.mark.parametrize("row", metrics.CATALOGUE, ids=lambda row: row.name)
def test_a_metric_is_named_and_described_by_the_rules(row: metrics.Metric) -> None:
    assert re.fullmatch(r"once_[a-z][a-z_]*", row.name)
    assert row.name.endswith("_total") == (row.kind == "counter")
    assert row.kind != "histogram" or row.name.endswith("_seconds")
    assert row.help.endswith(".")
    assert not {"payment_id", "account", "debtor"} & set(row.labels)


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def test_readiness_follows_the_conditions() -> None:
    health = Health(kafka="not connected", assignment="no partitions yet")
    async with TelemetryServer(0, health) as server:
        assert (await get(server.port, "/healthz"))[0] == 200
        status, text = await get(server.port, "/readyz")
        assert status == 503
        assert json.loads(text)["reasons"] == {"kafka": "not connected", "assignment": "no partitions yet"}
        health.met("kafka")
        health.met("assignment")
        assert (await get(server.port, "/readyz"))[0] == 200
        health.missing("assignment", "rebalancing")
        status, text = await get(server.port, "/readyz")
        assert (status, json.loads(text)) == (503, {"ready": False, "reasons": {"assignment": "rebalancing"}})


async def test_metrics_are_served_in_the_text_format() -> None:
    registry = CollectorRegistry()
    Counter("things_total", "Things.", registry=registry).inc(3)
    async with TelemetryServer(0, Health(), registry=registry) as server:
        status, text = await get(server.port, "/metrics")
    assert status == 200
    assert "# TYPE things_total counter\nthings_total 3.0\n" in text
    assert "_created" not in text


async def test_a_taken_port_is_refused() -> None:
    async with TelemetryServer(0, Health()) as server:
        with pytest.raises(OSError, match="address already in use"):
            async with TelemetryServer(server.port, Health()):
                pass


@pytest.fixture
def restored_root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_log_line_is_one_json_object(restored_root: logging.Logger) -> None:
    stream = io.StringIO()
    configure("ingest", "1", stream=stream)
    log = logging.getLogger("once.test")
    log.info("partition\nrestored", extra={"partition": 3, "bytes": b"ab", "strange": {1, 2}})
    log.debug("not shown")
    try:
        int("no such thing")
    except ValueError:
        log.exception("failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["service"], first["instance"], first["level"]) == ("ingest", "1", "info")
    assert (first["event"], first["partition"], first["logger"]) == ("partition\nrestored", 3, "once.test")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])
    assert second["error"].startswith("ValueError(")
    assert "Traceback" in second["traceback"]


@pytest.mark.parametrize("field", ["\ud800", {(1, 2): 3}, object()])
def test_no_argument_breaks_a_log_line(field: object) -> None:
    record = logging.makeLogRecord({"msg": "said", "name": "x", "field": field})
    line = JsonFormatter("ledger", "0").format(record)
    assert "said" in json.loads(line)["event"]
    assert "\n" not in line


def test_every_metric_of_an_alert_is_in_the_catalogue() -> None:
    rules = [path.read_text() for path in (ROOT / "deploy" / "prometheus" / "rules").glob("*.yml")]
    named = {name for text in rules for name in re.findall(r"\bonce_[a-z_]+", text)}
    assert named
    assert named - {row.name for row in metrics.CATALOGUE} == set()
