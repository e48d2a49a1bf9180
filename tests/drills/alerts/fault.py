"""Faults and drills."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.drills.site import Site


class Fault(ABC):
    """One fault, injected once and healed once. It keeps what healing needs."""

    @abstractmethod
    def inject(self, site: Site) -> None:
        """Make the fault; it is there when this returns.

        Raises:
            AssertionError: it could not be made, so the drill would prove nothing.
        """

    @abstractmethod
    def heal(self, site: Site) -> None:
        """Undo it, unless it ends by itself; also after an `inject` that failed half-way."""


class Drill(NamedTuple):
    """An alert, and the fault that it must report.

    Attributes:
        alert: its name.
        does: the fault, in a sentence.
        fault: makes the fault.
        labels: the alert's labels, each a regular expression for the whole value.
        within_s: seconds from the fault until the alert must fire.
        ends_itself: the alert must resolve before the fault is healed.
    """

    alert: str
    does: str
    fault: Callable[[], Fault]
    labels: Mapping[str, str]
    within_s: float = 40.0
    ends_itself: bool = False
