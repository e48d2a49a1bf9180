"""Drills on containers: their faults by Docker's command line, and both sides of the pipe, without Docker."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from click.testing import CliRunner

from deploy.cli.drill import drill as command
from deploy.compose.containers import Containers
from deploy.compose.engine import Engine, EngineError
from deploy.drills.compose import operator, run_on_compose
from deploy.drills.drill import COMPOSE, Drill, Result, Verdict
from deploy.drills.index import DRILLS
from deploy.drills.inside import chosen, module_of
from deploy.drills.waiting import until
from tests.harness import ROOT
from tests.unit import inside_planted

ON_COMPOSE = [one for one in DRILLS if COMPOSE in one.targets]


@dataclass(frozen=True)
class FakeEngine(Engine):
    """Docker's command line with two services and a broker, whose containers change state at once."""

    said: list[tuple[str, ...]] = field(default_factory=list)
    states: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            name: {"Pid": 7, "Running": True, "Paused": False, "Status": "running", "Health": {"Status": "healthy"}}
            for name in ("ledger", "outbox", "broker-1")
        }
    )
    counts: dict[str, int] = field(default_factory=dict)
    exit_code: str = "137"

    def compose(self, *words: str, deadline_s: float = 120.0) -> str:  # noqa: ARG002 # as of Engine
        self.said.append(words)
        command, service = words[0], words[-1] if words[0] != "exec" else words[2]
        state = self.states[service]
        if command == "exec":
            self.counts[service] = self.counts.get(service, 0) + 1
            raise EngineError(f"exec ended with {self.exit_code}")
        state["Running"] = command not in {"kill", "stop"}
        state["Paused"] = command == "pause"
        return ""

    def answers(self) -> bool:
        return True

    def container(self, service: str) -> dict[str, Any]:
        if service not in self.states:
            raise EngineError(f"{service} has no container")
        return {"State": self.states[service], "RestartCount": self.counts.get(service, 0)}


def test_every_container_is_brought_back_though_one_cannot_be() -> None:
    engine = FakeEngine()
    containers = Containers(engine)
    for service in ("broker-1", "ledger"):
        containers.take_away(service)
    del engine.states["broker-1"]
    with pytest.raises(EngineError, match="broker-1"):
        containers.heal()
    assert engine.states["ledger"]["Running"]


def test_a_container_that_was_killed_is_ready_once_it_was_restarted() -> None:
    engine = FakeEngine()
    containers = Containers(engine)
    assert containers.is_ready("ledger")
    assert containers.kill("ledger") == "container of ledger, process 7, ended by signal 9"
    assert engine.said == [("exec", "--no-TTY", "ledger", "sh", "-c", "kill -9 -1")]
    assert containers.is_ready("ledger")
    engine.counts["ledger"] = 0
    assert not containers.is_ready("ledger"), "it has not been restarted yet"
    with pytest.raises(EngineError, match=r"ledger is running after 0 s"):
        containers.wait_ready("ledger", deadline_s=0.0)
    engine.states["outbox"]["Health"]["Status"] = "starting"
    assert not containers.is_ready("outbox")


def test_a_kill_that_was_refused_is_an_error_and_one_of_nothing_has_no_evidence() -> None:
    with pytest.raises(EngineError, match=r"exec ended with 1$"):
        Containers(FakeEngine(exit_code="1")).kill("ledger")
    engine = FakeEngine()
    engine.states["ledger"]["Running"] = False
    for act in (Containers(engine).kill, Containers(engine).take_away, Containers(engine).pause):
        assert act("ledger") == ""


