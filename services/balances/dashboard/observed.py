"""What the collector has seen when it tells the page: answers of instances, of the view's database, of the cluster.

Plain values without behaviour; what could not be asked is None. Times in `_s` are of a monotonic clock.

Which instances the page watches, from one setting. Pure.

The few figures that the page needs out of a service's /metrics. Pure.

What holds: names and the order of labels are the catalogue's; lines of other metrics are passed over before they are
parsed, so that a scrape costs a fraction of a millisecond.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from services.balances.projection.progress import Position
from shared.events.operations import RunOutcome
from shared.telemetry import catalogue
from shared.telemetry.catalogue import Kind, Metric

SERVICES: Final = ("gateway", "ingest", "transform", "ledger", "outbox")
"""What the picture shows beside the view itself, in the order in which records pass."""

_PORTS: Final = range(1, 65_536)


class WatchedError(ValueError):
    """The setting names no instances; the message says what to change."""


class Watched(NamedTuple):
    """One instance of a service, by the address of its telemetry."""

    service: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.service}={self.host}:{self.port}"


def parse_watched(text: str) -> tuple[Watched, ...]:
    """Read `ingest=127.0.0.1:9101,ingest=127.0.0.1:9102,ledger=127.0.0.1:9103`; nothing at all watches nobody.

    Raises:
        WatchedError: an item is not `service=host:port`, names another service, or comes twice.
    """
    found: list[Watched] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        service, _, address = item.partition("=")
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or int(port) not in _PORTS:
            raise WatchedError(f"{item!r} is not service=host:port")
        if service not in SERVICES:
            raise WatchedError(f"{item!r} names no service that is shown; there are {', '.join(SERVICES)}")
        watched = Watched(service, host, int(port))
        if watched in found:
            raise WatchedError(f"{item!r} comes twice")
        found.append(watched)
    return tuple(found)


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


def parse_scrape(text: str) -> Scrape:
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


class Answer(StrEnum):
    """How an instance answered /readyz."""

    READY = "ready"
    NOT_READY = "not_ready"
    SILENT = "silent"


class Instance(msgspec.Struct, frozen=True):
    """One instance as it answered last.

    Attributes:
        reasons: what keeps it from being ready, by condition; of a silent one, why there is no answer.
        scrape: what /metrics had this time; None when it had nothing.
    """

    watched: Watched
    answer: Answer
    reasons: Mapping[str, str] = {}
    scrape: Scrape | None = None


class ViewLook(msgspec.Struct, frozen=True):
    """One look into the view's tables, all from one snapshot of the database.

    Attributes:
        positions: how far each partition of ledger.postings is in the tables.
        events: how many debit legs, credit legs and declines, by kind.
        balances: minor units by holder and currency; a holder is `clients`, or a house account without its partition.
    """

    positions: tuple[Position, ...]
    events: Mapping[str, int]
    balances: Mapping[tuple[str, str], int]


class ClusterLook(msgspec.Struct, frozen=True):
    """One look at the cluster.

    Attributes:
        brokers: how many are alive.
        lso_lag: high watermark minus last stable offset, by topic, summed over its partitions.
        behind: offsets from a group's committed offsets to the last stable ones, markers counted; of the groups of
            services that do not answer for themselves.
    """

    brokers: int
    lso_lag: Mapping[str, int]
    behind: Mapping[str, int] = {}


class Run(msgspec.Struct, frozen=True):
    """One reconciliation's outcome.

    Attributes:
        at_ms: when it was told, milliseconds since 1970 UTC.
    """

    at_ms: int
    outcome: RunOutcome


class Seen(msgspec.Struct, frozen=True):
    """All of it at one moment.

    Attributes:
        at_ms: wall clock, milliseconds since 1970 UTC.
        own: what keeps the view itself from being ready, by condition.
        view: None while its database does not answer; `view_failure` says why.
        cluster: None while it does not answer; `cluster_failure` says why.
        runs: all that are known, in no order; None until the topic was read.
    """

    at_s: float
    at_ms: int
    instances: tuple[Instance, ...] = ()
    own: Mapping[str, str] = {}
    view: ViewLook | None = None
    view_failure: str = ""
    cluster: ClusterLook | None = None
    cluster_failure: str = ""
    runs: tuple[Run, ...] | None = None
