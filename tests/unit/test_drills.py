"""The catalogue of the alerts' drills, its page in docs/drills, and the timeline of alerts."""

import re
from datetime import UTC, datetime

import pytest

from deploy.drills.prometheus import Alert
from tests import queries
from tests.drills.__main__ import main
from tests.drills.alerts.fault import Drill
from tests.drills.alerts.registry import DRILLS, NOT_MADE, QUICK
from tests.drills.timeline import Spell, Timeline
from tests.harness import ROOT

PAGE = ROOT / "docs" / "drills" / "alerts.md"
ALERTS = {rule.name: rule for rule in queries.alerts()}


def test_every_alert_has_a_drill_or_a_reason_and_every_drill_its_alert() -> None:
    drilled = [drill.alert for drill in DRILLS]
    assert len(drilled) == len(set(drilled))
    assert set(drilled) | set(NOT_MADE) == set(ALERTS)
    assert set(drilled) & set(NOT_MADE) == set()
    assert set(NOT_MADE) == {"SequenceDuplicated"}


@pytest.mark.parametrize("drill", DRILLS, ids=[drill.alert for drill in DRILLS])
def test_a_drill_says_what_it_does_and_has_time_for_what_its_alert_waits_for(drill: Drill) -> None:
    assert drill.within_s > ALERTS[drill.alert].duration
    assert drill.fault() is not drill.fault()
    for pattern in drill.labels.values():
        re.compile(pattern)


def test_three_drills_are_quick() -> None:
    assert {drill.alert for drill in QUICK} == {"TransactionHanging", "ProducerFenced", "DeadLettersRising"}
    assert all(drill.within_s <= 40 for drill in QUICK)


def test_the_page_lists_the_same_drills_in_the_same_order() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\(\.\./runbooks/(\w+)\.md\) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    known = [(drill.alert, drill.does) for drill in DRILLS] + list(NOT_MADE.items())
    assert [(alert, text) for alert, _, text in rows] == known
    assert all(alert == linked for alert, linked, _ in rows)


def test_an_unknown_drill_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["RedisDown", "SequenceDuplicated"])
    assert ended.value.code == 2
    assert "no drill for SequenceDuplicated" in capsys.readouterr().err


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
