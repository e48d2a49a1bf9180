"""A Docker engine that is started for the verification, and what all of its parts raise and say.

Invariant: the engine has folders and a socket of its own, and touches nothing of the machine's.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deploy.compose.engine import Engine, EngineError, run
from tests.compose.document import PROFILES

PROJECT: Final = "once-verify"
"""The name of the project: its volumes and networks are separate from those of `docker compose up`."""
_START_S: Final = 60.0
_STOP_S: Final = 60.0
_POLL_S: Final = 0.2
_TAIL_LINES: Final = 30


class VerifyError(EngineError):
    """The verification failed; the message says why, and what to do."""


class Interrupted(BaseException):
    """SIGTERM or SIGINT was received. No step may handle it as a failure of its own."""


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    print(f"compose-verify: {text}", file=sys.stderr, flush=True)


def engine_for(environment: Mapping[str, str] | None = None, settings: Mapping[str, str] | None = None) -> Engine:
    """Return an engine for the verification's project, with all profiles."""
    return Engine(environment or {}, settings or {}, PROJECT, PROFILES)


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


class OwnEngine:
    """An engine that is started here, with everything in one folder.

    Args:
        directory: for its data, socket and log; removed with `remove`.
        environment: further variables of its command line.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        socket = f"unix://{directory}/docker.sock"
        self.engine = engine_for({**environment, "DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"})
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
