"""What scopes need beside their input, as the runtime knows it."""

from typing import Protocol


class Beside(Protocol):
    """Reference data and the like; it lives as long as one membership of the group.

    Its failure ends the membership. The next one starts it anew: with the connections and credentials of then, and
    with nothing that the last one held.
    """

    async def start(self) -> None:
        """Get ready; the group is joined afterwards.

        Raises:
            KafkaUnavailableError: the cluster does not answer.
        """
        ...

    def check(self) -> None:
        """Ask whether it still works. Nothing is said of one that has not started.

        Raises:
            Exception: what ended it.
        """
        ...

    async def stop(self) -> None:
        """End it, however far `start` came; it may be started again."""
        ...
