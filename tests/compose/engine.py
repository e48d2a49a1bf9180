"""Docker's command line: one engine, found or started, and `docker compose` on it.

Invariant: every command has a deadline. A failure is an error that shows the end of the output. An engine that
is started here has folders and a socket of its own, and touches nothing of the machine's.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.compose.document import PROFILES, ROOT

PROJECT: Final = "once-verify"
"""The name of the project: its volumes and networks are separate from those of `docker compose up`."""
_START_S: Final = 60.0
_STOP_S: Final = 60.0
_POLL_S: Final = 0.2
_AGAIN_S: Final = 5.0
_TAIL_LINES: Final = 30


class VerifyError(RuntimeError):
    """The verification failed; the message says why, and what to do."""


class Interrupted(BaseException):
    """SIGTERM or SIGINT was received. No step may handle it as a failure of its own."""


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    print(f"compose-verify: {text}", file=sys.stderr, flush=True)


def run(
    argv: Sequence[str], *, environment: Mapping[str, str] | None = None, stdin: bytes = b"", deadline_s: float = 60.0
) -> str:
    """Run a program in the project's root; returns its stdout.

    Raises:
        VerifyError: it is missing, failed, or did not end in time.
    """
    named = " ".join(argv[:6])
    try:
        done = subprocess.run(
            argv,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            input=stdin,
            capture_output=True,
            timeout=deadline_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise VerifyError(f"{argv[0]} is not on PATH") from error
    except subprocess.TimeoutExpired as error:
        raise VerifyError(f"{named} did not end within {deadline_s:g} s") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise VerifyError(f"{named} ended with {done.returncode}:\n" + "\n".join(said[-_TAIL_LINES:]))
    return done.stdout.decode(errors="replace")


def mounted_below(mounts: str, directory: Path) -> list[str]:
    """List the mounts below a folder, the innermost first. Pure.

    Args:
        mounts: of /proc/mounts.
        directory: absolute.
    """
    places = [line.split(" ")[1] for line in mounts.splitlines()]
    return sorted((place for place in places if place.startswith(f"{directory}/")), reverse=True)


def remove(directory: Path) -> None:
    """Remove the folder of an engine that has ended, with its mounts.

    Raises:
        VerifyError: something in it is still in use.
    """
    for place in mounted_below(Path("/proc/mounts").read_text(), directory):
        run(["umount", place])
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        raise VerifyError(f"{directory} cannot be removed wholly: remove it by hand")


@dataclass(frozen=True)
class Engine:
    """One Docker engine.

    Attributes:
        environment: variables that select it.
        settings: variables of docker-compose.yml.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def docker(self, *words: str, stdin: bytes = b"", deadline_s: float = 60.0) -> str:
        """`docker WORDS`; its stdout.

        Raises:
            VerifyError: as `run`.
        """
        return run(["docker", *words], environment=self.environment, stdin=stdin, deadline_s=deadline_s)

    def compose(self, *words: str, deadline_s: float = 120.0) -> str:
        """`docker compose WORDS` on the project's docker-compose.yml, all profiles named; its stdout.

        Raises:
            VerifyError: as `run`.
        """
        profiles = [word for profile in PROFILES for word in ("--profile", profile)]
        argv = ["docker", "compose", "--project-name", PROJECT, *profiles, *words]
        return run(argv, environment={**self.environment, **self.settings}, deadline_s=deadline_s)

    def up(self, services: Sequence[str], *, deadline_s: float = 900.0) -> None:
        """Bring services up, and wait until all are healthy.

        A service that ends because a dependency is not there yet is started again by its restart policy; then the wait
        begins again.

        Raises:
            VerifyError: one is not healthy in time; its log's end is shown.
        """
        deadline = time.monotonic() + deadline_s
        while True:
            left_s = max(1.0, deadline - time.monotonic())
            try:
                self.compose("up", "--detach", "--wait", "--quiet-pull", *services, deadline_s=left_s)
            except VerifyError as error:
                if time.monotonic() < deadline:
                    time.sleep(_AGAIN_S)
                    continue
                logs = self.compose("logs", "--no-color", "--tail", "15", *services)
                raise VerifyError(f"{error}\n{logs}") from error
            return

    def operate(self, *words: str, deadline_s: float = 300.0) -> str:
        """Run `once WORDS` in a new container as the operator; returns its stdout."""
        return self.compose("run", "--rm", "--no-deps", "--no-TTY", "operator", *words, deadline_s=deadline_s)

    def container(self, service: str) -> dict[str, Any]:
        """Inspect a service's container.

        Raises:
            VerifyError: it has none.
        """
        identity = self.compose("ps", "--all", "--quiet", service).strip()
        if not identity:
            raise VerifyError(f"{service} has no container")
        (found,) = json.loads(self.docker("inspect", identity))
        return dict(found)

    def answers(self) -> bool:
        """Whether the engine answers."""
        try:
            self.docker("info", "--format", "{{.ServerVersion}}", deadline_s=20)
        except VerifyError:
            return False
        return True


class OwnEngine:
    """An engine that is started here, with everything in one folder.

    Args:
        directory: for its data, socket and log; removed with `remove`.
        environment: further variables of its command line.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        socket = f"unix://{directory}/docker.sock"
        self.engine = Engine({**environment, "DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"})
        self._argv = [
            "dockerd",
            *("--data-root", str(directory / "data"), "--exec-root", str(directory / "exec")),
            *("--pidfile", str(directory / "docker.pid"), "--host", socket),
            *("--bridge", "none"),  # the networks are the project's own
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            VerifyError: it ended, or does not answer in time.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        log_path = self._directory / "dockerd.log"
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(self._argv, stdout=log, stderr=subprocess.STDOUT)
        say(f"dockerd started, pid {self._process.pid}, with its data in {self._directory}")
        deadline = time.monotonic() + _START_S
        while not self.engine.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
                raise VerifyError(f"dockerd does not answer; the end of its log:\n{tail}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop it by its pid, and remove its folder."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            say(f"dockerd stopped, pid {self._process.pid}")
        remove(self._directory)
