"""Docker's command line: one engine, and `docker compose` on it.

Invariant: every command has a deadline. A failure is an error that shows the end of the output.
"""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deploy import PROJECT_ROOT

_AGAIN_S: Final = 5.0
_TAIL_LINES: Final = 30


class EngineError(RuntimeError):
    """A command of Docker failed, or a service did not become healthy in time; the message has what it said last."""


def run(
    argv: Sequence[str], *, environment: Mapping[str, str] | None = None, stdin: bytes = b"", deadline_s: float = 60.0
) -> str:
    """Run a program in the project's root; returns its stdout.

    Raises:
        EngineError: it is missing, failed, or did not end in time.
    """
    named = " ".join(argv[:6])
    try:
        done = subprocess.run(
            argv,
            cwd=PROJECT_ROOT,
            env={**os.environ, **(environment or {})},
            input=stdin,
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise EngineError(f"{argv[0]} is not on PATH") from error
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{named} did not end within {deadline_s:g} s") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise EngineError(f"{named} ended with {done.returncode}:\n" + "\n".join(said[-_TAIL_LINES:]))
    return done.stdout.decode(errors="replace")


@dataclass(frozen=True)
class Engine:
    """One Docker engine.

    Attributes:
        environment: variables that select it.
        settings: variables of docker-compose.yml.
        project: its volumes and networks are separate from those of others; empty for the file's own, `once`.
        profiles: whose services commands without names are for.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    project: str = ""
    profiles: tuple[str, ...] = ()

    def docker(self, *words: str, stdin: bytes = b"", deadline_s: float = 60.0) -> str:
        """`docker WORDS`; its stdout.

        Raises:
            EngineError: as `run`.
        """
        return run(["docker", *words], environment=self.environment, stdin=stdin, deadline_s=deadline_s)

    def compose(self, *words: str, deadline_s: float = 120.0) -> str:
        """`docker compose WORDS` on the project's docker-compose.yml; its stdout.

        Raises:
            EngineError: as `run`.
        """
        return run(self.argv(*words), environment=self.variables, deadline_s=deadline_s)

    def argv(self, *words: str) -> list[str]:
        """Return the command line of `docker compose WORDS`, to be run in the project's root with `variables`."""
        project = ["--project-name", self.project] if self.project else []
        profiles = [word for profile in self.profiles for word in ("--profile", profile)]
        return ["docker", "compose", *project, *profiles, *words]

    @property
    def variables(self) -> dict[str, str]:
        """Return the variables of `argv`, on top of the environment."""
        return {**self.environment, **self.settings}

    def up(self, services: Sequence[str], *, deadline_s: float = 900.0) -> None:
        """Bring services up, and wait until all are healthy.

        A service that ends because a dependency is not there yet is started again by its restart policy; then the wait
        begins again.

        Raises:
            EngineError: one is not healthy in time; its log's end is shown.
        """
        deadline = time.monotonic() + deadline_s
        while True:
            left_s = max(1.0, deadline - time.monotonic())
            try:
                self.compose("up", "--detach", "--wait", "--quiet-pull", *services, deadline_s=left_s)
            except EngineError as error:
                if time.monotonic() < deadline:
                    time.sleep(_AGAIN_S)
                    continue
                logs = self.compose("logs", "--no-color", "--tail", "15", *services)
                raise EngineError(f"{error}\n{logs}") from error
            return

    def operate(self, *words: str, deadline_s: float = 300.0) -> str:
        """Run `once WORDS` in a new container as the operator; returns its stdout."""
        return self.compose("run", "--rm", "--no-deps", "--no-TTY", "operator", *words, deadline_s=deadline_s)

    def container(self, service: str) -> dict[str, Any]:
        """Inspect a service's container.

        Raises:
            EngineError: it has none.
        """
        identity = self.compose("ps", "--all", "--quiet", service).strip()
        if not identity:
            raise EngineError(f"{service} has no container")
        (found,) = json.loads(self.docker("inspect", identity))
        return dict(found)

    def answers(self) -> bool:
        """Whether the engine answers."""
        try:
            self.docker("info", "--format", "{{.ServerVersion}}", deadline_s=20)
        except EngineError:
            return False
        return True
