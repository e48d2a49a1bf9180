"""Lines over time or over any quantity, as coordinates for an SVG. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

WIDTH: Final = 900
HEIGHT: Final = 190
LEFT, RIGHT, TOP, BOTTOM = 78, 30, 18, 26
_LINES: Final = 4
_TIMES: Final = 10
"""Most labels of the vertical and of the horizontal axis."""
_LOGARITHMIC_FROM: Final = 50.0
"""The ratio of the largest to the smallest x from which an axis of quantities is logarithmic."""

Points = Sequence[tuple[float, float]]


class Line(NamedTuple):
    """A line; `parts` are the points of its polylines, between which there is a gap, and `dots` are single points."""

    name: str
    style: int
    parts: tuple[str, ...]
    dots: tuple[tuple[float, float], ...]


class Tick(NamedTuple):
    """A label at `at` units along its axis."""

    at: float
    text: str


class Mark(NamedTuple):
    """A marked time: from `x` on, `width` units; 0 for a moment."""

    x: float
    width: float
    label: str


class Chart(NamedTuple):
    """A chart's parts.

    Attributes:
        text: the figures in a sentence, for screen readers.
    """

    title: str
    x: str
    lines: tuple[Line, ...]
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    text: str


def chart(
    title: str,
    x: str,
    lines: Mapping[str, Points],
    *,
    from_zero: bool = True,
    span: tuple[float, float] | None = None,
    gap: float | None = None,
    marks: Iterable[tuple[float, float | None, str]] = (),
) -> Chart:
    """Draw lines.

    Args:
        title: what the vertical axis shows, with its unit.
        x: what the horizontal axis shows, with its unit.
        from_zero: whether the vertical axis begins at 0; else near the lowest value, as is better for offsets.
        span: first and last of a linear horizontal axis; None takes the points' own range.
        gap: a line has a gap where its points are farther apart; None draws none.
        marks: beginning, end and label of marked times; the end is None for a moment.
    """
    places = [place for points in lines.values() for place, _ in points]
    across = _Axis.of(places or [0.0], LEFT, WIDTH - RIGHT, span=span)
    values = [value for points in lines.values() for _, value in points] or [0.0]
    up = _Axis.of([0.0, *values] if from_zero else values, HEIGHT - BOTTOM, TOP)
    drawn = tuple(_line(name, number, points, across, up, gap) for number, (name, points) in enumerate(lines.items()))
    marked = tuple(
        Mark(across.at(begun), 0 if ended is None else round(across.at(ended) - across.at(begun), 2), label)
        for begun, ended, label in marks
    )
    ys = up.ticks() if lines else ()
    return Chart(title, x, drawn, across.ticks(), ys, marked, _text(title, lines))


class _Axis:
    """Maps values from `low` to `high` to units from `first` to `last`."""

    def __init__(self, low: float, high: float, first: float, last: float, *, logarithmic: bool) -> None:
        self._low, self._high = low, high
        self._first, self._last = first, last
        self._logarithmic = logarithmic

    @classmethod
    def of(
        cls, values: Iterable[float], first: float, last: float, *, span: tuple[float, float] | None = None
    ) -> "_Axis":
        """Return an axis for these values, logarithmic where they differ much; or one for a `span`."""
        if span is not None:
            low, high = span
            return cls(low, max(high, low + 1.0), first, last, logarithmic=False)
        found = list(values)
        low, high = min(found), max(found)
        if first < last and low > 0 and high / low >= _LOGARITHMIC_FROM:
            return cls(low, high, first, last, logarithmic=True)
        step = _step((high - low) or 1.0)
        begin = math.floor(low / step) * step
        return cls(begin, max(math.ceil(high / step) * step, begin + step), first, last, logarithmic=False)

    def at(self, value: float) -> float:
        if self._logarithmic:
            share = math.log(value / self._low) / math.log(self._high / self._low)
        else:
            share = (value - self._low) / (self._high - self._low or 1.0)
        return round(self._first + share * (self._last - self._first), 2)

    def ticks(self) -> tuple[Tick, ...]:
        if self._logarithmic:
            powers = range(math.ceil(math.log10(self._low)), math.floor(math.log10(self._high)) + 1)
            values = [10.0**power for power in powers]
        else:
            step = _step(self._high - self._low, _TIMES if self._first < self._last else _LINES)
            first = math.ceil(self._low / step)
            values = [step * number for number in range(first, math.floor(self._high / step + 1e-9) + 1)]
        return tuple(Tick(self.at(value), number(value)) for value in values)


def number(value: float) -> str:
    """Return a number for people: `12,500`, `0.25`."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _step(span: float, steps_max: int = _LINES) -> float:
    """Return 1, 2 or 5 times a power of ten: at most so many steps make the span."""
    power = 10.0 ** math.floor(math.log10(span / steps_max))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * steps_max >= span * (1 - 1e-9))


def _line(name: str, number_: int, points: Points, across: _Axis, up: _Axis, gap: float | None) -> Line:
    runs: list[list[tuple[float, float]]] = []
    last = -math.inf
    for place, value in points:
        if not runs or (gap is not None and place - last > gap):
            runs.append([])
        runs[-1].append((across.at(place), up.at(value)))
        last = place
    parts = tuple(" ".join(f"{x},{y}" for x, y in run) for run in runs if len(run) > 1)
    return Line(name, number_, parts, tuple(run[0] for run in runs if len(run) == 1))


def _text(title: str, lines: Mapping[str, Points]) -> str:
    said = []
    for name, points in lines.items():
        values = [value for _, value in points]
        if values:
            said.append(f"{name} from {number(min(values))} to {number(max(values))}, at last {number(values[-1])}")
    return f"{title}: {'; '.join(said)}." if said else f"{title}."
