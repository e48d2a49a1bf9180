"""The dashboards: one shape, no overlaps, panels with a description, a unit and queries, equal thresholds."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from shared.telemetry.catalogue import CATALOGUE
from tests import queries
from tests.harness import ROOT

GRAFANA = ROOT / "deploy" / "grafana"
BOARDS = queries.dashboards()
DATASOURCE = {"type": "prometheus", "uid": "once-prometheus"}
WIDTH = 24

BOARD_KEYS = [
    "uid", "title", "description", "tags", "schemaVersion", "version", "editable", "graphTooltip", "timezone", "time",
    "refresh", "links", "annotations", "templating", "panels",
]  # fmt: skip
PANEL_KEYS = [
    "id", "type", "title", "description", "gridPos", "datasource", "fieldConfig", "options", "targets", "links",
]  # fmt: skip
ROW_KEYS = ["id", "type", "title", "gridPos", "collapsed", "panels"]
OTHER_LABELS = {"job", "instance", "broker", "request"}
"""Labels of a scrape and of the brokers, in addition to the catalogue's."""

boards = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_there_are_five_dashboards_with_their_names_as_uids() -> None:
    assert set(BOARDS) == {
        "brokers.json",
        "outbox-redis.json",
        "pipeline.json",
        "reconciliation.json",
        "transactions.json",
    }
    assert {board["uid"] for board in BOARDS.values()} == {f"once-{Path(name).stem}" for name in BOARDS}


@boards
def test_dashboards_have_one_shape_without_keys_of_an_editor(board: dict[str, Any]) -> None:
    assert list(board) == BOARD_KEYS
    assert board["schemaVersion"] >= 38
    assert (board["tags"], board["version"], board["editable"]) == (["once"], 1, False)
    for panel in board["panels"]:
        assert list(panel) == (ROW_KEYS if panel["type"] == "row" else PANEL_KEYS), panel["title"]
        assert panel["type"] in {"row", "stat", "timeseries"}
    ids = [panel["id"] for panel in board["panels"]]
    assert ids == list(range(1, len(ids) + 1))


@boards
def test_panels_do_not_overlap_and_follow_a_row_of_figures(board: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in board["panels"]]
    for place in places:
        assert list(place) == ["h", "w", "x", "y"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= WIDTH
    for one, other in itertools.combinations(places, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart or below, (one, other)
    first = [panel for panel in board["panels"] if panel["gridPos"]["y"] == 0]
    assert {panel["type"] for panel in first} == {"stat"}
    assert sum(panel["gridPos"]["w"] for panel in first) == WIDTH
    assert [panel for panel in board["panels"] if panel["type"] == "stat"] == first


@boards
def test_every_panel_has_a_description_a_unit_and_our_datasource(board: dict[str, Any]) -> None:
    titles = [panel["title"] for panel in panels(board)]
    assert len(titles) == len(set(titles))
    for panel in panels(board):
        assert not panel["title"].endswith(".")
        assert panel["description"].endswith(".")
        assert panel["datasource"] == DATASOURCE
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF"[: len(panel["targets"])])
    for annotation in board["annotations"]["list"]:
        assert annotation["datasource"] == DATASOURCE
        assert annotation["expr"]
    for variable in board["templating"]["list"]:
        assert variable["type"] == "constant" or variable["datasource"] == DATASOURCE


@boards
def test_every_target_has_an_expression_and_a_legend_of_known_labels(board: dict[str, Any]) -> None:
    known = OTHER_LABELS | {label for row in CATALOGUE for label in row.labels}
    for panel in panels(board):
        for target in panel["targets"]:
            assert list(target) == ["refId", "expr", "legendFormat"]
            assert target["expr"]
            assert target["legendFormat"]
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known, panel["title"]


@boards
def test_series_of_a_panel_have_different_legends(board: dict[str, Any]) -> None:
    """A legend must contain the grouping's labels, so that no two lines have one name."""
    for panel in panels(board):
        for target in panel["targets"]:
            grouped = re.match(r"(?:sum|max|min) by \(([^)]+)\)", target["expr"])
            if grouped:
                assert set(grouped[1].split(", ")) == set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(legends) == len(set(legends))


def runbooks(panel: dict[str, Any]) -> list[str]:
    """The alerts whose runbooks a panel links."""
    names = []
    for link in panel["links"]:
        found = re.fullmatch(r"\$\{runbooks\}/(\w+)\.md", link["url"])
        assert found, link
        assert link == {"title": f"Runbook: {found[1]}", "url": link["url"], "targetBlank": True}
        names.append(found[1])
    return names


def test_each_alert_is_on_the_dashboard_that_it_names_and_all_linked_alerts_exist() -> None:
    linked = {board["uid"]: {name for panel in panels(board) for name in runbooks(panel)} for board in BOARDS.values()}
    alerts = {alert.name: alert for alert in queries.alerts()}
    assert set().union(*linked.values()) <= set(alerts)
    # It is about missing series, which no panel can show
    shown = set(alerts) - {"ThresholdsMissing"}
    assert {name for name in shown if name not in linked[alerts[name].annotations["dashboard"]]} == set()


@boards
def test_a_figure_turns_red_where_its_alert_would_fire(board: dict[str, Any]) -> None:
    alerts = {alert.name: alert for alert in queries.alerts()}
    thresholds = {
        rule.name: float(rule.query.removeprefix("vector(").removesuffix(")"))
        for rule in queries.recorded()
        if rule.name.startswith("once:threshold:")
    }
    for panel in panels(board):
        if panel["type"] != "stat":
            continue
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        red_from = [step["value"] for step in steps if step["color"] == "red" and step["value"] is not None]
        compared = {
            thresholds[name]
            for alert in runbooks(panel)
            for name in re.findall(r"once:threshold:\w+", alerts[alert].query)
        }
        if red_from and compared:
            assert red_from == [max(compared) or 1], panel["title"]


@boards
def test_a_line_for_a_threshold_is_read_from_prometheus(board: dict[str, Any]) -> None:
    recorded = {rule.name for rule in queries.recorded()}
    for panel in panels(board):
        marked = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
        lines = [target["expr"] for target in panel["targets"] if target["legendFormat"] == "threshold"]
        assert marked == ({"threshold"} if lines else set())
        assert set(lines) <= recorded


def test_grafanas_provisioning_names_the_same_datasource_and_folder() -> None:
    datasource = (GRAFANA / "provisioning" / "datasources" / "once.yml").read_text()
    provider = (GRAFANA / "provisioning" / "dashboards" / "once.yml").read_text()
    about = (GRAFANA / "README.md").read_text()
    assert f"uid: {DATASOURCE['uid']}\n" in datasource
    place = re.search(r"path: (\S+)", provider)
    assert place
    assert place[1] in about
    assert set(re.findall(r"`(once-[a-z-]+)`", about)) == {board["uid"] for board in BOARDS.values()}