def test_what_is_taken_away_is_listed_until_it_is_brought_back() -> None:
    engine = FakeEngine()
    containers = Containers(engine)
    assert containers.take_away("broker-1") == "container of broker-1, process 7, ended by signal 9"
    assert containers.stop("ledger") == "container of ledger, process 7, has stopped"
    assert containers.pause("outbox") == "container of outbox, process 7, is frozen"
    assert not containers.is_ready("outbox"), "its last health was good, and it is frozen"
    assert containers.taken == {"broker-1", "ledger", "outbox"}
    containers.heal()
    assert containers.taken == set()
    brought = [("start", "broker-1"), ("start", "ledger"), ("unpause", "outbox")]
    assert engine.said == [("kill", "broker-1"), ("stop", "ledger"), ("pause", "outbox"), *brought]


def planted(_engine: Engine, *words: str) -> list[str]:
    """The command line of this side's program, in place of the container's."""
    return [sys.executable, "-m", "tests.unit.inside_planted", *words[1:]]


async def run(engine: Engine, *drills: Drill) -> list[Result]:
    return await run_on_compose(engine, drills, seed=1, done=lambda _: None, command=planted)


async def test_faults_of_a_drill_in_the_container_are_made_outside_of_it() -> None:
    engine = FakeEngine()
    [result, none, refused] = await run(
        engine, inside_planted.planted_faults, inside_planted.not_there, inside_planted.refused
    )
    assert (result.verdict, result.reason, result.target) == (Verdict.AS_EXPECTED, "", COMPOSE)
    assert [one.what for one in result.journal.faults] == [
        "container of ledger, process 7, ended by signal 9",
        "container of outbox, process 7, is frozen",
        "container of broker-1, process 7, ended by signal 9",
    ]
    assert [words[0] for words in engine.said] == ["exec", "pause", "unpause", "kill", "start"]
    assert none.verdict is Verdict.NOT_ON_THIS_TARGET
    assert none.reason == "compose has no processes on this machine"
    assert (refused.verdict, refused.reason) == (
        Verdict.FAILED,
        "StackNotReadyError: nothing has no container",
    )


async def test_a_run_that_is_interrupted_brings_back_what_it_took_away() -> None:
    engine = FakeEngine()
    running = asyncio.create_task(run(engine, inside_planted.waits))
    await until(lambda: not engine.states["broker-1"]["Running"] or running.done(), "the broker is away", 120.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [words[0] for words in engine.said] == ["kill", "start"]


async def test_a_container_that_ends_before_its_drills_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"ended with 3 after 0 of 1 drills"):
        await run_on_compose(
            FakeEngine(),
            [inside_planted.planted_faults],
            seed=1,
            done=lambda _: None,
            command=lambda *_: [sys.executable, "-c", "raise SystemExit(3)"],
        )


def test_without_an_engine_the_command_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "answers", lambda _: False)
    ended = CliRunner().invoke(command, ["run", "A7", "A2", "--on", "compose"])
    assert ended.exit_code == 1
    assert "A2 not on this target: it runs on local" in ended.stderr
    assert "no Docker engine answers: start one" in ended.stderr


def test_the_command_runs_as_the_operator_and_names_module_and_row() -> None:
    argv = operator(Engine(project="p"), "deploy.drills.inside", "1", "brokers:B15")
    assert argv[:4] == ["docker", "compose", "--project-name", "p"]
    assert argv[-5:] == ["operator", "-m", "deploy.drills.inside", "1", "brokers:B15"]
    for one in ON_COMPOSE:
        assert chosen([f"{module_of(one)}:{one.row}"]) == [one]


def families(drills: Sequence[Drill]) -> set[str]:
    return {tag for one in drills for tag in one.tags}


def test_a_drill_of_several_families_runs_on_compose() -> None:
    assert families(ON_COMPOSE) >= {"brokers", "transactions", "idempotence", "services", "offsets", "configuration"}


def test_drills_of_compose_need_neither_spark_nor_the_tests() -> None:
    """The operator's image has the services' packages only."""
    modules = sorted({module_of(one) for one in ON_COMPOSE})
    blocked = "pyspark", "spark", "tests", "pytest", "playwright"
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import deploy.drills.inside\n"
        f"for name in {modules!r}: __import__('deploy.drills.catalogue.' + name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
