"""Behaviours of the runtime that are known to be wrong, and by which a history may fail.

The list is to become empty. A history that fails by nothing else is counted apart, and printed.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.simulation.coordinator import LATE


class Known(NamedTuple):
    """A known behaviour.

    Attributes:
        name: of the behaviour.
        breaks: the promise that it breaks.
        explains: whether it explains a finding, given the history's faults as text.
    """

    name: str
    breaks: str
    explains: Callable[[str, str], bool]


_ADDING: Final = ("AddPartitionsToTxn", "AddOffsetsToTxn")


def _phantom(finding: str, faults: str) -> bool:
    return " ended as fenced at " in finding and LATE in finding and any(api in faults for api in _ADDING)


KNOWN: Final[tuple[Known, ...]] = (
    Known(
        "phantom transaction",
        "Nobody ends as fenced unless another one took over. A request that adds a partition and arrives after its "
        "transaction has ended opens another one. Its producer does not know of it; the coordinator aborts it and "
        "raises the epoch.",
        _phantom,
    ),
)


def explained(findings: Sequence[str], faults: str) -> list[str] | None:
    """The names of the behaviours that explain all of these findings; None where one is unexplained."""
    names: list[str] = []
    for finding in findings:
        name = next((one.name for one in KNOWN if one.explains(finding, faults)), None)
        if name is None:
            return None
        names.append(name)
    return names
