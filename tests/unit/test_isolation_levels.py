"""Every consumer of the services reads committed records only; the runtime's fetches are seen by the drill B11."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.harness import ROOT

CONSUMERS = {"AIOKafkaConsumer", "PatientConsumer"}
RAW_LOGS = {
    "shared/kafka/admin/transaction_state.py",
    "shared/kafka/client/parts.py",
    "shared/kafka/lineage/outcome.py",
    "shared/kafka/lineage/trace.py",
    "shared/kafka/txntrace/transaction_trace.py",
}
"""Modules that read whole logs, to find out how transactions ended; none of them acts on a record."""


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def keyword(call: ast.Call, name: str) -> object:
    values = [one.value for one in call.keywords if one.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def sources() -> Iterator[Path]:
    return (path for top in ("shared", "services") for path in sorted((ROOT / top).rglob("*.py")))


def test_every_consumer_is_read_committed() -> None:
    made = [
        (str(path.relative_to(ROOT)), keyword(call, "isolation_level"))
        for path in sources()
        for call in calls(path)
        if isinstance(call.func, ast.Name) and call.func.id in CONSUMERS
    ]
    assert made == [
        ("shared/kafka/client/consumer.py", "read_committed"),
        ("shared/kafka/runtime/committed.py", "read_committed"),
    ]


def test_uncommitted_records_are_read_by_tools_for_logs_only() -> None:
    readers = {
        str(path.relative_to(ROOT)) for path in sources() for call in calls(path) if keyword(call, "committed") is False
    }
    assert readers == RAW_LOGS
