"""The page's snapshot, sent twice a second as one JSON object, with the changes that are worth reporting. Pure.

Invariant: money is text, because a browser's numbers lose digits beyond 2^53. What is unknown is null, never 0. Only
changes are reported, never states, so that a screen reader is not interrupted. The first round reports none, because
everything is new then.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from services.balances.projection.progress import Position


class Counter(msgspec.Struct, frozen=True):
    """A count."""

    value: int
    at_least: bool = False  # whether a process ended that may have counted more than it reported
    per_s: float | None = None  # over the last seconds; null until it is known


class State(StrEnum):
    READY = "ready"
    PARTLY = "partly"  # some of its instances
    NOT_READY = "not_ready"
    SILENT = "silent"  # no instance answers
    UNWATCHED = "unwatched"  # the setting names none


class Service(msgspec.Struct, frozen=True):
    """A service, all instances together."""

    state: State
    since_ms: int  # in this state, as far as was watched; milliseconds since 1970 UTC
    instances: int
    ready: int
    reasons: tuple[str, ...] = ()  # why instances are not ready, in words
    restarts: int = 0  # how often a new process was seen to replace one
    open_transactions: int | None = None  # of its producers
    oldest_open_s: float | None = None  # the age of the oldest of them
    restoring: int = 0  # changelog offsets still to be read before its state is complete


class Hop(msgspec.Struct, frozen=True):
    """A topic between two services."""

    per_s: float | None  # records that its reader processes
    lag: int | None  # of its reader, in offsets from the last stable one
    lag_with_markers: bool  # whether it counts transaction markers, as when the reader does not answer
    lso_lag: int | None  # high watermark minus last stable offset over all partitions: what open transactions hold back
    latency_s: float | None  # mean age of the oldest work in the transactions that wrote to it, over the last seconds


class Currency(msgspec.Struct, frozen=True):
    """A currency's balances by holder, minor units as text."""

    currency: str
    digits: int  # of its minor unit
    clients: str  # all client accounts
    house: dict[str, str]  # by name, each over all partitions
    sum: str  # of all of them


class View(msgspec.Struct, frozen=True):
    """The view's tables."""

    behind_s: float | None  # of the partition that is furthest behind; null if one is unknown
    positions: tuple[Position, ...]
    currencies: tuple[Currency, ...]
    debits: int
    credits: int
    declines: int


class Reconciliation(msgspec.Struct, frozen=True):
    """The last reconciliation."""

    at_ms: int  # when it was reported
    cut_id: str
    verdict: str
    full: bool
    breaks: dict[str, int]  # open ones without an explanation, by kind
    explained: int  # open ones that are explained
    oldest_at_ms: int | None  # when the cut was taken that showed the oldest of `breaks`
    at_risk_minor: dict[str, str]  # by currency, decimal: the sum of all amounts that are known of `breaks`


class Standing(StrEnum):
    OK = "ok"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class Light(msgspec.Struct, frozen=True):
    """An invariant."""

    id: str
    name: str
    statement: str
    standing: Standing
    judged_by: str  # its judges, in words
    detail: str  # what was found, in words
    at_ms: int | None = None  # when it was judged


class Event(msgspec.Struct, frozen=True):
    """A change that is worth reporting."""

    number: int  # from 1; it grows with each
    at_ms: int
    text: str
    bad: bool  # whether it is trouble, or the end of one


class Snapshot(msgspec.Struct, frozen=True):
    """Everything at one moment."""

    at_ms: int  # by the view's clock, milliseconds since 1970 UTC
    since_ms: int | None  # since when the services count: the start of the oldest process; null if none has answered
    brokers: int | None  # alive; null if that is not known: `cluster_failure` says why
    brokers_seen: int
    cluster_failure: str
    services: dict[str, Service]  # by name; the view itself is `balances`
    hops: dict[str, Hop]  # by topic
    counts: dict[str, Counter]  # by name, of the services' counters
    dead_letters: dict[str, Counter]  # by reason
    effects_waiting: int | None
    redis_trusted: bool | None  # whether the outbox trusts its claims; null if it does not say
    view: View | None  # null while its database does not answer: `view_failure` says why
    view_failure: str
    runs_known: bool
    reconciliation: Reconciliation | None  # null if there was none, or, without `runs_known`, it was not read
    lights: tuple[Light, ...]  # in the invariants' order
    events: tuple[Event, ...]  # the newest first


