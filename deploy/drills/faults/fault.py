"""The contract of a fault."""

from typing import Protocol

from deploy.drills.target import Target


class NoEvidenceError(Exception):
    """Nothing shows that a fault took effect, so the drill proves nothing; the message says what was looked for."""


class Fault(Protocol):
    """A fault with a beginning and an end.

    Attributes:
        name: what happens to whom, such as `SIGKILL of broker-1`; final once it was injected.
    """

    @property
    def name(self) -> str:
        """Return what happens to whom."""
        ...

    async def inject(self, target: Target) -> str:
        """Make the fault.

        Returns:
            What shows that it took effect; empty where only the drill can see that, and notes it by `Stage.evidence`.

        Raises:
            NoEvidenceError: nothing does.
        """
        ...

    async def heal(self, target: Target) -> None:
        """End the fault, and wait until the target is healthy. Does nothing where it was not injected."""
        ...
