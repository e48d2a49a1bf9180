"""Memory and open files of processes over time, and whether they grow. Linux: see proc(5)."""

import resource
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median_low
from typing import Final, NamedTuple

GROWTH_MAX: Final = 0.05
"""Of the last third over the second: the first one fills caches and windows."""


class Footprint(NamedTuple):
    """What a process holds: resident memory in MB, and open files."""

    memory_mb: float
    open_files: int


class Sample(NamedTuple):
    """A process's footprint at one moment, in seconds since the run began."""

    at_s: float
    process: str
    footprint: Footprint


class Growth(NamedTuple):
    """How a figure of a process grew, from the second third of a run to the last.

    Of memory, it is what nine tenths of the samples do not exceed; of open files, which come and go, the median.
    """

    process: str
    figure: str
    second: float
    last: float

    @property
    def share(self) -> float:
        """Return by how much the last third is above the second, as a share of it."""
        return (self.last - self.second) / self.second

    @property
    def is_bounded(self) -> bool:
        """Whether it grew no more than it may."""
        return self.share <= GROWTH_MAX


def footprint(pid: int) -> Footprint | None:
    """Return what a process holds; None when it has just ended."""
    process = Path(f"/proc/{pid}")
    try:
        pages = int((process / "statm").read_text().split()[1])
        return Footprint(pages * resource.getpagesize() / 1e6, sum(1 for _ in (process / "fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return None


def growths(samples: Iterable[Sample], seconds: float) -> list[Growth]:
    """Return each figure's growth, for the processes that have samples in both of the last thirds. Pure.

    Args:
        seconds: how long the run took.
    """
    thirds: dict[tuple[str, int], list[Footprint]] = {}
    for sample in samples:
        third = min(int(3 * sample.at_s / seconds), 2)
        thirds.setdefault((sample.process, third), []).append(sample.footprint)
    found = []
    for process in sorted({process for process, _ in thirds}):
        second, last = thirds.get((process, 1)), thirds.get((process, 2))
        if second and last:
            found += [
                Growth(process, figure, of_third(second), of_third(last)) for figure, of_third in _FIGURES.items()
            ]
    return found


def _high(values: list[float]) -> float:
    return sorted(values)[(9 * len(values) - 1) // 10]


_FIGURES: Final[Mapping[str, Callable[[list[Footprint]], float]]] = {
    "memory, MB": lambda found: _high([one.memory_mb for one in found]),
    "open files": lambda found: median_low([one.open_files for one in found]),
}
