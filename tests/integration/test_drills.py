"""Drills on real brokers: one of each family shows its claim, and one that shows nothing does not pass.

`make drills` runs all of them.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy.drills.drill import LOCAL, Anomaly, Drill, Result, Verdict, drill
from deploy.drills.faults.processes import TakeAway
from deploy.drills.faults.requests import OnRequests
from deploy.drills.index import DRILLS
from deploy.drills.proxy.rules import Drop, Part, Rule
from deploy.drills.run import run_drills
from deploy.drills.stage import Stage
from deploy.drills.waiting import until

pytestmark = pytest.mark.timeout(400)

QUICK = [one for one in DRILLS if one.quick]


@drill("Z1", "no-request", "A fault without a request shows nothing")
async def no_request(stage: Stage) -> None:
    """Wait for a request that no client sends."""
    rule = Rule(api="EndTxn", client_id=stage.name, action=Drop(Part.ANSWER))
    async with stage.fault(OnRequests(await stage.proxy(), rule, "answer to EndTxn lost")) as lost:
        await lost.acted(within_s=0.5)
    stage.expect("this is not reached", 1, 1)


@drill("Z2", "no-anomaly", "A control without its anomaly fails", control=[Anomaly.LOSS])
async def no_anomaly(stage: Stage) -> None:
    """Lose nothing."""
    stage.expect("records lost", 0, 0)


@drill("Z3", "broken-off", "A drill that fails leaves a healthy target")
async def broken_off(stage: Stage) -> None:
    """Fail while a broker is away."""
    async with stage.fault(TakeAway("broker-2")):
        raise RuntimeError("the drill's own mistake")


@drill("Z4", "in-time", "A drill takes no longer than it may", within_s=1.0)
async def never_ends(stage: Stage) -> None:
    """Pause a broker, and wait for ever."""
    stage.target.pause("broker-1")
    await asyncio.Event().wait()


@drill("Z5", "after-them", "The next drill has all brokers")
async def after_them(stage: Stage) -> None:
    """Look at the cluster."""
    stage.expect("brokers", sorted(stage.target.view().brokers), [0, 1, 2])
    stage.expect("components away", sorted(stage.target.taken), [])


RUN: list[str] = []
"""Rows of the drills that have begun."""


@drill("Z6", "judged-later", "A check that is left for later runs while the next drill does")
async def judged_later(stage: Stage) -> None:
    """Leave a check that needs the next drill."""

    async def check() -> None:
        await until(lambda: "Z7" in RUN, "the next drill has begun", 60)
        stage.expect("what only time could tell", 1, 2)

    stage.expect("what is seen at once", 1, 1)
    stage.later(check)


@drill("Z7", "meanwhile", "A check that cannot go on is reported")
async def meanwhile(stage: Stage) -> None:
    """Leave a check that fails."""

    async def check() -> None:
        raise RuntimeError("the check's own mistake")

    RUN.append("Z7")
    stage.expect("what is seen at once", 1, 1)
    stage.later(check)


def run(drills: Sequence[Drill], directory: Path) -> dict[str, Result]:
    """Run drills; their steps go to stderr."""
    said = lambda text: print(text, file=sys.stderr)  # noqa: E731 # one line
    found = run_drills(drills, directory, seed=1, on=LOCAL, say=said, done=lambda _: None)
    return {one.name: one for one in asyncio.run(found)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The quick drills, and those that must not pass, on the same targets."""
    wrong = [no_request, no_anomaly, broken_off, never_ends, after_them, judged_later, meanwhile]
    return run([*QUICK, *wrong], tmp_path_factory.mktemp("drills"))


@pytest.mark.parametrize("name", [one.name for one in QUICK])
def test_the_drill_shows_its_claim(results: dict[str, Result], name: str) -> None:
    result = results[name]
    assert result.verdict is Verdict.AS_EXPECTED, result.reason
    assert result.journal.faults
    assert result.journal.records > 0


def test_a_fault_without_evidence_shows_nothing(results: dict[str, Result]) -> None:
    result = results["no-request"]
    assert result.verdict is Verdict.NO_DATA
    assert "0.5 s: 1 acts of Rule(api='EndTxn'" in result.reason


def test_a_control_without_its_anomaly_fails(results: dict[str, Result]) -> None:
    result = results["no-anomaly"]
    assert (result.verdict, result.reason) == (Verdict.NOT_AS_EXPECTED, "the control did not show its anomaly: loss")


def test_a_drill_that_cannot_go_on_is_reported_and_the_next_one_has_a_healthy_target(
    results: dict[str, Result],
) -> None:
    failed = results["broken-off"]
    assert (failed.verdict, failed.reason) == (Verdict.FAILED, "RuntimeError: the drill's own mistake")
    assert results["in-time"].verdict is Verdict.FAILED
    assert results["in-time"].reason == "not done within 1 s, its limit; before its first step"
    assert results["after-them"].verdict is Verdict.AS_EXPECTED, results["after-them"].reason


def test_a_check_that_is_left_for_later_is_part_of_the_verdict(results: dict[str, Result]) -> None:
    later, failed = results["judged-later"], results["meanwhile"]
    assert (later.verdict, later.reason) == (Verdict.NOT_AS_EXPECTED, "what only time could tell: 1, expected 2")
    assert (failed.verdict, failed.reason) == (Verdict.FAILED, "RuntimeError: the check's own mistake")