encode_snapshot = msgspec.json.Encoder().encode

KEPT_MAX: Final = 8
_NAMES: Final = {"balances": "the view"}
_TOLD: Final = {
    State.READY: "{name} is ready again, after {lasted}",
    State.PARTLY: "{name}: {ready} of {instances} instances are ready",
    State.NOT_READY: "{name} is not ready: {reasons}",
    State.SILENT: "{name} does not answer",
    State.UNWATCHED: "{name} is not watched",
}


class Alive(msgspec.Struct, frozen=True):
    """Brokers that are alive, None if that is not known; the most that were alive at once; and why it is not known."""

    brokers: int | None
    seen: int
    failure: str


class Log(msgspec.Struct, frozen=True):
    """The events, the newest first, and the states that the next round is compared with."""

    events: tuple[Event, ...] = ()
    services: Mapping[str, Service] | None = None
    troubled: Mapping[str, int] = {}  # since when a service was not ready, by name
    brokers: int | None = None
    standings: Mapping[str, Standing] = {}


def after(
    before: Log,
    at_ms: int,
    services: Mapping[str, Service],
    alive: Alive,
    lights: Iterable[Light],
) -> Log:
    """The log one round later."""
    standings = {light.id: light.standing for light in lights}
    troubled = {
        name: before.troubled.get(name, at_ms)
        for name, service in services.items()
        if service.state not in {State.READY, State.UNWATCHED}
    }
    news: list[tuple[str, bool]] = []
    if before.services is not None:
        news += _of_services(before, at_ms, before.services, services)
        news += _of_cluster(before.brokers, alive)
        news += _of_lights(before.standings, standings)
    number = before.events[0].number if before.events else 0
    added = [Event(number + place, at_ms, text, bad) for place, (text, bad) in enumerate(news, 1)]
    return Log((*reversed(added), *before.events)[:KEPT_MAX], dict(services), troubled, alive.brokers, standings)


def _of_services(
    log: Log, at_ms: int, before: Mapping[str, Service], services: Mapping[str, Service]
) -> Iterator[tuple[str, bool]]:
    for name, service in services.items():
        was = before.get(name)
        if was is None:
            continue
        if was.state is not service.state:
            yield _told(name, service, at_ms - log.troubled.get(name, at_ms)), service.state is not State.READY
        elif service.restarts > was.restarts:
            yield f"{_NAMES.get(name, name)} was restarted", False


def _told(name: str, service: Service, lasted_ms: int) -> str:
    return _TOLD[service.state].format(
        name=_NAMES.get(name, name),
        lasted=f"{lasted_ms / 1000:.1f} s",
        ready=service.ready,
        instances=service.instances,
        reasons="; ".join(service.reasons) or "it does not say why",
    )


def _of_cluster(was: int | None, alive: Alive) -> Iterator[tuple[str, bool]]:
    if alive.brokers == was or not alive.seen:
        return
    if alive.brokers is None:
        yield alive.failure or "the brokers' state is not known", True
    else:
        shown = f"{alive.brokers} of {alive.seen} brokers are alive"
        yield f"the brokers' state is known again: {shown}" if was is None else shown, alive.brokers < alive.seen


def _of_lights(before: Mapping[str, Standing], standings: Mapping[str, Standing]) -> Iterator[tuple[str, bool]]:
    for name, standing in standings.items():
        was = before.get(name)
        if was is standing:
            continue
        if standing is Standing.BROKEN:
            yield f"{name} is broken", True
        elif was is Standing.BROKEN:
            yield f"{name} holds again" if standing is Standing.OK else f"{name} is not judged any more", False
