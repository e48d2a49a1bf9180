"""Each drill's judge finds what is planted: a wrong observation, another anomaly, a wrong log, report or verdict."""

import ast
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from deploy.checkers.audit import Audit
from deploy.checkers.verdict import FAIL, PASS, Kind, Violation
from deploy.drills import judge
from deploy.drills.catalogue import failover, pipeline, sequences
from deploy.drills.catalogue.idempotence import expect_refusal, headers
from deploy.drills.catalogue.pipeline import AHEAD, STORM, _come_and_go, _grown, commits_within
from deploy.drills.catalogue.reconciliation import _expect_agreement, _expect_clean
from deploy.drills.clients.raw import Answer
from deploy.drills.clients.record_batches import record_batch
from deploy.drills.clients.tools import Ended
from deploy.drills.documentation import DIRECTORY
from deploy.drills.drill import Anomaly, Journal, Result, Verdict, judged
from deploy.drills.index import find
from deploy.drills.reconciling import Reconciled
from deploy.drills.service import Service
from deploy.drills.stage import Stage
from deploy.local.process import ManagedProcess
from tests.batches import at_offset
from tests.harness import ROOT
from tests.partitions import PARTITIONS
from tests.unit.planted_drills import BY_ROW, act, bare, verdict
from tests.unit.test_report import listed, report

ALL = [b"0", b"1", b"2"]
LOST, REPEATED = ALL[:2], [*ALL, b"0"]


class Recorded(msgspec.Struct):
    """Of the last recorded run, the results with all that each drill saw."""

    results: list[Result]


RECORDED = [
    one for one in msgspec.json.decode((DIRECTORY / "results.json").read_bytes(), type=Recorded).results if one.passed
]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return bare(tmp_path)


# Each observation of each drill counts


@pytest.mark.parametrize("result", RECORDED, ids=lambda one: one.row)
def test_each_observation_and_each_anomaly_of_a_drill_decides(result: Result) -> None:
    drill, seen = BY_ROW[result.row], result.journal
    again = Journal(observations=seen.observations, anomalies=seen.anomalies)
    assert judged(drill, again)[0] is Verdict.AS_EXPECTED
    assert judged(drill, Journal(anomalies=seen.anomalies))[0] is Verdict.NO_DATA
    for number, one in enumerate(seen.observations):
        wrong = [*seen.observations]
        wrong[number] = msgspec.structs.replace(one, seen="planted", is_expected=False)
        broken = Journal(observations=wrong, anomalies=seen.anomalies)
        assert judged(drill, broken) == (
            Verdict.NOT_AS_EXPECTED,
            f"{one.what}: planted, expected {one.expected}",
        )
    for kind in Anomaly:
        others = [found for found in seen.anomalies if found.kind is not kind]
        planted = [*others, msgspec.structs.replace(seen.anomalies[0], kind=kind)] if seen.anomalies else []
        changed = others if kind in drill.control else planted
        if changed != seen.anomalies or kind in drill.control:
            broken = Journal(observations=seen.observations, anomalies=changed)
            assert judged(drill, broken)[0] is Verdict.NOT_AS_EXPECTED, kind


def _calls(path: Path) -> list[ast.Call]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]


