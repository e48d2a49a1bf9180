"""Input of the page's collector, made by hand: answers of instances, looks at the view, reconciliations."""

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from services.balances.dashboard.evidence import MOVERS
from services.balances.dashboard.observed import (
    SERVICES,
    Answer,
    Instance,
    Labels,
    Scrape,
    Seen,
    ViewLook,
    Watched,
)
from services.balances.dashboard.stages import READERS
from services.balances.projection.progress import Position
from shared.events.operations import RUN_SCHEMA_VERSION, RunOutcome
from shared.events.postings import CREDIT, DEBIT
from shared.http.monitor import ClusterState, Run
from shared.telemetry import catalogue
from shared.telemetry.catalogue import Kind, Metric
from shared.telemetry.instruments import counter, gauge
from tests.partitions import PARTITIONS

AT_MS = 1_760_000_000_000
STARTED_S = 1_759_999_000.0
INPUTS = {reader: topic for topic, reader in READERS.items()}

Series = Mapping[Metric, Mapping[Any, float]]
"""Values by metric and label values."""


def text(series: Series, started_s: float = STARTED_S) -> str:
    """A scrape as a service writes it."""
    registry = CollectorRegistry()
    for row, values in series.items():
        made = (counter if row.kind is Kind.COUNTER else gauge)(row, registry)
        for labels, value in values.items():
            (made.labels(*labels) if labels else made).inc(value)
    return generate_latest(registry).decode() + f"process_start_time_seconds {started_s}\n"


def scrape(series: Series, started_s: float | None = STARTED_S) -> Scrape:
    """A scrape that has been parsed."""
    found: dict[str, Mapping[Labels, float]] = {row.name: dict(values) for row, values in series.items()}
    if started_s is not None:
        found["process_start_time_seconds"] = {(): started_s}
    return found


def instance(
    service: str,
    series: Series | None = None,
    *,
    answer: Answer = Answer.READY,
    port: int = 9100,
    started_s: float = STARTED_S,
    **reasons: str,
) -> Instance:
    """An instance that answered; without series, /metrics had nothing."""
    watched = Watched(service, "127.0.0.1", port)
    return Instance(watched, answer, reasons, None if series is None else scrape(series, started_s))


def drained(service: str, consumed: int = 0, **more: object) -> Instance:
    """An instance of a pipeline's service that has all partitions and nothing to do."""
    topic = INPUTS[service]
    each = {(topic, str(partition)): 0.0 for partition in range(PARTITIONS)}
    series: Series = {
        catalogue.RECORDS_LAG: each,
        catalogue.LSO_LAG: each,
        catalogue.RECORDS_CONSUMED: {(topic,): float(consumed)},
        catalogue.OPEN_TRANSACTION_AGE: {(f"{service}-0",): 0.0},
        catalogue.PRODUCER_EPOCH: {(f"{service}-0",): 1.0},
    }
    return instance(service, series, **more)  # type: ignore[arg-type]


def position(partition: int, next_offset: int = 10, behind: int | None = 0) -> Position:
    """A position of the view."""
    seconds = None if behind is None else behind / 10
    stable = None if behind is None else next_offset + behind
    return Position(partition, next_offset, stable, behind, seconds, None if behind is None else 0.0)


def view(
    balances: Mapping[tuple[str, str], int] | None = None,
    *,
    debits: int = 1,
    credits_: int = 1,
    declines: int = 0,
    next_offset: int = 10,
    behind: int | None = 0,
) -> ViewLook:
    """A look into the view."""
    kinds = {DEBIT: debits, CREDIT: credits_, "decline": declines}
    at = tuple(position(partition, next_offset, behind) for partition in range(PARTITIONS))
    return ViewLook(at, {kind: count for kind, count in kinds.items() if count}, balances or {})


BOOKS = {("clients", "EUR"): -150, ("fees", "EUR"): 150, ("in-transit", "EUR"): 0}
"""Balances that sum to 0 with nothing in transit."""


def run(at_ms: int = AT_MS, *, full: bool = True, breaks: Mapping[str, int] | None = None) -> Run:
    """A reconciliation's outcome."""
    found = dict(breaks or {})
    verdict = "breaks" if any(found.values()) else "clean"
    return Run(at_ms, RunOutcome(RUN_SCHEMA_VERSION, f"cut-{at_ms}", "m", "r", verdict, full, found))


def state(brokers: int = 3, failure: str = "", **changes: Any) -> ClusterState:
    """The monitor's word on a cluster in which no transaction holds readers back."""
    return ClusterState(failure, brokers, **{"lso_lag": dict.fromkeys(READERS, 0), "behind": {}, **changes})


def seen(at_s: float = 0.0, **changes: object) -> Seen:
    """A round with all instances ready, drained and caught up, except for the changes."""
    services = tuple(drained(service) if service in MOVERS else instance(service, {}) for service in SERVICES)
    values: dict[str, object] = {
        "at_s": at_s,
        "at_ms": AT_MS + round(at_s * 1000),
        "partitions": PARTITIONS,
        "instances": services,
        "view": view(BOOKS),
        "cluster": state(),
        "runs_known": True,
        **changes,
    }
    return Seen(**values)  # type: ignore[arg-type]


def with_instance(base: Seen, *changed: Instance) -> tuple[Instance, ...]:
    """The round's instances, with those of the changed services replaced."""
    services = {one.watched.service for one in changed}
    return (*(one for one in base.instances if one.watched.service not in services), *changed)
