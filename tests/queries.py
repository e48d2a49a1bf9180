"""Every PromQL expression of the project, with its source: of the rules, the dashboards, the runbooks.

Invariant: the rules are read by Prometheus, which evaluates them, and by no other YAML parser. One test runs each
expression against a live Prometheus, another compares each name with the catalogue. It must not know what the figures
mean.
"""

import http.client
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.prerequisites import require_prometheus
from deploy.local.process import ManagedProcess
from deploy.local.supervisor.component import http_ready
from tests.harness import ROOT, wait_until

RULES: Final = ROOT / "deploy" / "prometheus" / "rules"
DASHBOARDS: Final = ROOT / "deploy" / "grafana" / "dashboards"
RUNBOOKS: Final = ROOT / "docs" / "runbooks"

_VARIABLES: Final = {"$service": ".*"}
"""Values of a dashboard's variables when all are chosen."""

THRESHOLD: Final = "once:threshold:"
MARGINS: Final = {"once:threshold:api_key_expiry_seconds"}
"""Thresholds below which their alert fires."""
STATES: Final = {  # the only good value is 0
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
    "EndpointDisabled",
    "EndpointFailing",
}
"""Alerts that compare with no threshold."""


class Rule(msgspec.Struct, frozen=True):
    """One rule, as Prometheus reports it.

    Attributes:
        name: of the series that it records, or of the alert.
        query: the expression, in Prometheus' own layout.
        type: recording or alerting.
        duration: seconds that an alert's expression must hold (`for`).
    """

    name: str
    query: str
    type: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    duration: float = 0.0


class Group(msgspec.Struct, frozen=True):
    """One group of rules of one file."""

    name: str
    file: str
    rules: list[Rule]


class Query(NamedTuple):
    """One expression and its source: `file: rule`, `file: panel`, or a runbook."""

    source: str
    expression: str


class _Groups(msgspec.Struct):
    groups: list[Group]


class _Answer(msgspec.Struct):
    data: _Groups


def groups_at(url: str) -> list[Group]:
    """The rules that a running Prometheus has.

    Args:
        url: `http://host:port`.

    Raises:
        OSError: it does not answer.
    """
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    try:
        connection.request("GET", "/api/v1/rules")
        return msgspec.json.decode(connection.getresponse().read(), type=_Answer).data.groups
    finally:
        connection.close()


@cache
def rule_groups() -> tuple[Group, ...]:
    """The project's rules, read by a Prometheus that is started for it, scrapes nothing, and ends."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "prometheus.yml"
        rules = {"global": {"evaluation_interval": "1h"}, "rule_files": [str(RULES / "*.yml")]}
        config.write_text(json.dumps(rules))
        port = free_ports(1)[0]
        argv = [
            require_prometheus(),
            f"--config.file={config}",
            f"--storage.tsdb.path={directory}/data",
            f"--web.listen-address={LOOPBACK}:{port}",
            "--log.level=warn",
        ]
        process = ManagedProcess("prometheus", argv, {}, Path(directory) / "prometheus.log")
        process.start()
        try:
            wait_until(lambda: _ready(port, process), "Prometheus has read the rules")
            return tuple(groups_at(f"http://{LOOPBACK}:{port}"))
        finally:
            process.terminate()


def _ready(port: int, process: ManagedProcess) -> bool:
    assert process.running, process.log_tail()
    return http_ready(port, path="/-/ready")


def alerts() -> list[Rule]:
    """The alerts of all groups."""
    return [rule for group in rule_groups() for rule in group.rules if rule.type == "alerting"]


def recorded() -> list[Rule]:
    """The recording rules of all groups."""
    return [rule for group in rule_groups() for rule in group.rules if rule.type == "recording"]


def dashboards() -> dict[str, dict[str, Any]]:
    """The dashboards, by file name."""
    return {path.name: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def rule_queries() -> list[Query]:
    """The expression of every rule."""
    return [
        Query(f"{Path(group.file).name}: {rule.name}", rule.query) for group in rule_groups() for rule in group.rules
    ]


def dashboard_queries() -> list[Query]:
    """The expression of every target, annotation and variable of the dashboards, with all values of each variable."""
    return [
        Query(f"{name}: {title}", _chosen(expression))
        for name, dashboard in dashboards().items()
        for title, expression in _expressions(dashboard)
    ]


def runbook_queries() -> list[Query]:
    """The expressions of the runbooks. Many select series that exist only in trouble."""
    return [
        Query(path.name, expression)
        for path in sorted(RUNBOOKS.glob("*.md"))
        for expression in re.findall(r"```promql\n(.+?)\n```", path.read_text(), re.DOTALL)
    ]


def queries() -> list[Query]:
    """Every expression of rules and dashboards."""
    return rule_queries() + dashboard_queries()


def _expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        # label_values(SELECTOR, label) is Grafana's; its selector is PromQL
        found = re.fullmatch(r"label_values\((.+), *\w+\)", variable["query"])
        assert found, variable["query"]
        yield variable["name"], found[1]


def _chosen(expression: str) -> str:
    for variable, values in _VARIABLES.items():
        expression = expression.replace(variable, values)
    return expression


_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR: Final = re.compile(r"([A-Za-z_:][\w:]*)?\s*\{([^}]*)\}")
_GROUPING: Final = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_NAME: Final = re.compile(r"(?<![\w:$.])[A-Za-z_:][\w:]*(?![\w:]|\s*\()")
_KEYWORDS: Final = frozenset({"and", "or", "unless", "bool", "offset", "by", "on", "Inf", "NaN"})


def metric_names(expression: str) -> set[str]:
    """The names of the series that an expression reads."""
    bare = _SELECTOR.sub(r"\1", _STRINGS.sub('""', expression))
    bare = re.sub(r"\[[^\]]*\]|\boffset\s+\w+", " ", _GROUPING.sub(" ", bare))
    return set(_NAME.findall(bare)) - _KEYWORDS


def selected_labels(expression: str) -> set[tuple[str, str]]:
    """Names of series and label, for each label of a selector."""
    bare = _STRINGS.sub('""', expression)
    return {
        (name, label)
        for name, inside in _SELECTOR.findall(bare)
        for label in re.findall(r"([A-Za-z_]\w*)\s*(?:=~|!~|!=|=)", inside)
    }


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool, which reports on stdout and stderr."""
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False, timeout=300)