SOURCES = sorted((ROOT / "deploy" / "drills").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_expectation_is_a_constant(path: Path) -> None:
    """One whose outcome is written into the code cannot fail."""
    for call in _calls(path):
        assert isinstance(call.func, ast.Attribute)
        place = f"{path.name}:{call.lineno}"
        if call.func.attr == "expect":
            seen, expected = call.args[1], (*call.args[2:], *(word.value for word in call.keywords))[0]
            assert not isinstance(seen, ast.Constant), place
            assert ast.dump(seen) != ast.dump(expected), place
        if call.func.attr == "expect_that":
            [holds] = [word.value for word in call.keywords if word.arg == "holds"]
            assert not isinstance(holds, ast.Constant), place


# The judge of most drills: what `once verify` finds


def found(kind: Kind | None, records_in: int) -> Any:
    """A verdict with one violation of a kind, or with none."""
    violations = [] if kind is None else [Violation("I3", kind.value, "payments.raw:0:7", "planted")]
    return msgspec.structs.replace(
        Audit({}, partitions=PARTITIONS).finish({}),
        verdict=PASS if kind is None else FAIL,
        records_in=records_in,
        kinds={} if kind is None else {kind.value: 1},
        violations=violations,
    )


class Effects:
    """A target without a file of effects."""

    effects_directory = Path("none")


@pytest.mark.parametrize("kind", [None, *Kind])
async def test_what_the_verifier_finds_is_no_pass(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: Kind | None
) -> None:
    [drill] = find(("B16",))
    monkeypatch.setattr(judge, "verify_cluster", act(found(kind, 100)))
    monkeypatch.setattr(Stage, "access", "brokers")
    stage.target = Effects()  # type: ignore[assignment] # all that is asked of it
    await judge.verified(stage, at_least=100)
    assert (verdict(drill, stage) is Verdict.AS_EXPECTED) == (kind is None)


async def test_a_verdict_over_too_few_records_or_one_that_should_have_failed_is_no_pass(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "verify_cluster", act(found(None, 99)))
    monkeypatch.setattr(Stage, "access", "brokers")
    stage.target = Effects()  # type: ignore[assignment] # all that is asked of it
    await judge.verified(stage, at_least=100)
    assert judged(BY_ROW["B16"], stage.journal)[1] == "raw records verified: 99, expected at least 100"
    stage.journal = Journal()
    await judge.verified(stage, expected=FAIL)
    assert judged(BY_ROW["E12"], stage.journal)[1] == "verdict of `once verify`: pass, expected fail"


# Logs and answers: A1, A3, A4, A8, A11, B17


def batches(*sequences: int, producer_id: int = 7) -> list[Any]:
    return [
        at_offset(record_batch([(None, b"%d" % number)], producer_id, 0, sequence), number)
        for number, sequence in enumerate(sequences)
    ]


async def test_a8_finds_a_second_copy_a_gap_and_a_second_producer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage, "access", "brokers")
    for log, values, passes in (
        (batches(0, 1, 2), ALL, True),
        (batches(0, 1, 2, 3), [*ALL, b"2"], False),
        (batches(0, 1, 3), ALL, False),
        ([*batches(0, 1), *batches(2, producer_id=8)], ALL, False),
        (batches(0, 1), LOST, False),
    ):
        stage.journal = Journal()
        monkeypatch.setattr(failover, "values_of", act(values))
        monkeypatch.setattr(failover, "log_of", act(log))
        await failover.expect_once(stage, "topic", ALL)
        assert (verdict(BY_ROW["A8"], stage) is Verdict.AS_EXPECTED) == passes


async def test_a3_and_a4_find_outputs_of_the_runtime_that_are_not_the_expected_ones(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage, "access", "brokers")
    for values, passes in ((ALL, True), (REPEATED, False), (LOST, False), ([b"0", b"2", b"1"], False)):
        stage.journal = Journal()
        monkeypatch.setattr(sequences, "values_of", act(values))
        await sequences.expect_outputs(stage, "sink", ALL)
        assert (verdict(BY_ROW["A4"], stage) is Verdict.AS_EXPECTED) == passes


def test_a1_compares_replicas_by_producer_epoch_sequence_and_offset() -> None:
    assert headers(batches(0, 1)) == ["7/0/0@0", "7/0/1@1"]
    assert headers(batches(0, 2)) != headers(batches(0, 1)) != headers(batches(0, 1, producer_id=8))


