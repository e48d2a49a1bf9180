"""The containers of a deployment, by the names of their services: killed, taken away, paused, brought back.

Invariant: what was taken away is listed until it is brought back, so that nothing stays down.

SIGKILL comes from within a container, as from the kernel when memory runs out: its first process then ends as well,
and the restart policy brings the container back. After `docker kill` the engine leaves it down.
"""

import time
from typing import Any, Final

from deploy.compose.engine import Engine, EngineError

BACK_S: Final = 240.0
_POLL_S: Final = 1.0
_KILLED: Final = "137"
"""The exit code of a program that ended by SIGKILL."""


class Containers:
    """The containers of an engine.

    Attributes:
        taken: services whose containers are down or paused.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.taken: set[str] = set()
        self._restarts: dict[str, int] = {}
        """Of each killed container, how often it was restarted before."""

    def kill(self, service: str) -> str:
        """Kill a container's processes; its restart policy brings it back.

        Returns:
            The evidence; empty if it did not run.

        Raises:
            EngineError: it has no container, or nothing could be killed.
        """
        running = self._running(service)
        if not running:
            return ""
        self._restarts[service] = self.restarts(service)
        # -1 spares its own shell; the container may be gone before that shell has ended
        try:
            self.engine.compose("exec", "--no-TTY", service, "sh", "-c", "kill -9 -1")
        except EngineError as error:
            if _KILLED not in str(error):
                raise
        return f"{running} ended by signal 9"

    def take_away(self, service: str) -> str:
        """Kill a container by SIGKILL, and leave it down; returns and raises as `kill`."""
        return self._take(service, "kill", "ended by signal 9")

    def stop(self, service: str) -> str:
        """Stop a container by SIGTERM, wait until it has ended, and leave it down; returns and raises as `kill`."""
        return self._take(service, "stop", "has stopped")

    def pause(self, service: str) -> str:
        """Freeze a container's processes; returns and raises as `kill`."""
        return self._take(service, "pause", "is frozen")

    def bring_back(self, service: str) -> None:
        """Start or thaw a container. Raises EngineError."""
        self.engine.compose("unpause" if self._state(service)["Paused"] else "start", service)
        self.taken.discard(service)

    def is_ready(self, service: str) -> bool:
        """Whether a container is healthy and, after a kill, restarted. Raises EngineError."""
        state = self._state(service)
        if self.restarts(service) <= self._restarts.get(service, -1) or state["Paused"]:
            return False
        # Programs that have ended well, such as the one that makes the topics, have no health
        return bool(state.get("Health", {}).get("Status") == "healthy")

    def wait_ready(self, *services: str, deadline_s: float = BACK_S) -> None:
        """Wait until containers are healthy.

        Raises:
            EngineError: one is not in time.
        """
        deadline = time.monotonic() + deadline_s
        for service in services:
            while not self.is_ready(service):
                if time.monotonic() > deadline:
                    raise EngineError(f"{service} is {self._state(service)['Status']} after {deadline_s:g} s")
                time.sleep(_POLL_S)

    def heal(self) -> None:
        """Bring back every container that was taken away. Raises the first EngineError, after all were tried."""
        errors = []
        for service in sorted(self.taken):
            try:
                self.bring_back(service)
            except EngineError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def restarts(self, service: str) -> int:
        """Return how often the engine has restarted a container. Raises EngineError."""
        return int(self.engine.container(service)["RestartCount"])

    def _take(self, service: str, command: str, what: str) -> str:
        running = self._running(service)
        self.taken.add(service)
        self._restarts.pop(service, None)  # its restarts are counted from 0 once it is started
        self.engine.compose(command, service)
        return f"{running} {what}" if running else ""

    def _running(self, service: str) -> str:
        """Return the container's first process; an empty text if it does not run."""
        state = self._state(service)
        return f"container of {service}, process {state['Pid']}," if state["Running"] else ""

    def _state(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = self.engine.container(service)["State"]
        return found
