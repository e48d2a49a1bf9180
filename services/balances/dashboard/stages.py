"""The services of the picture, and counters of several processes, added up over their restarts. Pure.

Invariant: a total never falls. A process that starts again begins at 0: its counts are added to those that its
predecessor reported. Counts after the predecessor's last answer are lost, so from then on the total is a lower bound,
and says so.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from services.balances.dashboard import observed
from services.balances.dashboard.observed import SERVICES, Answer, Instance, Scrape, Seen, started_s
from services.balances.dashboard.snapshot import Service, State
from shared.events.catalogue import EFFECTS_REQUESTS, LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_ACCEPTED, PAYMENTS_RAW
from shared.telemetry import catalogue
from shared.telemetry.catalogue import Metric

WINDOW_S: Final = 3.0  # of a rate: services commit a few times a second, so a shorter one would only flicker

Key = tuple[str, str]  # a count's name, and the value of the label that it is split by; empty if it is not split


class Count(NamedTuple):
    """A count, from counters of services."""

    name: str
    service: str  # whose instances are added up; empty for all
    metric: Metric
    where: tuple[tuple[str, str], ...] = ()  # label values that a series must have, by label
    by: str = ""  # label that the count is split by; empty for none
    suffix: str = ""  # of the samples of a histogram


class Counted(msgspec.Struct, frozen=True):
    """One count so far."""

    total: float = 0.0
    at_least: bool = False  # whether a process ended that may have counted more than it reported
    points: tuple[tuple[float, float], ...] = ()  # time and total, the oldest first, no older than WINDOW_S

    @property
    def per_s(self) -> float | None:
        """Over the window; None until there are two points."""
        if len(self.points) < 2:
            return None
        (begun_s, first), (ended_s, last) = self.points[0], self.points[-1]
        return (last - first) / (ended_s - begun_s)

    def at(self, total: float, at_s: float) -> "Counted":
        """The count at a later time; points that are too old go."""
        kept = tuple(point for point in self.points if at_s - WINDOW_S <= point[0] < at_s)
        return Counted(total, self.at_least, (*kept, (at_s, total)))


class Tally(msgspec.Struct, frozen=True):
    """All counts."""

    started: Mapping[str, float] = {}  # of each instance's process, seconds since 1970 UTC
    last: Mapping[tuple[str, Key], float] = {}  # reported by each instance
    counted: Mapping[Key, Counted] = {}
    restarts: Mapping[str, int] = {}  # by service

    def get(self, name: str, by: str = "") -> Counted:
        """One count; 0 if no instance has reported it."""
        return self.counted.get((name, by), Counted())

    def split(self, name: str) -> dict[str, Counted]:
        """A count by its label's values."""
        return {by: counted for (of, by), counted in self.counted.items() if of == name and by}


def advance(before: Tally, counts: Iterable[Count], instances: Iterable[Instance], at_s: float) -> Tally:
    """All counts after one more round of answers; an instance without a scrape counts as before."""
    work = _Work(before)
    every = tuple(counts)
    for instance in instances:
        if instance.scrape is not None:
            work.take(instance.watched.service, str(instance.watched), instance.scrape, every)
    return work.done(at_s)


class _Work:
    """One round's changes on copies of what was before."""

    def __init__(self, before: Tally) -> None:
        self._started = dict(before.started)
        self._last = dict(before.last)
        self._counted = dict(before.counted)
        self._restarts = dict(before.restarts)

    def take(self, service: str, instance: str, scrape: Scrape, counts: tuple[Count, ...]) -> None:
        known = self._started.get(instance)
        started = started_s(scrape) or 0.0
        restarted = known is not None and started != known
        self._started[instance] = started
        if restarted:
            self._restarts[service] = self._restarts.get(service, 0) + 1
        for count in counts:
            if count.service in {"", service}:
                for key, value in _values(count, scrape).items():
                    self._add(instance, key, value, restarted=restarted, first=known is None)
        if restarted:
            self._forget(instance, {key for count in counts for key in _values(count, scrape)})

    def _add(self, instance: str, key: Key, value: float, *, restarted: bool, first: bool) -> None:
        counted = self._counted.get(key, Counted())
        last = self._last.get((instance, key), 0.0)
        fell = restarted or value < last
        gain = value if fell else value - last
        points = counted.points
        if first:  # it may have counted for days: that is no rate
            points = tuple((at_s, total + gain) for at_s, total in points)
        self._last[instance, key] = value
        self._counted[key] = Counted(counted.total + gain, counted.at_least or fell, points)

    def _forget(self, instance: str, reported: set[Key]) -> None:
        """A new process has not reported these yet: they begin at 0 as well."""
        for of, key in [place for place in self._last if place[0] == instance and place[1] not in reported]:
            del self._last[of, key]
            self._counted[key] = msgspec.structs.replace(self._counted[key], at_least=True)

    def done(self, at_s: float) -> Tally:
        counted = {key: one.at(one.total, at_s) for key, one in self._counted.items()}
        return Tally(self._started, self._last, counted, self._restarts)


def _values(count: Count, scrape: Scrape) -> dict[Key, float]:
    labels = count.metric.labels
    where = [(labels.index(label), value) for label, value in count.where]
    split = labels.index(count.by) if count.by else None
    found: dict[Key, float] = {}
    for values, value in scrape.get(count.metric.name + count.suffix, {}).items():
        if all(values[at] == wanted for at, wanted in where):
            key = count.name, "" if split is None else values[split]
            found[key] = found.get(key, 0.0) + value
    return found


BALANCES: Final = "balances"  # the view itself, among the services
READERS: Final = {  # of the topics of the picture
    PAYMENTS_RAW: "ingest",
    PAYMENTS_ACCEPTED: "transform",
    LEDGER_TRANSFERS: "ledger",
    LEDGER_POSTINGS: BALANCES,
    EFFECTS_REQUESTS: "outbox",
}

States = Mapping[str, tuple[State, int]]  # of each service, and since when: milliseconds since 1970 UTC


def services(before: States, seen: Seen, tally: Tally) -> dict[str, Service]:
    """All services by name, with the time since when each is in its state."""
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
        for age_s in observed.series(one.scrape, catalogue.OPEN_TRANSACTION_AGE).values()
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
    """The sum of a gauge over the instances of a service, or of all; None if none reports it."""
    found = [value for one in _scraped(seen, service) for value in observed.series(one, row).values()]
    return round(sum(found)) if found else None


def trusted(seen: Seen) -> bool | None:
    """Whether every outbox trusts its Redis; None if none says so."""
    found = [value for one in _scraped(seen, "") for value in observed.series(one, catalogue.REDIS_TRUSTED).values()]
    return all(found) if found else None


def _scraped(seen: Seen, service: str) -> list[observed.Scrape]:
    return [one.scrape for one in seen.instances if one.scrape is not None and service in {"", one.watched.service}]
