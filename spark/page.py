"""report.html: a report for an auditor, in one file without any external resource. Pure.

Invariant: every text from outside is escaped, a payment_id may be any. The page is made from the report alone, so it is
as reproducible.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shared.events.reference import MINOR_DIGITS
from spark import chart
from spark.report import Report

_TEMPLATE: Final = "report.html.j2"
Count = TypeVar("Count", int, Decimal)


@dataclass(frozen=True)
class Summary:
    """What a reader asks first; nothing that is 0 is in it."""

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
    volume = chart.chart(postings)
    template = _environment().get_template(_TEMPLATE)
    return template.render(report=report, cut=report.cut, summary=summary(report), volume=volume, geometry=chart)


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
