"""The few figures that the page needs out of a service's /metrics. Pure.

What holds: names and the order of labels are the catalogue's; lines of other metrics are passed over before they are
parsed, so that a scrape costs a fraction of a millisecond. It must not know what a figure means.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from shared.telemetry import catalogue
from shared.telemetry.catalogue import Kind, Metric

Labels = tuple[str, ...]
"""Label values in the order of the metric's row."""
Series = Mapping[Labels, float]
Scrape = Mapping[str, Series]
"""Series by the name of their samples."""

WANTED: Final = (
    catalogue.ASSIGNED_PARTITIONS,
    catalogue.CIRCUITS_OPEN,
    catalogue.DEAD_LETTERS,
    catalogue.DEDUPLICATED,
    catalogue.EFFECTS,
    catalogue.EFFECTS_WAITING,
    catalogue.END_TO_END_LATENCY,
    catalogue.FENCED,
    catalogue.HTTP_REQUESTS,
    catalogue.LSO_LAG,
    catalogue.OPEN_TRANSACTION_AGE,
    catalogue.PRODUCER_EPOCH,
    catalogue.RECORDS_CONSUMED,
    catalogue.RECORDS_LAG,
    catalogue.REDIS_TRUSTED,
    catalogue.RESTORE_REMAINING,
    catalogue.TRANSACTIONS,
)
PROCESS_STARTED: Final = "process_start_time_seconds"
"""Of the Prometheus client's own process collector: another value is another process."""

SUM: Final = "_sum"
COUNT: Final = "_count"


def _samples() -> Iterator[tuple[str, Labels]]:
    for row in WANTED:
        if row.kind is Kind.HISTOGRAM:
            yield row.name + SUM, row.labels
            yield row.name + COUNT, row.labels
        else:
            yield row.name, row.labels
    yield PROCESS_STARTED, ()


_LABELS: Final[Mapping[str, Labels]] = dict(_samples())
_PREFIXES: Final = tuple(f"{name}{follows}" for name in _LABELS for follows in ("{", " "))


def parse(text: str) -> Scrape:
    """The wanted series of a scrape; a metric that is not there, or a label that is not, has none.

    Args:
        text: in Prometheus' text format.

    Raises:
        ValueError: a wanted line is not in that format.
    """
    lines = [line for line in text.splitlines() if line.startswith(_PREFIXES)]
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = tuple(sample.labels.get(label, "") for label in _LABELS[sample.name])
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def series(scrape: Scrape, row: Metric) -> Series:
    """The series of a counter or gauge; none when it is not there."""
    return scrape.get(row.name, {})


def total(scrape: Scrape, row: Metric) -> float | None:
    """The sum over its series; None when there is none."""
    values = series(scrape, row).values()
    return sum(values) if values else None


def started_s(scrape: Scrape) -> float | None:
    """When the process started, seconds since 1970 UTC; None where it does not tell."""
    return scrape.get(PROCESS_STARTED, {}).get(())
