"""Behaviours of the runtime that are known to be wrong.

The list is to become empty. A history that fails by nothing else is counted apart, and printed. Histories of
`test_known.py` show each behaviour.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple


class Known(NamedTuple):
    """A known behaviour.

    Attributes:
        name: of the behaviour.
        breaks: what it does, and the promise that it breaks.
        explains: whether it explains a finding, given the history's faults and moved offsets as text.
    """

    name: str
    breaks: str
    explains: Callable[[str, Sequence[str]], bool] = lambda *_: False


def _late_init(finding: str, noted: Sequence[str]) -> bool:
    if " ended as fenced at " not in finding:
        return False
    own = f"who={finding.split()[1]!r}"
    return any(own in text and "InitProducerId" in text for text in noted)


KNOWN: Final[tuple[Known, ...]] = (
    Known(
        "late InitProducerId",
        "An instance ends as fenced only if another one took over. An InitProducerId of an earlier session arrives "
        "late and raises the epoch above that of the present producer, which counts its own requests only.",
        _late_init,
    ),
    Known(
        "eager rebalance",
        "A partition that stays with its member is not interrupted. Each rebalance gives all partitions back, drops "
        "their state and restores it.",
    ),
    Known(
        "no leave",
        "Partitions of a member that stops pass to others at once. A static member does not leave, so they wait for "
        "the end of its session.",
    ),
    Known(
        "unknown outcome",
        "A fault of one partition does not interrupt another one. After one EndTxn without an answer the instance "
        "leaves its group, joins again and restores all partitions.",
    ),
)


def explained(findings: Sequence[str], noted: Sequence[str]) -> list[str] | None:
    """The names of the behaviours that explain all of these findings; None where one is unexplained."""
    names: list[str] = []
    for finding in findings:
        name = next((one.name for one in KNOWN if one.explains(finding, noted)), None)
        if name is None:
            return None
        names.append(name)
    return names
