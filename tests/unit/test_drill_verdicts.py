"""The verdict on a drill, by what it saw."""

from deploy.drills.drill import Anomaly, Drill, Found, Journal, Observation, Verdict, drill, judged
from deploy.drills.stage import Stage

SEEN = Observation(0.1, "copies", "1", "1", is_expected=True)
UNEXPECTED = Observation(0.2, "copies", "2", "1", is_expected=False)
DUPLICATE = Found(Anomaly.DUPLICATE, 1, ["topic [0] 7"])


async def _steps(stage: Stage) -> None:
    """Do nothing."""


def _drill(*control: Anomaly) -> Drill:
    return drill("A1", "nothing", "Nothing happens", control=control)(_steps)


def test_a_drill_that_saw_what_it_expected_passes() -> None:
    assert judged(_drill(), Journal(observations=[SEEN])) == (Verdict.AS_EXPECTED, "")


def test_a_drill_that_observed_nothing_shows_nothing() -> None:
    assert judged(_drill(), Journal())[0] is Verdict.NO_DATA


def test_an_unexpected_observation_fails_with_its_figures() -> None:
    assert judged(_drill(), Journal(observations=[SEEN, UNEXPECTED])) == (
        Verdict.NOT_AS_EXPECTED,
        "copies: 2, expected 1",
    )


def test_an_anomaly_that_is_not_expected_fails() -> None:
    verdict, reason = judged(_drill(), Journal(observations=[SEEN], anomalies=[DUPLICATE]))
    assert (verdict, reason) == (Verdict.NOT_AS_EXPECTED, "duplicate: 1, such as topic [0] 7")


def test_a_control_passes_with_its_anomaly_only() -> None:
    control = _drill(Anomaly.DUPLICATE)
    assert judged(control, Journal(observations=[SEEN], anomalies=[DUPLICATE]))[0] is Verdict.AS_EXPECTED
    assert judged(control, Journal(observations=[SEEN]))[0] is Verdict.NOT_AS_EXPECTED
    lost = Found(Anomaly.LOSS, 1, ["payment 3"])
    assert judged(control, Journal(observations=[SEEN], anomalies=[DUPLICATE, lost]))[0] is Verdict.NOT_AS_EXPECTED
