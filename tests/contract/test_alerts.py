"""Prometheus' own tests of the rules: each alert fires on its fault, and the tests fail for broken rules."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import queries
from tests.queries import MARGINS, RULES, STATES, THRESHOLD, Group, Rule, promtool
from tests.tiers import full

BELOW = {"CertificateExpires"}
"""Alerts that fire below their threshold."""
PROMTOOL_TESTS = RULES.parent / "tests"
ALERTS = {rule.name: rule for rule in queries.alerts()}


def test_every_alert_is_silent_fires_and_ends_as_its_tests_say() -> None:
    result = promtool("test", "rules", *sorted(PROMTOOL_TESTS.glob("*.yml")))
    assert result.returncode == 0, result.stdout + result.stderr


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
        stricter = 1 / factor if rule.name in MARGINS else factor
        return {"expr": f"vector({value * stricter if value else factor - 1})"}

    found = {failure for failure in broken(tmp_path, change) if failure.expected is not failure.got}
    compared = {name for name in ALERTS if name not in STATES}
    assert {
        failure.alert for failure in found if failure.expected is (expected != (failure.alert in BELOW))
    } == compared
