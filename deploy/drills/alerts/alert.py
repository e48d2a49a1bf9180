"""An alert, and the fault that it must report."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from deploy.drills.alerts.site import Site


class SiteFault(Protocol):
    """One fault, injected once and healed once. It keeps what healing needs."""

    async def inject(self, site: Site, /) -> str:
        """Make the fault; it is there when this returns.

        Returns:
            What shows that it took effect.

        Raises:
            NoEvidenceError: it could not be made, so the drill would prove nothing.
        """
        ...

    async def heal(self, site: Site, /) -> None:
        """Undo it, unless it ends by itself; also after an `inject` that failed half-way."""
        ...


class AlertFault(NamedTuple):
    """An alert, and the fault that it must report.

    Attributes:
        name: the alert's.
        does: the fault, in a sentence.
        fault: makes the fault.
        labels: the alert's labels, each a regular expression for the whole value.
        within_s: seconds from the fault until the alert must fire.
        ends_itself: the alert must resolve before the fault is healed.
        quick: whether `make test` runs the drill.
    """

    name: str
    does: str
    fault: Callable[[], SiteFault]
    labels: Mapping[str, str]
    within_s: float = 40.0
    ends_itself: bool = False
    quick: bool = False
