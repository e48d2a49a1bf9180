"""Changes that are worth telling a person: a service that fell silent and came back, a light that turned red. Pure.

What holds: only a change is told, never a state, so that a screen reader is not talked over; the first round tells
nothing, for all is new then.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from services.balances.dashboard.snapshot import Event, Light, Service, Standing, State

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
