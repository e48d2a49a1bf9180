"""The runbooks: one page for each alert, of one shape, in agreement with its rule."""

import re
from pathlib import Path

import pytest

from deploy.cli.main import COMMANDS
from shared.telemetry.catalogue import CATALOGUE
from tests import queries
from tests.harness import ROOT
from tests.queries import Rule

RUNBOOKS = ROOT / "docs" / "runbooks"
SECTIONS = ["Meaning", "Impact", "Confirm", "Act", "Verify", "Drill"]
KAFKAS = {"AddPartitionsToTxn", "EndTxn", "InitProducerId", "PrepareAbort", "PrepareCommit"}
"""Words in the form of an alert's name."""
ALERTS = {rule.name: rule for rule in queries.alerts()}
GROUPS = {rule.name: Path(group.file).stem for group in queries.rule_groups() for rule in group.rules}

pages = pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS)


def text(alert: Rule) -> str:
    return (RUNBOOKS / f"{alert.name}.md").read_text()


def threshold(alert: Rule) -> str | None:
    """Return the threshold of an alert. Alerts on a state, and ThresholdsMissing, have none."""
    if alert.name == "ThresholdsMissing":
        return None
    found = set(re.findall(r"once:threshold:(\w+)", alert.query))
    assert len(found) <= 1
    return found.pop() if found else None


def test_there_is_a_page_for_each_alert_and_no_other() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {*ALERTS, "README"}


@pages
def test_a_page_begins_with_the_texts_of_its_rule(alert: Rule) -> None:
    compared = threshold(alert)
    says = f"Severity: {alert.labels['severity']}. Dashboard: `{alert.annotations['dashboard']}`."
    if compared is not None:
        says += f" Threshold: `once:threshold:{compared}`."
    assert text(alert).startswith(f"# {alert.name}\n\n{says}\n\n## Meaning\n")


@pages
def test_a_page_is_short_and_has_every_section_once_in_order(alert: Rule) -> None:
    lines = text(alert).splitlines()
    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == SECTIONS
    assert all(len(line) <= 120 or line.startswith("job_request_error:") for line in lines)


@pages
def test_a_page_shows_a_query_and_every_name_and_command_in_it_exists(alert: Rule) -> None:
    page = text(alert)
    asked = [query.expression for query in queries.runbook_queries() if query.source == f"{alert.name}.md"]
    assert asked
    named = {name for expression in asked for name in queries.metric_names(expression)}
    known = {name for query in queries.queries() for name in queries.metric_names(query.expression)}
    known |= {rule.name for rule in queries.recorded()} | {row.name for row in CATALOGUE}
    assert named - known == set()
    commands = set(re.findall(r"(?:`|^ {4})once ([a-z-]+)", page, re.MULTILINE))
    assert commands <= set(COMMANDS)


@pages
def test_a_page_names_only_alerts_metrics_and_thresholds_that_exist(alert: Rule) -> None:
    words = set(
        re.findall(r"(?<![`\w])(?:[A-Z][a-z]+){2,}(?!\w)", re.sub(r"```.*?```", "", text(alert), flags=re.DOTALL))
    )
    assert words - KAFKAS <= set(ALERTS)
    assert alert.name in words
    thresholds = {rule.name for rule in queries.recorded() if rule.name.startswith("once:threshold:")}
    assert set(re.findall(r"once:threshold:\w+", text(alert))) <= thresholds
    assert set(re.findall(r"`(once_[a-z_]+)`", text(alert))) <= {row.name for row in CATALOGUE}


def test_the_index_and_the_rules_agree() -> None:
    index = (RUNBOOKS / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \| `([a-z-]+)` \| (.+) \|$", index, re.MULTILINE)
    assert {name: (file, severity, board, cell) for name, file, severity, board, cell in rows} == {
        name: (
            name,
            alert.labels["severity"],
            alert.annotations["dashboard"],
            "all" if name == "ThresholdsMissing" else f"`{compared}`" if (compared := threshold(alert)) else "none",
        )
        for name, alert in ALERTS.items()
    }
    sections = re.split(r"^## ", index, flags=re.MULTILINE)[1:]
    for section in sections:
        assert len({GROUPS[name] for name in re.findall(r"\| \[(\w+)\]", section)}) == 1
