"""Observations of the collector: watched instances and their answers, the view's database, the monitor's word. Pure.

Plain values; what could not be asked is None. Times in `_s` are of a monotonic clock. Of a service's /metrics only the
figures of the page are parsed, by the catalogue's names and order of labels. Other lines are skipped before they are
parsed, so that a scrape costs a fraction of a millisecond.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from services.balances.projection.progress import Position
from shared.http.monitor import ClusterState, Run
from shared.telemetry import catalogue
from shared.telemetry.catalogue import Kind, Metric

SERVICES: Final = ("gateway", "ingest", "transform", "ledger", "outbox")  # in the order in which records pass
MONITOR: Final = "monitor"
"""Watched as well, and not shown: it answers for the brokers."""
_PORTS: Final = range(1, 65_536)


class WatchedError(ValueError):
    """The setting is invalid; the message says what to change."""


class Watched(NamedTuple):
    """An instance of a service, by the address of its telemetry."""

    service: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.service}={self.host}:{self.port}"


def parse_watched(text: str) -> tuple[Watched, ...]:
    """Parse `ingest=127.0.0.1:9101,ingest=127.0.0.1:9102,ledger=127.0.0.1:9103`; empty for no instance.

    Raises WatchedError if an item is not `service=host:port`, names another service, or comes twice, or if two name a
    monitor.
    """
    found: list[Watched] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        service, _, address = item.partition("=")
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdecimal()) or int(port) not in _PORTS:
            raise WatchedError(f"{item!r} is not service=host:port")
        if service not in {*SERVICES, MONITOR}:
            raise WatchedError(f"{item!r} names no service of the page; there are {', '.join((*SERVICES, MONITOR))}")
        watched = Watched(service, host, int(port))
        if watched in found:
            raise WatchedError(f"{item!r} comes twice")
        if service == MONITOR and any(one.service == MONITOR for one in found):
            raise WatchedError(f"{item!r} is a second monitor: name one")
        found.append(watched)
    return tuple(found)


Labels = tuple[str, ...]  # values in the order of the metric's row
Series = Mapping[Labels, float]
Scrape = Mapping[str, Series]  # by the name of their samples

WANTED: Final = (
    catalogue.ASSIGNED_PARTITIONS,
    catalogue.CIRCUITS_OPEN,
    catalogue.DEAD_LETTERS,
    catalogue.DEDUPLICATED,
    catalogue.EFFECTS,
    catalogue.EFFECTS_WAITING,
    catalogue.END_TO_END_LATENCY,
    catalogue.FENCED,
    catalogue.LSO_LAG,
    catalogue.OPEN_TRANSACTION_AGE,
    catalogue.PRODUCER_EPOCH,
    catalogue.RECORDS_CONSUMED,
    catalogue.RECORDS_LAG,
    catalogue.RECORD_SEND,
    catalogue.REDIS_TRUSTED,
    catalogue.RESTORE_REMAINING,
    catalogue.TRANSACTIONS,
)
PROCESS_STARTED: Final = "process_start_time_seconds"  # of the Prometheus client: another value is another process
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
    """The wanted series of a scrape in Prometheus' text format; a missing label is empty.

    Raises ValueError if a wanted line is not in that format.
    """
    lines = [line for line in text.splitlines() if line.startswith(_PREFIXES)]
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            labels = tuple(sample.labels.get(label, "") for label in _LABELS[sample.name])
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def series(scrape: Scrape, row: Metric) -> Series:
    """The series of a counter or gauge."""
    return scrape.get(row.name, {})


def total(scrape: Scrape, row: Metric) -> float | None:
    """The sum over its series; None if there is none."""
    values = series(scrape, row).values()
    return sum(values) if values else None


def started_s(scrape: Scrape) -> float | None:
    """When the process started, seconds since 1970 UTC; None if it does not say."""
    return scrape.get(PROCESS_STARTED, {}).get(())


class Answer(StrEnum):
    """An instance's answer to /readyz."""

    READY = "ready"
    NOT_READY = "not_ready"
    SILENT = "silent"


class Instance(msgspec.Struct, frozen=True):
    """An instance as it answered last."""

    watched: Watched
    answer: Answer
    reasons: Mapping[str, str] = {}  # why it is not ready, by condition; of a silent one, why there is no answer
    scrape: Scrape | None = None  # of /metrics; None if there was none


class ViewLook(msgspec.Struct, frozen=True):
    """The view's tables, all from one snapshot of the database."""

    positions: tuple[Position, ...]
    events: Mapping[str, int]  # debit legs, credit legs and declines, by kind
    # Minor units by holder and currency; a holder is `clients`, or a house account without its partition
    balances: Mapping[tuple[str, str], int]


class Seen(msgspec.Struct, frozen=True):
    """All of it at one moment."""

    at_s: float
    at_ms: int  # wall clock, milliseconds since 1970 UTC
    partitions: int  # of each topic
    instances: tuple[Instance, ...] = ()
    own: Mapping[str, str] = {}  # why the view itself is not ready, by condition
    view: ViewLook | None = None  # None while its database does not answer: `view_failure` says why
    view_failure: str = ""
    cluster: ClusterState | None = None  # None while it is not known: `cluster_failure` says why
    cluster_failure: str = ""
    run: Run | None = None  # the newest reconciliation; None without any
    runs_known: bool = False  # whether `run` was ever read
