"""Metrics catalogue, health, telemetry endpoint and logs."""

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from shared.telemetry.catalogue import CATALOGUE, Kind, Metric
from shared.telemetry.logs import JsonFormatter, configure
from shared.telemetry.server import Health, TelemetryServer
from spark import metrics as reconciliation
from tests.harness import ROOT

INSTRUMENTS = (
    "import shared.telemetry.metrics",
    "import services.gateway.__main__",
    "import services.outbox.service",
    "import services.balances.projection.worker",
    "from services.monitor.service import Shown; Shown()",
)

RECONCILIATION = {metric.name: metric for metric in reconciliation.CATALOGUE}


def test_every_name_occurs_once_in_the_catalogue() -> None:
    names = [row.name for row in CATALOGUE]
    assert len(names) == len(set(names)) > 60


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)
def test_a_metric_is_named_and_described_by_the_rules(row: Metric) -> None:
    assert re.fullmatch(r"(once|kafka_producer|kafka_consumer|kafka_cluster)_[a-z][a-z_]*", row.name)
    assert row.name.endswith("_total") == (row.kind is Kind.COUNTER)
    assert row.name.endswith("_rate") == row.unit.endswith("/s")
    if row.unit in {"seconds", "bytes"}:
        assert row.unit in row.name
    assert bool(row.buckets) == (row.kind is Kind.HISTOGRAM)
    assert list(row.buckets) == sorted(set(row.buckets))
    assert row.help.endswith(".")
    assert not {"payment_id", "account", "debtor"} & set(row.labels)


def test_the_catalogue_has_the_metrics_of_a_reconciliation() -> None:
    rows = {row.name: row for row in CATALOGUE if row.name.startswith("once_reconcile_")}
    assert rows.keys() == RECONCILIATION.keys()
    for name, row in rows.items():
        assert (row.kind, row.labels, row.help) == (Kind.GAUGE, RECONCILIATION[name].labels, RECONCILIATION[name].help)


def test_each_service_exports_only_rows_of_the_catalogue_and_each_row_has_one_service() -> None:
    shown: dict[str, set[str]] = {}
    for made in INSTRUMENTS:
        code = f"{made}; from prometheus_client import generate_latest; print(generate_latest().decode())"
        said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        shown[made] = set(re.findall(r"^# TYPE ((?:once|kafka)_\w+)", said, re.MULTILINE))
    own = {made: names - shown[INSTRUMENTS[0]] for made, names in shown.items()}
    named = shown[INSTRUMENTS[0]].union(*own.values())
    assert sum(map(len, own.values())) + len(shown[INSTRUMENTS[0]]) == len(named)
    assert named <= {row.name for row in CATALOGUE}
    unused = {row.name for row in CATALOGUE} - named
    assert unused <= RECONCILIATION.keys()


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
    assert first["event_id"] == "partition-restored"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first["time"])
    assert second["error"].startswith("ValueError(")
    assert "Traceback" in second["traceback"]


@pytest.mark.parametrize("field", ["\ud800", {(1, 2): 3}, object()])
def test_no_argument_breaks_a_log_line(field: object) -> None:
    record = logging.makeLogRecord({"msg": "said", "name": "x", "field": field})
    line = JsonFormatter("ledger", "0").format(record)
    assert "said" in json.loads(line)["event"]
    assert "\n" not in line


def said(name: str, text: str, at_s: float) -> None:
    fields = {"name": name, "levelno": logging.ERROR, "msg": "Unable connect to %r", "args": (text,), "created": at_s}
    record = logging.makeLogRecord(fields)
    logging.getLogger(name).handle(record)


def test_a_line_that_the_client_repeats_is_counted_in_the_next_one(restored_root: logging.Logger) -> None:
    stream = io.StringIO()
    configure("outbox", "0", stream=stream)
    for at_s in (100.0, 100.1, 109.9, 110.0, 110.1, 50.0, 121.0):  # a clock may be set back
        said("aiokafka", "one", at_s)
    said("aiokafka.client", "two", 100.2)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line.get("repeats")) for line in lines] == [
        ("Unable connect to 'one'", None),
        ("Unable connect to 'one'", 2),
        ("Unable connect to 'one'", 1),
        ("Unable connect to 'one'", None),
        ("Unable connect to 'two'", None),
    ]


def test_no_line_of_another_logger_is_left_out(restored_root: logging.Logger) -> None:
    stream = io.StringIO()
    configure("outbox", "0", stream=stream)
    for _ in range(3):
        said("shared.kafka.runtime.worker", "one", 100.0)
    assert len(stream.getvalue().splitlines()) == 3


def test_texts_of_the_client_are_remembered_up_to_a_bound(restored_root: logging.Logger) -> None:
    stream = io.StringIO()
    configure("outbox", "0", stream=stream)
    for number in range(257):
        said("aiokafka", str(number), 100.0)
    said("aiokafka", "256", 100.0)
    said("aiokafka", "0", 100.0)
    assert len(stream.getvalue().splitlines()) == 258


def test_a_line_of_the_client_that_cannot_be_formatted_does_not_fail_its_caller(
    restored_root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("outbox", "0", stream=io.StringIO())
    text = "%d of %d"
    logging.getLogger("aiokafka").error(text, "one")
    assert "--- Logging error ---" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_at_a_terminal_is_plain_text(restored_root: logging.Logger) -> None:
    stream = Terminal()
    configure("ingest", "1", stream=stream)
    logging.getLogger("once.test").warning("took %s over", "it", extra={"partition": 3, "producer_epoch": 7})
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d{3} warning took it over  partition=3 producer_epoch=7\n", stream.getvalue()
    )


def test_the_event_id_does_not_depend_on_the_arguments() -> None:
    record = logging.makeLogRecord({"msg": "Could not send %r: %s", "args": ("EndTxn", "closed"), "name": "x"})
    line = json.loads(JsonFormatter("ledger", "0").format(record))
    assert (line["event"], line["event_id"]) == ("Could not send 'EndTxn': closed", "could-not-send-r-s")
