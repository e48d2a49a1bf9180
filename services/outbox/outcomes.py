"""What a call to the outside came to, and what a sink is. Pure.

The one question that decides whether an effect may be tried again is whether the last call may have been taken.
"""

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from shared.events.effects import EffectRequest


@dataclass(frozen=True, slots=True)
class Delivered:
    """The destination took it, now or at an earlier call with the same key."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Retriable:
    """The destination certainly did not take it, and may do so later.

    Attributes:
        retry_after_s: seconds that the destination asked to be left alone; None where it did not say.
    """

    detail: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The destination will never take it as it is."""

    detail: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The call may have been taken: its answer was lost or did not come in time."""

    detail: str


Outcome = Delivered | Retriable | Refused | Unknown


class Sink(Protocol):
    """One way to the outside. Open it as an async context manager."""

    @property
    def takes_keys(self) -> bool:
        """Whether the destination knows an effect by its id, so that a second call makes no second effect."""
        ...

    @property
    def calls_max(self) -> int:
        """How many calls it makes at once; more would wait within it."""
        ...

    def circuit(self, destination: str) -> str:
        """What fails together: the name that a circuit breaker watches for this destination."""
        ...

    async def deliver(self, request: EffectRequest) -> Outcome:
        """Make one call. Bounded in time; raises nothing that the outside could cause."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
