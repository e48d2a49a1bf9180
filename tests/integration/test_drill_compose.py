"""Drills of target `compose` on the secure local stack, as the operator, with its processes in place of containers.

`make compose-verify` runs them on real containers.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.compose.engine import Engine
from deploy.drills.compose import run_on_compose
from deploy.drills.drill import COMPOSE, Verdict
from deploy.drills.index import find
from deploy.drills.run import PIPELINE, started
from deploy.drills.target import LocalTarget
from tests.tiers import full

pytestmark = [full, pytest.mark.timeout(900)]

ROWS = ("A7", "B17", "B19", "E7")


@dataclass(frozen=True)
class LocalEngine(Engine):
    """Docker's command line, acting on the processes of a local stack."""

    target: LocalTarget | None = None

    @property
    def there(self) -> LocalTarget:
        assert self.target is not None
        return self.target

    def compose(self, *words: str, deadline_s: float = 120.0) -> str:  # noqa: ARG002 # as of Engine
        service = words[2] if words[0] == "exec" else words[-1]
        acts: dict[str, Callable[[str], object]] = {
            "exec": self.there.kill,
            "kill": self.there.take_away,
            "stop": self.there.stop,
            "pause": self.there.pause,
            "unpause": self.there.bring_back,
            "start": self.there.bring_back,
        }
        acts[words[0]](service)
        return ""

    def container(self, service: str) -> dict[str, Any]:
        component = self.there.component(service)
        health = "healthy" if component.ready else "starting"
        state = {
            "Pid": component.process.pid,
            "Running": component.process.running,
            "Paused": service in self.there.taken and component.process.running,
            "Status": "running",
            "Health": {"Status": health},
        }
        return {"State": state, "RestartCount": component.restarts}

    def answers(self) -> bool:
        return True


async def test_drills_run_as_the_operator_and_their_faults_are_made_outside(tmp_path: Path) -> None:
    async with started(tmp_path, PIPELINE, secure=True) as target:
        tls = target.access.tls
        assert tls is not None
        settings = {
            "ONCE_BOOTSTRAP_SERVERS": target.bootstrap_servers,
            "ONCE_TLS_CA_FILE": str(tls.ca_file),
            "ONCE_TLS_IDENTITY_FILE": str(tls.identity_file),
        }
        assert isinstance(target, LocalTarget)
        engine = LocalEngine({}, settings, target=target)
        drills = find(ROWS)
        results = await run_on_compose(
            engine, drills, seed=1, done=lambda _: None, command=lambda _, *words: [sys.executable, "-m", *words]
        )
    assert [(one.row, one.verdict, one.reason) for one in results] == [(row, Verdict.AS_EXPECTED, "") for row in ROWS]
    assert {one.target for one in results} == {COMPOSE}
    faults = [fault.fault for one in results for fault in one.journal.faults]
    assert sum(name.startswith("group ") for name in faults) == 4
    assert sum(name.endswith(" away") for name in faults) == 2
