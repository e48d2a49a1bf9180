"""Faults of processes: a component is killed, taken away for a while, or paused."""

from pathlib import Path

from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.target import Target


class Kill:
    """SIGKILL of a component; the supervisor starts it again."""

    def __init__(self, component: str) -> None:
        self._component = component

    @property
    def name(self) -> str:
        """Return what happens to whom."""
        return f"SIGKILL of {self._component}"

    async def inject(self, target: Target) -> str:
        """Kill it."""
        component = target.component(self._component)
        pid = component.process.pid
        if pid is None:
            raise NoEvidenceError(f"{self._component} did not run")
        component.kill()
        return f"process {pid} ended by signal 9"

    async def heal(self, target: Target) -> None:
        """Wait until it is ready again."""
        await target.settle()


class TakeAway:
    """SIGKILL of a component that stays away until it is healed."""

    def __init__(self, component: str) -> None:
        self._component = component

    @property
    def name(self) -> str:
        """Return what happens to whom."""
        return f"{self._component} away"

    async def inject(self, target: Target) -> str:
        """Kill it, and prevent its restart."""
        pid = target.component(self._component).process.pid
        if pid is None:
            raise NoEvidenceError(f"{self._component} did not run")
        target.take_away(self._component)
        return f"process {pid} ended by signal 9"

    async def heal(self, target: Target) -> None:
        """Start it again, and wait until the target is healthy."""
        if self._component in target.taken:
            target.bring_back(self._component)
        await target.settle()


class Pause:
    """SIGSTOP of a component until it is healed."""

    def __init__(self, component: str) -> None:
        self._component = component

    @property
    def name(self) -> str:
        """Return what happens to whom."""
        return f"{self._component} paused"

    async def inject(self, target: Target) -> str:
        """Pause it."""
        pid = target.component(self._component).process.pid
        if pid is None:
            raise NoEvidenceError(f"{self._component} did not run")
        target.pause(self._component)
        state = _state(pid)
        if state != "T":
            raise NoEvidenceError(f"process {pid} is in state {state}, not stopped")
        return f"process {pid} is stopped"

    async def heal(self, target: Target) -> None:
        """Resume it, and wait until the target is healthy."""
        if self._component in target.taken:
            target.bring_back(self._component)
        await target.settle()


def _state(pid: int) -> str:
    """Return a process's state; see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
