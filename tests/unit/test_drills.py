"""The catalogue of the alerts' drills, its page in docs/drills, and the timeline of alerts."""

import re
from datetime import UTC, datetime

import msgspec
import pytest
from click.testing import CliRunner

from deploy.cli.drill import drill as command
from deploy.drills.alerts.alert import AlertFault
from deploy.drills.alerts.firing import TAG, faults_in
from deploy.drills.alerts.registry import ALERTS, DRILLS, NOT_MADE
from deploy.drills.alerts.timeline import Spell, Timeline
from deploy.drills.drill import NO_ROW, Needs
from deploy.drills.index import find
from deploy.drills.prometheus import Alert
from tests import queries
from tests.harness import ROOT

PAGE = ROOT / "docs" / "drills" / "alerts.md"
RULES = {rule.name: rule for rule in queries.alerts()}
QUICK = [alert for alert in ALERTS if alert.quick]


def test_every_alert_has_a_drill_or_a_reason_and_every_drill_its_alert() -> None:
    drilled = [alert.name for alert in ALERTS]
    assert len(drilled) == len(set(drilled))
    assert set(drilled) | set(NOT_MADE) == set(RULES)
    assert set(drilled) & set(NOT_MADE) == set()
    assert set(NOT_MADE) == {"SequenceDuplicated"}


@pytest.mark.parametrize("alert", ALERTS, ids=[alert.name for alert in ALERTS])
def test_a_drill_says_what_it_does_and_has_time_for_what_its_alert_waits_for(alert: AlertFault) -> None:
    assert alert.within_s > RULES[alert.name].duration
    assert alert.fault() is not alert.fault()
    for pattern in alert.labels.values():
        re.compile(pattern)


def test_three_drills_are_quick() -> None:
    assert {alert.name for alert in QUICK} == {"TransactionHanging", "ProducerFenced", "DeadLettersRising"}
    assert all(alert.within_s <= 40 for alert in QUICK)


def test_the_page_lists_the_same_drills_in_the_same_order() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(\.\./runbooks/(\w+)\.md\) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    known = [(alert.name, alert.does) for alert in ALERTS] + list(NOT_MADE.items())
    assert [(alert, text) for alert, _, text in rows] == known
    assert all(alert == linked for alert, linked, _ in rows)


def test_the_drills_of_alerts_are_found_by_name_and_tag_and_keep_their_order() -> None:
    assert [drill.name for drill in find((), tag=TAG)] == [alert.name for alert in ALERTS]
    assert [drill.name for drill in sorted(DRILLS, key=lambda one: one.order)] == [alert.name for alert in ALERTS]
    [found] = find(("RedisDown",))
    assert (found.row, found.needs, found.tags) == (NO_ROW, Needs.MONITORING, (TAG,))
    assert min([found, *find(("A2",))], key=lambda one: one.order).row == "A2"
    for drill in DRILLS:
        assert all((ROOT / source).is_file() for source in drill.reading)


def test_the_list_has_the_drills_of_alerts() -> None:
    listed = msgspec.json.decode(CliRunner().invoke(command, ["list", "--json"]).stdout)["drills"]
    alerts = {row["name"]: row for row in listed if row["row"] == NO_ROW}
    assert list(alerts) == [alert.name for alert in ALERTS]
    assert alerts["RedisDown"]["tags"] == TAG
    assert alerts["RedisDown"]["targets"] == "local"
    assert {row["name"] for row in alerts.values() if row["tier"] == "test"} == {alert.name for alert in QUICK}


def test_an_unknown_drill_is_refused_before_anything_starts() -> None:
    refused = CliRunner().invoke(command, ["run", "RedisDown", "SequenceDuplicated"])
    assert refused.exit_code == 2
    assert "no drill SequenceDuplicated" in refused.stderr


# What an alert says

TEXTS = {"summary": "x", "description": "x", "runbook_url": "docs/runbooks/RedisDown.md", "dashboard": "x"}


@pytest.mark.parametrize(
    ("labels", "texts", "found"),
    [
        ({}, {}, []),
        ({"severity": "loud"}, {}, ["severity loud"]),
        ({}, {"summary": ""}, ["summary: "]),
        ({}, {"summary": "<no value> of {{ $labels.job }}"}, ["summary: <no value> of {{ $labels.job }}"]),
        ({}, {"other": "x"}, ["other"]),
        ({}, {"runbook_url": "docs/runbooks/None.md"}, ["no runbook docs/runbooks/None.md"]),
    ],
)
def test_labels_and_texts_of_an_alert_are_checked(
    labels: dict[str, str], texts: dict[str, str], found: list[str]
) -> None:
    assert faults_in(Spell({"severity": "warning"} | labels, TEXTS | texts, 0.0)) == found


# The timeline of alerts

NOW = datetime(2026, 1, 5, tzinfo=UTC)
ONE = {"job": "one"}


def lost(state: str, job: str) -> Alert:
    return Alert({"alertname": "Lost", "job": job}, {"summary": job}, state, NOW)


def seen(*looks: list[Alert]) -> Timeline:
    """Return a timeline after looks at 0, 1, 2 and so on seconds."""
    timeline = Timeline()
    for at_s, alerts in enumerate(looks):
        timeline.note(alerts, float(at_s))
    return timeline


def test_an_alert_is_seen_from_firing_to_its_end() -> None:
    pending, firing = lost("pending", "one"), lost("firing", "one")
    timeline = seen([], [pending], [firing], [firing], [])
    assert timeline.spells == [Spell(firing.labels, {"summary": "one"}, 2.0, 4.0)]
    assert timeline.first("Lost", ONE, 2.0) == timeline.spells[0]
    assert timeline.first("Lost", ONE, 2.5) is None
    assert timeline.first("Lost", {"job": "on"}, 0.0) is None, "the whole value must match"
    assert timeline.first("Other", ONE, 0.0) is None


def test_an_alert_is_quiet_when_it_is_neither_firing_nor_pending() -> None:
    assert seen([lost("firing", "one")], []).quiet("Lost", ONE)
    for state in ("pending", "firing"):
        assert not seen([lost(state, "one")]).quiet("Lost", ONE)
        assert not seen([lost(state, "one")]).quiet("Lost", {})
        assert seen([lost(state, "two")]).quiet("Lost", ONE)


def test_an_alert_is_silent_once_it_no_longer_fires() -> None:
    one, two = lost("firing", "one"), lost("firing", "two")
    timeline = seen([one], [one, two], [two], [], [one], [])
    assert timeline.silent_from("Lost", ONE, 0.0) == 2.0
    assert timeline.silent_from("Lost", {}, 0.0) == 3.0
    assert timeline.silent_from("Lost", {}, 3.5) == 3.5
    assert timeline.silent_from("Lost", {}, 4.5) == 5.0
    assert seen([], [one]).silent_from("Lost", {}, 1.0) is None
