"""Progress of a night, and metrics of a run as a file for the Prometheus node exporter's textfile collector.

Invariant: the file is replaced in one step; labels have few values. Durations are here and never in the report.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from spark.report import BREAKS, Report

FILE: Final = "metrics.prom"


class Progress:
    """Follows a night: lines for people, complete runs, and seconds.

    Attributes:
        say: takes a line for people, from any thread.
        made: takes the report of each run when it is complete, before the next one begins.
        seconds: by stage; of several runs, those of the last.
    """

    def __init__(
        self, say: Callable[[str], None] = lambda _: None, made: Callable[[Report], None] = lambda _: None
    ) -> None:
        self.say = say
        self.made = made
        self.seconds: dict[str, float] = {}
        self._lock = Lock()

    @contextmanager
    def stage(self, name: str, done: str | None = None) -> Iterator[None]:
        """Time a stage, and say when it is done, if there are words for it."""
        begun_s = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begun_s
        if done is not None:
            self.say(f"{done} in {self.seconds[name]:.1f} s")

    def add(self, name: str, seconds_s: float) -> None:
        """Add to the seconds of a stage, from any thread."""
        with self._lock:
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds_s


class Metric(NamedTuple):
    """One row of the catalogue; all are gauges. The name is as scraped, units last; the help is one sentence."""

    name: str
    labels: tuple[str, ...]
    help: str


LAST_RUN: Final = Metric("once_reconcile_last_run_timestamp_seconds", (), "When the last run ended, since 1970 UTC.")
CUT: Final = Metric("once_reconcile_cut_timestamp_seconds", (), "When its cut was taken, since 1970 UTC.")
SEQUENCE: Final = Metric("once_reconcile_cut_sequence", (), "Number of its cut: 1 for the first.")
DURATION: Final = Metric("once_reconcile_duration_seconds", (), "How long it took, landing included.")
STAGE_DURATION: Final = Metric(
    "once_reconcile_stage_duration_seconds",
    ("stage",),
    "How long each stage of it took; the jobs of a topic's landing are added up.",
)
CLEAN: Final = Metric("once_reconcile_clean", (), "1 when no break is open without an explanation, else 0.")
FOUND: Final = Metric("once_reconcile_breaks", ("kind",), "Open breaks without an explanation, by kind.")
EXPLAINED: Final = Metric("once_reconcile_breaks_explained", (), "Open breaks that a person explained.")
OLDEST: Final = Metric(
    "once_reconcile_oldest_break_timestamp_seconds",
    (),
    "When the cut that showed the oldest open break without an explanation was taken, since 1970 UTC; 0 without any.",
)
AT_RISK: Final = Metric(
    "once_reconcile_at_risk_minor_units",
    ("currency",),
    "Sum of the amounts of open breaks without an explanation, by currency.",
)
IN_FLIGHT: Final = Metric(
    "once_reconcile_in_flight", ("waits_for",), "Records in flight at its cut, by what they wait for."
)
RECORDS: Final = Metric("once_reconcile_records", ("figure",), "Counts of its report, by the figure's name there.")

CATALOGUE: Final = (
    *(LAST_RUN, CUT, SEQUENCE, DURATION, STAGE_DURATION, CLEAN),
    *(FOUND, EXPLAINED, OLDEST, AT_RISK, IN_FLIGHT, RECORDS),
)


def write(path: Path, report: Report, *, ended_at_s: float, duration_s: float, stages: Mapping[str, float]) -> None:
    """Write a run's metrics to a file whose folder is made.

    Args:
        ended_at_s: since 1970 UTC.
        stages: seconds by stage.
    """
    registry, oldest_at = CollectorRegistry(), report.breaks.oldest_at
    for metric, value in (
        (LAST_RUN, ended_at_s),
        (CUT, datetime.fromisoformat(report.cut.taken_at).timestamp()),
        (SEQUENCE, report.cut.sequence),
        (DURATION, duration_s),
        (CLEAN, 0 if report.verdict == BREAKS else 1),
        (EXPLAINED, len(report.breaks.explained)),
        (OLDEST, 0 if oldest_at is None else datetime.fromisoformat(oldest_at).timestamp()),
    ):
        _gauge(registry, metric).set(value)
    for metric, counts in (
        (FOUND, report.breaks.by_kind),
        (AT_RISK, {currency: float(minor) for currency, minor in report.breaks.at_risk_minor.items()}),
        (IN_FLIGHT, report.in_flight),
        (RECORDS, report.figures),
        (STAGE_DURATION, stages),
    ):
        gauge = _gauge(registry, metric)
        for label, count in sorted(counts.items()):
            gauge.labels(label).set(count)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_to_textfile(str(path), registry)


def _gauge(registry: CollectorRegistry, metric: Metric) -> Gauge:
    return Gauge(metric.name, metric.help, metric.labels, registry=registry)
