"""report.html: a report for an auditor, in one file without any external resource. Pure.

Invariant: every text from outside is escaped, a payment_id may be any. The page is made from the report alone, so it is
as reproducible.
"""

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from shared.events.reference import MINOR_DIGITS
from spark import chart
from spark.report import Report

_TEMPLATE: Final = "report.html.j2"


def render(report: Report) -> str:
    postings: Counter[str] = Counter()
    for hour in report.totals.hours:
        postings[hour.hour] += hour.postings
    volume = chart.chart(postings)
    return _environment().get_template(_TEMPLATE).render(report=report, cut=report.cut, volume=volume, geometry=chart)


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
    environment.filters.update(amount=amount, words=words, thousands=lambda number: f"{number:,}")
    return environment
