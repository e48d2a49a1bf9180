"""A bar chart of volume over time, as coordinates for an SVG. Pure.

Invariant: the axis is time, so an hour without volume is a gap and not left out. With too many hours to draw, a bar is
a day or more, and the chart says so.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

WIDTH, HEIGHT = 900, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 10, 28
BARS_MAX = 336  # two weeks of hours: a bar is some 2 px wide then
_STEPS_H = (1, 24, 24 * 7, 24 * 28, 24 * 364)
_LABELS = 6
_LINES = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Bar:
    """A bar and its text; lengths in units of the view box."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class Tick:
    """A label at `at` units along its axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart."""

    per: str  # the width of a bar: an hour, a day, or a number of days
    bars: tuple[Bar, ...]  # in the order of time
    times: tuple[Tick, ...]  # labels of the horizontal axis
    counts: tuple[Tick, ...]  # labels of the vertical axis, with a line each
    text: str  # the figures in a sentence, for screen readers


def chart(volume: Mapping[str, int]) -> Chart | None:
    """Draw the chart; None without any volume.

    `volume` has counts by hour, its beginning in ISO 8601 UTC; hours without any may be left out.
    """
    hours = {_hour(text): count for text, count in volume.items() if count}
    if not hours:
        return None
    step_h = _step(min(hours), max(hours))
    binned: defaultdict[int, int] = defaultdict(int)
    for hour, count in hours.items():
        binned[hour // step_h] += count
    first, last = min(binned), max(binned)
    most = max(binned.values())
    top, lines = _scale(most)
    slot = (WIDTH - LEFT - RIGHT) / (last - first + 1)
    per = "hour" if step_h == 1 else "day" if step_h == 24 else f"{step_h // 24} days"

    def bar(index: int) -> Bar:
        height = (HEIGHT - TOP - BOTTOM) * binned[index] / top
        x = LEFT + slot * (index - first) + slot * 0.1
        text = f"{_label(index, step_h)}: {binned[index]:,}"
        return Bar(round(x, 2), round(HEIGHT - BOTTOM - height, 2), round(slot * 0.8, 2), round(height, 2), text)

    every = -(-(last - first + 1) // _LABELS)
    times = tuple(
        Tick(round(LEFT + slot * (index - first + 0.5), 2), _label(index, step_h))
        for index in range(first, last + 1, every)
    )
    counts = tuple(
        Tick(round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * line / top, 2), f"{line:,}") for line in lines
    )
    peak = min(index for index, count in binned.items() if count == most)
    text = (
        f"{sum(hours.values()):,} between {_label(first, step_h)} and {_label(last, step_h)} UTC, one bar per {per}; "
        f"the most, {most:,}, at {_label(peak, step_h)}."
    )
    bars = tuple(bar(index) for index in sorted(binned))
    return Chart(per, bars, times, counts, text)


def _hour(text: str) -> int:
    """Return hours since 1970."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(hours=1)


def _step(first: int, last: int) -> int:
    """Return the number of hours in a bar."""
    return next((step for step in _STEPS_H if last // step - first // step < BARS_MAX), _STEPS_H[-1])


def _scale(most: int) -> tuple[int, list[int]]:
    """Return the top of the vertical axis, and its lines: steps of 1, 2 or 5 times a power of ten."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            step = factor * power
            if step * _LINES >= most:
                top = -(-most // step) * step
                return top, list(range(0, top + 1, step))
        power *= 10


def _label(index: int, step_h: int) -> str:
    time = _EPOCH + timedelta(hours=index * step_h)
    return time.strftime("%Y-%m-%d %H:%M" if step_h == 1 else "%Y-%m-%d")
