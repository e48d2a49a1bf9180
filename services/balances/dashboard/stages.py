"""The services of the picture, each from what its instances answered. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from services.balances.dashboard import scrape
from services.balances.dashboard.counters import Tally
from services.balances.dashboard.observed import Answer, Instance, Seen
from services.balances.dashboard.snapshot import Service, State
from services.balances.dashboard.watched import SERVICES
from shared.events.catalogue import (
    EFFECTS_REQUESTS,
    LEDGER_POSTINGS,
    LEDGER_TRANSFERS,
    PAYMENTS_ACCEPTED,
    PAYMENTS_RAW,
)
from shared.telemetry import catalogue
from shared.telemetry.catalogue import Metric

BALANCES: Final = "balances"
"""The view itself, among the services."""
READERS: Final = {
    PAYMENTS_RAW: "ingest",
    PAYMENTS_ACCEPTED: "transform",
    LEDGER_TRANSFERS: "ledger",
    LEDGER_POSTINGS: BALANCES,
    EFFECTS_REQUESTS: "outbox",
}
"""The topics of the picture, and who reads each."""

States = Mapping[str, tuple[State, int]]
"""The state of each service, and since when: milliseconds since 1970 UTC."""


def services(before: States, seen: Seen, tally: Tally) -> dict[str, Service]:
    """All of them, by name.

    Args:
        before: how they were, so that it can be told since when.
    """
    found = {name: _service(name, seen, tally) for name in SERVICES}
    found[BALANCES] = Service(
        State.NOT_READY if seen.own else State.READY, 0, 1, 0 if seen.own else 1, _words(seen.own)
    )
    return {name: _since(service, before.get(name), seen.at_ms) for name, service in found.items()}


def _since(service: Service, before: tuple[State, int] | None, at_ms: int) -> Service:
    same = before is not None and before[0] is service.state
    return msgspec.structs.replace(service, since_ms=before[1] if before is not None and same else at_ms)


def _service(name: str, seen: Seen, tally: Tally) -> Service:
    instances = [one for one in seen.instances if one.watched.service == name]
    ready = sum(one.answer is Answer.READY for one in instances)
    ages = [
        age_s
        for one in instances
        if one.scrape is not None
        for age_s in scrape.series(one.scrape, catalogue.OPEN_TRANSACTION_AGE).values()
    ]
    return Service(
        state=_state(instances, ready),
        since_ms=0,
        instances=len(instances),
        ready=ready,
        reasons=tuple(reason for one in instances for reason in _words(one.reasons)),
        restarts=tally.restarts.get(name, 0),
        open_transactions=sum(age_s > 0 for age_s in ages) if ages else None,
        oldest_open_s=max(ages) if ages else None,
        restoring=round(gauge(seen, catalogue.RESTORE_REMAINING, name) or 0),
    )


def _state(instances: list[Instance], ready: int) -> State:
    if not instances:
        return State.UNWATCHED
    if ready:
        return State.READY if ready == len(instances) else State.PARTLY
    return State.SILENT if all(one.answer is Answer.SILENT for one in instances) else State.NOT_READY


def _words(reasons: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{condition}: {reason}" for condition, reason in sorted(reasons.items()))


def gauge(seen: Seen, row: Metric, service: str = "") -> int | None:
    """The sum of a gauge over the instances of a service, or of all; None when nobody tells."""
    found = [value for one in _scraped(seen, service) for value in scrape.series(one, row).values()]
    return round(sum(found)) if found else None


def trusted(seen: Seen) -> bool | None:
    """Whether every outbox relies on Redis; None when none tells."""
    found = [value for one in _scraped(seen, "") for value in scrape.series(one, catalogue.REDIS_TRUSTED).values()]
    return all(found) if found else None


def _scraped(seen: Seen, service: str) -> list[scrape.Scrape]:
    return [one.scrape for one in seen.instances if one.scrape is not None and service in {"", one.watched.service}]
