"""Progress of a command on stderr: a bar with rate and time left on a terminal, else a line now and then."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_LINE_EVERY_S = 3.0


class _RateColumn(ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self._unit}/s" if speed else "", style="progress.data.speed")


class StderrProgress:
    """Call it with done and total; use it as a context.

    Args:
        what: what is being done, a few words.
        unit: what is counted, such as records.
    """

    def __init__(self, what: str, unit: str) -> None:
        self._what = what
        self._unit = unit
        self._begun: float | None = None
        self._last = 0.0
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn(what),
                BarColumn(),
                MofNCompleteColumn(),
                _RateColumn(unit),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(what, total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Note how far it is."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)
            return
        now = time.monotonic()
        if self._begun is None:  # time before the first step does not count for the rate
            self._begun = self._last = now
        if now - self._last >= _LINE_EVERY_S:
            self._last = now
            print(progress_line(self._what, self._unit, done, total, now - self._begun), file=sys.stderr)


def progress_line(what: str, unit: str, done: int, total: int, elapsed_s: float) -> str:
    """One line: how far, how fast, and how long it will still take, in seconds."""
    rate = done / elapsed_s if elapsed_s > 0 else 0.0
    left = f", {max(total - done, 0) / rate:.0f} s left" if rate else ""
    return f"{what}: {done:,} of {total:,} {unit}, {rate:,.0f}/s{left}"
