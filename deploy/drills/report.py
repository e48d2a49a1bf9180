"""The report of a run: a page for each drill, a matrix of all of them, and the journal as JSON. Pure, but for `write`.

Invariant: a page needs nothing from elsewhere, and every text that a drill noted is escaped.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from deploy import PROJECT_ROOT
from deploy.drills import chart
from deploy.drills.chart import Chart
from deploy.drills.drill import FAMILIES, LOCAL, Drill, Journal, Result, Sample, Verdict, described
from deploy.drills.observe import END, EVERY_S, LAG, LSO, RATE

PAGE, MATRIX = "report.html.j2", "matrix.html.j2"
INDEX, JOURNAL = "index.html", "results.json"
_TONES: Final[Mapping[Verdict, str]] = {
    Verdict.AS_EXPECTED: "clean",
    Verdict.NOT_ON_THIS_TARGET: "explained",
}
"""The classes of the house's style; all other verdicts are `breaks`."""
_GAP_S: Final = 3 * EVERY_S
_SECONDS: Final = "seconds since the drill began"
_OFFSETS: Final = f"{END} and {LSO}"
_ORDER: Final = (RATE, LAG, _OFFSETS)


def write(results: Sequence[Result], drills: Mapping[str, Drill], summary: object, directory: Path) -> Path:
    """Write the report of a run.

    Args:
        drills: of the results, by their keys.
        summary: of the results, as `once drill run --json` prints it.
        directory: made if it is not there.

    Returns:
        The page that leads to all others.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for result in results:
        (directory / f"{result.key}.html").write_text(page(result, drills[result.key]))
    (directory / JOURNAL).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1))
    index = directory / INDEX
    index.write_text(matrix(results))
    return index


def page(result: Result, drill: Drill) -> str:
    """Return the page of one result."""
    return _template(PAGE).render(
        result=result,
        journal=result.journal,
        about=described(drill),
        reading=drill.reading,
        charts=timeline(result.journal, result.seconds),
        plots=[chart.chart(one.y, one.x, one.lines) for one in result.journal.plots],
        command=command(result, drill),
    )


def matrix(results: Sequence[Result]) -> str:
    """Return the page with a row for each result."""
    families = [
        (FAMILIES.get(letter, letter), list(found)) for letter, found in groupby(results, key=lambda one: one.row[0])
    ]
    counts = [(verdict, sum(one.verdict is verdict for one in results)) for verdict in Verdict]
    return _template(MATRIX).render(
        families=families, results=results, counts=[(verdict, count) for verdict, count in counts if count]
    )


def command(result: Result, drill: Drill) -> str:
    """Return the command that runs the drill again with the same choices."""
    on = "" if result.target == LOCAL else f" --on {result.target}"
    return f"{drill.command or f'once drill run {drill.name}'} --seed {result.seed}{on}"


def timeline(journal: Journal, seconds: float) -> list[Chart]:
    """Return the charts of a drill's time, one for each unit, with its faults marked in all of them.

    Args:
        seconds: how long the drill took; charts of samples cover the time of samples and faults only.
    """
    marks = [(one.at_s, one.healed_s, f"F{number}") for number, one in enumerate(journal.faults, 1)]
    grouped: defaultdict[str, dict[str, list[tuple[float, float]]]] = defaultdict(dict)
    for title, name, at_s, value in _points(journal.samples):
        grouped[title].setdefault(name, []).append((at_s, value))
    times = [one.at_s for one in journal.samples] or [0.0, seconds]
    times += [at_s for begun_s, healed_s, _ in marks for at_s in (begun_s, healed_s) if at_s is not None]
    if not grouped and marks:
        grouped["Faults"] = {}
    span = min(times), max(times)
    return [
        chart.chart(title, _SECONDS, lines, from_zero=title != _OFFSETS, span=span, gap=_GAP_S, marks=marks)
        for title, lines in sorted(grouped.items(), key=lambda one: (*_ORDER, one[0]).index(one[0]))
    ]


def _points(samples: Sequence[Sample]) -> list[tuple[str, str, float, float]]:
    """Return the samples' values as chart, line, time and value. Log end and LSO share a chart."""
    found = []
    for one in samples:
        for name, value in one.values.items():
            what, _, of = name.partition(": ")
            title, line = (_OFFSETS, f"{of}, {what}") if what in {END, LSO} else (what, of or what)
            found.append((title, line, one.at_s, value))
    return found


def _tone(verdict: Verdict) -> str:
    return _TONES.get(verdict, "breaks")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return chart.number(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)


def _template(name: str) -> Template:
    filters: dict[str, Callable[..., object]] = {"tone": _tone, "cell": _cell}
    environment = Environment(
        # The style sheet is the one of the reconciliation's report
        loader=FileSystemLoader([Path(__file__).parent, PROJECT_ROOT / "spark"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(filters)
    environment.globals.update(geometry=_GEOMETRY)
    return environment.get_template(name)


_GEOMETRY: Final = {name: getattr(chart, name) for name in ("WIDTH", "HEIGHT", "LEFT", "RIGHT", "TOP", "BOTTOM")}