@pytest.mark.parametrize(
    ("ended", "passes"),
    [
        (Ended(78, "a line\nONCE_X is not a setting"), True),
        (Ended(0, "a line\nONCE_X is not a setting"), False),
        (Ended(78, "Traceback"), False),
    ],
)
def test_a11_needs_the_exit_code_and_the_message(stage: Stage, ended: Ended, passes: bool) -> None:
    expect_refusal(stage, "ingest", ended, 78, "ONCE_X is not a setting")
    assert (verdict(BY_ROW["A11"], stage) is Verdict.AS_EXPECTED) == passes


def test_b17_names_each_partition_that_a_replay_has_written_to() -> None:
    before = {("a", 0): 5, ("a", 1): 7}
    assert _grown(before, before) == {}
    assert _grown(before, before | {("a", 1): 9}) == {"a [1]": 2}


def test_b16_counts_the_commits_before_each_departure() -> None:
    found = commits_within([900, 1_000, 1_200, 3_000, 3_100], 1_000, 3_000)
    assert found == {"s": 2.0, "commits": 2, "longest s without a commit": 1.8}
    assert commits_within([900, 3_100], 1_000, 3_000)["commits"] == 0


class Noted(ManagedProcess):
    """A process that is not started, and notes what would be done to it."""

    acts: ClassVar[list[str]] = []

    def start(self) -> int:
        self.acts.append(f"start {self.name}")
        return 0

    def terminate(self, deadline_s: float = 10.0) -> int | None:  # noqa: ARG002 # as of ManagedProcess
        self.acts.append(f"SIGTERM {self.name}")
        return 0

    def kill(self) -> None:
        self.acts.append(f"SIGKILL {self.name}")


class Instance(Service):
    process_type = Noted


async def test_b16_starts_an_instance_at_each_departure(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pipeline, "STAY_S", (0.0, 0.0))
    monkeypatch.setattr(Noted, "acts", [])
    members = [Instance("ledger", "127.0.0.1:1", tmp_path, str(number)) for number in range(STORM)]
    names = [member.process.name for member in members]
    left_ms = await _come_and_go(stage, members, dict.fromkeys(names, 0))
    assert list(left_ms) == names
    left = [act.split()[1] for act in Noted.acts if act.startswith("SIG")]
    assert left == names
    started = [(before, act.split()[1]) for before, act in pairwise(Noted.acts) if act.startswith("start")]
    assert [name for _, name in started] == names[AHEAD:]
    assert [before for before, _ in started] == [
        f"{'SIGKILL' if number % 2 else 'SIGTERM'} {name}" for number, name in enumerate(names[:-AHEAD])
    ]


def test_an_answer_with_an_error_is_never_equal_to_one_without() -> None:
    assert Answer("", 1) != Answer("OutOfOrderSequenceNumber", 1)
    assert str(Answer("OutOfOrderSequenceNumber", 1)) == "OutOfOrderSequenceNumber"


# Reports of a reconciliation: D1, D3, D4


def made(*breaks: Any, accounts_off: int = 0) -> Reconciled:
    found = msgspec.structs.replace(report(*breaks), figures={"accounts_off": accounts_off})
    return Reconciled(0, found, {})


@pytest.mark.parametrize(
    ("run", "passes"),
    [
        (made(), True),
        (made()._replace(exit_code=1), False),
        (made(accounts_off=1), False),
        (made(listed(1)), False),
        (made(listed(1, "other")), False),
    ],
)
def test_a_reconciliation_with_a_break_an_exit_code_or_an_account_that_is_off_is_no_pass(
    stage: Stage, run: Reconciled, passes: bool
) -> None:
    _expect_clean(stage, run)
    for row in ("D1", "D3", "D4"):
        assert (verdict(BY_ROW[row], stage) is Verdict.AS_EXPECTED) == passes


def test_d1_needs_the_balances_and_figures_of_the_verifier(stage: Stage) -> None:
    _expect_agreement(stage, report(), Audit({}, partitions=PARTITIONS).finish({}))
    assert verdict(BY_ROW["D1"], stage) is Verdict.NOT_AS_EXPECTED
