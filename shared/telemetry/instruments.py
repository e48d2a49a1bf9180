"""Prometheus' objects for rows of the catalogue: made where they are set, so that a process shows only what it does.

What holds: a row is made once in a process; names, labels and buckets are the catalogue's. It must not know who sets
them.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from shared.telemetry.catalogue import Metric

# One more series for each child, and nobody reads it. The function has no annotations
disable_created_metrics()  # type: ignore[no-untyped-call]

Reading = tuple[tuple[str, ...], float]
"""Label values in the row's order, and the value."""


def counter(row: Metric, registry: CollectorRegistry = REGISTRY) -> Counter:
    """The counter of a row."""
    return Counter(row.name, row.help, row.labels, registry=registry)


def gauge(row: Metric, registry: CollectorRegistry = REGISTRY) -> Gauge:
    """The gauge of a row."""
    return Gauge(row.name, row.help, row.labels, registry=registry)


def histogram(row: Metric, registry: CollectorRegistry = REGISTRY) -> Histogram:
    """The histogram of a row."""
    return Histogram(row.name, row.help, row.labels, registry=registry, buckets=row.buckets)


def at_zero(made: Counter, *values: Iterable[str]) -> None:
    """Show the series of a counter before anything is counted.

    A series that begins with its first event looks to `increase()` as if nothing had happened.

    Args:
        made: the counter.
        values: of each label, in the row's order; every combination is shown.
    """
    for labels in product(*values):
        made.labels(*labels)


class ReadGauge(Collector):
    """Gauges that are read when they are scraped, from whoever has them then: nothing is paid in between.

    A scrape may run in another thread: what is read must be whole at any moment, as an int or a tuple is.

    Args:
        row: the gauge's.
        registry: where it is shown.
    """

    def __init__(self, row: Metric, registry: CollectorRegistry = REGISTRY) -> None:
        self._row: Final = row
        self._sources: tuple[Callable[[], Iterable[Reading]], ...] = ()
        registry.register(self)

    def add(self, source: Callable[[], Iterable[Reading]]) -> Callable[[], None]:
        """Read from this source as well.

        Returns:
            What takes it out again; then its series are gone.
        """
        self._sources = (*self._sources, source)

        def remove() -> None:
            self._sources = tuple(other for other in self._sources if other is not source)

        return remove

    def describe(self) -> Iterable[Family]:
        """The family without samples, which spares the registry a reading when it registers it."""
        return [self._family()]

    def collect(self) -> Iterable[Family]:
        """The family with what the sources say now; of two that tell of the same, the one that came last counts."""
        family = self._family()
        readings = {labels: value for source in self._sources for labels, value in source()}
        for labels, value in readings.items():
            family.add_metric(labels, value)
        return [family]

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._row.name, self._row.help, labels=self._row.labels)
