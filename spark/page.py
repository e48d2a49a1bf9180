"""report.html: a report for an auditor, in one file without any external resource. Pure.

Invariant: every text from outside is escaped, a payment_id may be any. The page is made from the report alone, so it is
as reproducible.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shared.events.reference import MINOR_DIGITS
from spark.report import Report

_TEMPLATE: Final = "report.html.j2"
Count = TypeVar("Count", int, Decimal)


@dataclass(frozen=True)
class Summary:
    """Answers to a reader's first questions; nothing that is 0 is in it."""

    kinds: tuple[tuple[str, int], ...]  # open breaks without an explanation
    age: str  # of the oldest of them when the cut was taken; empty for a break that this run opened, or for none
    at_risk: tuple[tuple[str, Decimal], ...]  # minor units by currency
    explained_by: tuple[tuple[str, int], ...]  # breaks by person
    explained_since: str  # when the oldest of these was opened, ISO 8601; empty for none
    explained_minor: tuple[tuple[str, Decimal], ...]  # minor units by currency
    in_flight: tuple[tuple[str, int], ...]  # records by what they wait for
    in_flight_total: int


def summary(report: Report) -> Summary:
    breaks = report.breaks
    by, minor = Counter[str](), defaultdict[str, Decimal](Decimal)
    for one in breaks.explained:
        if one.explained is not None:
            by[one.explained.by] += 1
        if one.currency is not None and one.amount_minor is not None:
            minor[one.currency] += one.amount_minor
    return Summary(
        _some(breaks.by_kind),
        "" if breaks.oldest_at is None else age(breaks.oldest_at, report.cut.taken_at),
        _some(breaks.at_risk_minor),
        _some(by),
        min((one.opened_at for one in breaks.explained), default=""),
        _some(minor),
        _some(report.in_flight),
        sum(report.in_flight.values()),
    )


def summary_lines(report: Report) -> list[str]:
    """Return the summary for a terminal, one answer on each line."""
    breaks, found = report.breaks, summary(report)
    lines = []
    if breaks.total and breaks.oldest_at is not None:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.kinds)
        since = when(breaks.oldest_at) + (f" ({found.age})" if found.age else "")
        lines.append(f"open: {breaks.total:,} ({kinds}), the oldest since {since}")
    if found.at_risk:
        lines.append(
            "at risk: " + ", ".join(f"{amount(minor, currency)} {currency}" for currency, minor in found.at_risk)
        )
    if breaks.explained:
        people = ", ".join(f"{count:,} by {by}" for by, count in found.explained_by)
        lines.append(f"explained: {len(breaks.explained):,} ({people}), see once breaks list")
    waiting = ", ".join(f"{words(name)} {count:,}" for name, count in found.in_flight)
    return [*lines, f"in flight: {found.in_flight_total:,}" + (f" ({waiting})" if waiting else "")]


def age(since: str, until: str) -> str:
    """Return the time between two times in ISO 8601, in hours or days; empty where they are equal."""
    passed = datetime.fromisoformat(until) - datetime.fromisoformat(since)
    if passed >= timedelta(days=2):
        return f"{passed.days:,} days"
    return f"{passed // timedelta(hours=1)} h" if passed else ""


def when(time: str) -> str:
    """Return a time in ISO 8601 for people, to the minute: `2026-01-05 08:00 UTC`; empty for none."""
    return f"{time[:16].replace('T', ' ')} UTC" if time else ""


def _some(counts: Mapping[str, Count]) -> tuple[tuple[str, Count], ...]:
    return tuple((name, count) for name, count in sorted(counts.items()) if count)


def render(report: Report) -> str:
    postings: Counter[str] = Counter()
    for hour in report.totals.hours:
        postings[hour.hour] += hour.postings
    volume = chart(postings)
    template = _environment().get_template(_TEMPLATE)
    return template.render(report=report, cut=report.cut, summary=summary(report), volume=volume, geometry=_GEOMETRY)


def amount(minor: Decimal, currency: str) -> str:
    """Return an amount for people: `1,234.50` for 123450 EUR; named minor units for an unknown currency."""
    digits = MINOR_DIGITS.get(currency)
    units = int(minor)
    if digits is None:
        return f"{units:,} minor units"
    whole, rest = divmod(abs(units), 10**digits)
    sign = "-" if units < 0 else ""
    return f"{sign}{whole:,}.{rest:0{digits}d}" if digits else f"{sign}{whole:,}"


def words(name: str) -> str:
    """Return a figure's name for people: `records_in` is `records in`."""
    return name.replace("_", " ")


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(amount=amount, words=words, when=when, thousands=lambda number: f"{number:,}")
    return environment


WIDTH, HEIGHT = 900, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 10, 28
BARS_MAX = 336  # two weeks of hours: a bar is some 2 px wide then
_STEPS_H = (1, 24, 24 * 7, 24 * 28, 24 * 364)
_LABELS = 6
_LINES = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GEOMETRY = {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LEFT": LEFT, "RIGHT": RIGHT}


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
    """A bar chart of volume over time, as coordinates for an SVG.

    Invariant: the axis is time, so an hour without volume is a gap and not left out. With too many hours to draw, a bar
    is a day or more, and the chart says so.
    """

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
