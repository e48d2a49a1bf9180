"""What the page is told, twice a second: one JSON object. Plain values; docs are for who reads it in the browser.

What holds: money is text, because a browser's numbers lose digits beyond 2^53; what is not known is null, never 0.

Changes that are worth telling a person: a service that fell silent and came back, a light that turned red. Pure.

What holds: only a change is told, never a state, so that a screen reader is not talked over; the first round tells
nothing, for all is new then.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from services.balances.projection.progress import Position


class Counter(msgspec.Struct, frozen=True):
    """A count.

    Attributes:
        value: so far.
        at_least: whether a process ended meanwhile that may have counted more than it had told.
        per_s: each second, over the last seconds; null until that can be told.
    """

    value: int
    at_least: bool = False
    per_s: float | None = None


class State(StrEnum):
    """How a service is."""

    READY = "ready"
    PARTLY = "partly"  # some of its instances
    NOT_READY = "not_ready"
    SILENT = "silent"  # no instance answers
    UNWATCHED = "unwatched"  # the setting names none


class Service(msgspec.Struct, frozen=True):
    """One service, all instances together.

    Attributes:
        since_ms: since when it is in that state, as far as was watched; milliseconds since 1970 UTC.
        reasons: what keeps instances from being ready, in words.
        restarts: how often a process was seen to have been replaced by a new one.
        open_transactions: that its producers have open now.
        oldest_open_s: how long the oldest of them has been open.
        restoring: changelog offsets still to be read before its state is whole.
    """

    state: State
    since_ms: int
    instances: int
    ready: int
    reasons: tuple[str, ...] = ()
    restarts: int = 0
    open_transactions: int | None = None
    oldest_open_s: float | None = None
    restoring: int = 0


class Hop(msgspec.Struct, frozen=True):
    """A topic between two services.

    Attributes:
        per_s: records that its reader takes in, each second.
        lag: offsets that its reader is behind the last stable one.
        lag_with_markers: whether transaction markers are counted in it: so it is when the reader does not answer.
        lso_lag: high watermark minus last stable offset, over all partitions: what open transactions hold back.
        latency_s: mean age of the oldest work in the transactions that wrote to it, over the last seconds.
    """

    per_s: float | None
    lag: int | None
    lag_with_markers: bool
    lso_lag: int | None
    latency_s: float | None


class Currency(msgspec.Struct, frozen=True):
    """One currency's balances by holder, minor units as text.

    Attributes:
        digits: of its minor unit.
        clients: of all client accounts.
        house: of the house accounts by name, each over all partitions.
        sum: of all of them.
    """

    currency: str
    digits: int
    clients: str
    house: dict[str, str]
    sum: str


class View(msgspec.Struct, frozen=True):
    """What the view's tables say.

    Attributes:
        behind_s: of the partition that is furthest behind; null when one is not known.
        positions: how far each partition of ledger.postings is in the tables.
        debits, credits, declines: records of ledger.postings in the tables.
    """

    behind_s: float | None
    positions: tuple[Position, ...]
    currencies: tuple[Currency, ...]
    debits: int
    credits: int
    declines: int


class Reconciliation(msgspec.Struct, frozen=True):
    """The last reconciliation.

    Attributes:
        at_ms: when it was told.
        breaks: of that run, by kind.
        runs: how many runs are told of, the last one that began where the topics begin and those after it.
        found: breaks of all these runs, by kind: each is told once only, by the run that found it.
    """

    at_ms: int
    cut_id: str
    verdict: str
    full: bool
    breaks: dict[str, int]
    runs: int
    found: dict[str, int]


class Standing(StrEnum):
    """How an invariant stands."""

    OK = "ok"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class Light(msgspec.Struct, frozen=True):
    """One invariant.

    Attributes:
        judged_by: what tells it, in words.
        detail: what was found, in words.
        at_ms: when it was judged; null when it was not yet.
    """

    id: str
    name: str
    statement: str
    standing: Standing
    judged_by: str
    detail: str
    at_ms: int | None = None


class Event(msgspec.Struct, frozen=True):
    """A change that is worth telling.

    Attributes:
        number: from 1; it grows with each.
        bad: whether it is trouble, or the end of one.
    """

    number: int
    at_ms: int
    text: str
    bad: bool


class Snapshot(msgspec.Struct, frozen=True):
    """Everything at one moment.

    Attributes:
        at_ms: by the view's clock, milliseconds since 1970 UTC.
        since_ms: since when the services count, the start of the oldest process; null when none has answered.
        brokers: how many are alive; null when the cluster does not answer, and `cluster_failure` says why.
        services: by name; the view itself is `balances`.
        hops: by topic.
        counts: by name, of the services' counters.
        dead_letters: by reason.
        redis_trusted: whether the outbox relies on its claims; null when it does not tell.
        view: null while its database does not answer, and `view_failure` says why.
        reconciliation: null when there was none, or the topic was not read yet: `runs_known` tells which.
        lights: the invariants in their order.
        events: the last ones, the newest first.
    """

    at_ms: int
    since_ms: int | None
    brokers: int | None
    brokers_seen: int
    cluster_failure: str
    services: dict[str, Service]
    hops: dict[str, Hop]
    counts: dict[str, Counter]
    dead_letters: dict[str, Counter]
    effects_waiting: int | None
    redis_trusted: bool | None
    view: View | None
    view_failure: str
    runs_known: bool
    reconciliation: Reconciliation | None
    lights: tuple[Light, ...]
    events: tuple[Event, ...]


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


class Log(msgspec.Struct, frozen=True):
    """What was told, the newest first, and the states that the next round is held against."""

    told: tuple[Event, ...] = ()
    services: Mapping[str, Service] | None = None
    troubled: Mapping[str, int] = {}  # since when a service was not ready, by name
    brokers: int | None = None
    standings: Mapping[str, Standing] = {}


def after(
    before: Log,
    at_ms: int,
    services: Mapping[str, Service],
    brokers: int | None,
    brokers_seen: int,
    lights: Iterable[Light],
) -> Log:
    """The log one round later.

    Args:
        brokers: alive; None when the cluster does not answer.
        brokers_seen: the most that were alive at once.
    """
    standings = {light.id: light.standing for light in lights}
    troubled = {
        name: before.troubled.get(name, at_ms)
        for name, service in services.items()
        if service.state not in {State.READY, State.UNWATCHED}
    }
    news: list[tuple[str, bool]] = []
    if before.services is not None:
        news += _of_services(before, at_ms, before.services, services)
        news += _of_cluster(before.brokers, brokers, brokers_seen)
        news += _of_lights(before.standings, standings)
    number = before.told[0].number if before.told else 0
    told = [Event(number + place, at_ms, text, bad) for place, (text, bad) in enumerate(news, 1)]
    return Log((*reversed(told), *before.told)[:KEPT_MAX], dict(services), troubled, brokers, standings)


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
            yield f"{_NAMES.get(name, name)} was started anew", False


def _told(name: str, service: Service, lasted_ms: int) -> str:
    return _TOLD[service.state].format(
        name=_NAMES.get(name, name),
        lasted=f"{lasted_ms / 1000:.1f} s",
        ready=service.ready,
        instances=service.instances,
        reasons="; ".join(service.reasons) or "it does not say why",
    )


def _of_cluster(was: int | None, brokers: int | None, seen: int) -> Iterator[tuple[str, bool]]:
    if brokers == was or not seen:
        return
    if brokers is None:
        yield "Kafka does not answer", True
    else:
        alive = f"{brokers} of {seen} brokers are alive"
        yield f"Kafka answers again: {alive}" if was is None else alive, brokers < seen


def _of_lights(before: Mapping[str, Standing], standings: Mapping[str, Standing]) -> Iterator[tuple[str, bool]]:
    for name, standing in standings.items():
        was = before.get(name)
        if was is standing:
            continue
        if standing is Standing.BROKEN:
            yield f"{name} is broken", True
        elif was is Standing.BROKEN:
            yield f"{name} holds again" if standing is Standing.OK else f"{name} is not judged any more", False
