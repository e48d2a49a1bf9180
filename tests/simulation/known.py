"""Behaviours of the runtime that are known to be wrong, and by which a history may fail.

The list is to become empty. A history that fails by nothing else is counted apart, and printed.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple


class Known(NamedTuple):
    """A known behaviour.

    Attributes:
        name: of the behaviour.
        breaks: the promise that it breaks.
        explains: whether it explains a finding.
    """

    name: str
    breaks: str
    explains: Callable[[str], bool]


KNOWN: Final[tuple[Known, ...]] = ()


def explained(findings: Sequence[str]) -> list[str] | None:
    """The names of the behaviours that explain all of these findings; None where one is unexplained."""
    names: list[str] = []
    for finding in findings:
        name = next((one.name for one in KNOWN if one.explains(finding)), None)
        if name is None:
            return None
        names.append(name)
    return names
