"""Faults of processes: a component is killed, taken away for a while, or paused."""

import asyncio

from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.target import Target


class Kill:
    """SIGKILL of a component, which is started again."""

    def __init__(self, component: str) -> None:
        self._component = component

    @property
    def name(self) -> str:
        """Return what happens to whom."""
        return f"SIGKILL of {self._component}"

    async def inject(self, target: Target) -> str:
        """Kill it."""
        return _evidence(await asyncio.to_thread(target.kill, self._component), self._component)

    async def heal(self, target: Target) -> None:
        """Wait until it is ready again."""
        await target.settle()


class _Absence:
    """A component that does not run until it is healed."""

    def __init__(self, component: str) -> None:
        self._component = component

    async def heal(self, target: Target) -> None:
        """Start or resume it, and wait until the target is healthy."""
        if self._component in target.taken:
            await asyncio.to_thread(target.bring_back, self._component)
        await target.settle()


class TakeAway(_Absence):
    """SIGKILL of a component that stays away until it is healed."""

    @property
    def name(self) -> str:
        """Return what happens to whom."""
        return f"{self._component} away"

    async def inject(self, target: Target) -> str:
        """Kill it, and prevent its restart."""
        return _evidence(await asyncio.to_thread(target.take_away, self._component), self._component)


class Pause(_Absence):
    """SIGSTOP of a component until it is healed."""

    @property
    def name(self) -> str:
        """Return what happens to whom."""
        return f"{self._component} paused"

    async def inject(self, target: Target) -> str:
        """Pause it."""
        return _evidence(await asyncio.to_thread(target.pause, self._component), self._component)


def _evidence(what: str, component: str) -> str:
    if not what:
        raise NoEvidenceError(f"{component} did not run")
    return what
