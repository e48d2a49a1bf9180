"""Prometheus objects for rows of the catalogue, created on first use, so that a process exports only its own metrics.

Rates are those of Kafka's Java client, so that its dashboards and thresholds apply here as well. It keeps samples of a
fixed length and divides their sum by the time that they span (metrics.num.samples 2, metrics.sample.window.ms 30,000).
A burst shows for 30 to 60 s and is then gone.

Invariant: a row is created once in a process; names, labels and buckets come from the catalogue. A rate's clock is an
argument, and a reading changes nothing. Source: org.apache.kafka.common.metrics.stats.Rate and SampledStat.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from shared.telemetry.catalogue import Metric

# Creation timestamps would add an unused series for each child. The function has no annotations
disable_created_metrics()  # type: ignore[no-untyped-call]

Reading = tuple[tuple[str, ...], float]
"""Label values in the row's order, and the value."""


def counter(row: Metric, registry: CollectorRegistry = REGISTRY) -> Counter:
    return Counter(row.name, row.help, row.labels, registry=registry)


def gauge(row: Metric, registry: CollectorRegistry = REGISTRY) -> Gauge:
    return Gauge(row.name, row.help, row.labels, registry=registry)


def histogram(row: Metric, registry: CollectorRegistry = REGISTRY) -> Histogram:
    return Histogram(row.name, row.help, row.labels, registry=registry, buckets=row.buckets)


def at_zero(made: Counter, *values: Iterable[str]) -> None:
    """Export a counter's series for every combination of label values, in the row's order, before the first event.

    Otherwise `increase()` does not see the first event: the series would begin with it.
    """
    for labels in product(*values):
        made.labels(*labels)


class ReadGauge(Collector):
    """Gauges that are read from their sources at each scrape, at no cost in between.

    A scrape may run in another thread: a source must return a consistent value at any moment, as an int or a tuple is.
    """

    def __init__(self, row: Metric, registry: CollectorRegistry = REGISTRY) -> None:
        self._row: Final = row
        self._sources: tuple[Callable[[], Iterable[Reading]], ...] = ()
        registry.register(self)

    def add(self, source: Callable[[], Iterable[Reading]]) -> Callable[[], None]:
        """Read from this source as well; return a function that removes the source, and its series with it."""
        self._sources = (*self._sources, source)

        def remove() -> None:
            self._sources = tuple(other for other in self._sources if other is not source)

        return remove

    def describe(self) -> Iterable[Family]:
        """Return the family without samples, so that the registry need not read it on registration."""
        return [self._family()]

    def collect(self) -> Iterable[Family]:
        """Return the family with the sources' current values; for equal labels, the last source counts."""
        family = self._family()
        readings = {labels: value for source in self._sources for labels, value in source()}
        for labels, value in readings.items():
            family.add_metric(labels, value)
        return [family]

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._row.name, self._row.help, labels=self._row.labels)


SAMPLES: Final = 2
SAMPLE_S: Final = 30.0


class Rate:
    """Events per second over the last samples. All times are seconds by a monotonic clock."""

    __slots__ = ("_samples",)

    def __init__(self, now_s: float) -> None:
        # (begun, events), the newest last; replaced whole, because a scrape reads it from another thread
        self._samples: tuple[tuple[float, float], ...] = ((now_s, 0.0),)

    def record(self, events: float, now_s: float) -> None:
        *older, (begun_s, counted) = self._samples
        if now_s - begun_s >= SAMPLE_S:
            self._samples = (*self._samples[1 - SAMPLES :], (now_s, events))
        else:
            self._samples = (*older, (begun_s, counted + events))

    def measure(self, now_s: float) -> float:
        """Return the current rate in events per second.

        Samples older than the whole span no longer count. An incomplete span counts as long as all samples but the
        current one would. One event right after the start is 1/30 of an event per second, not many.
        """
        live = [sample for sample in self._samples if now_s - sample[0] < SAMPLES * SAMPLE_S]
        if not live:
            return 0.0
        elapsed_s = now_s - live[0][0]
        missing = SAMPLES - 1 - int(elapsed_s // SAMPLE_S)
        return sum(events for _, events in live) / (elapsed_s + max(missing, 0) * SAMPLE_S)
