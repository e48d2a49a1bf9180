"""From observations, before and now, to the page's snapshot. Pure.

Invariant: `derive` is a function of its arguments. What it must remember from round to round is one value, which the
collector keeps while no client is connected.
"""

from typing import Final

import msgspec

from services.balances.dashboard import observed, snapshot, stages
from services.balances.dashboard.evidence import Fencing, Rest, fencing_after, rest_after
from services.balances.dashboard.invariants import Judged, judge, sums
from services.balances.dashboard.observed import Answer, Seen, ViewLook
from services.balances.dashboard.snapshot import Counter, Currency, Hop, Reconciliation, Snapshot, View
from services.balances.dashboard.stages import BALANCES, READERS, Count, Counted, States, Tally, advance
from services.balances.projection.progress import overall
from services.balances.projection.rows import CLIENTS, DECLINE
from shared.events.catalogue import PAYMENTS_ACCEPTED, PAYMENTS_RAW
from shared.events.postings import CREDIT, DEBIT
from shared.events.reference import MINOR_DIGITS
from shared.http.monitor import Run
from shared.telemetry import catalogue


def view_of(view: ViewLook) -> View:
    freshness = overall(view.positions)
    return View(
        behind_s=freshness.seconds_behind,
        positions=view.positions,
        currencies=tuple(_currency(view, currency, minor) for currency, minor in sums(view).items()),
        debits=view.events.get(DEBIT, 0),
        credits=view.events.get(CREDIT, 0),
        declines=view.events.get(DECLINE, 0),
    )


def _currency(view: ViewLook, currency: str, total: int) -> Currency:
    house = {
        holder: str(minor)
        for (holder, of), minor in sorted(view.balances.items())
        if of == currency and holder != CLIENTS
    }
    clients = view.balances.get((CLIENTS, currency), 0)
    return Currency(currency, MINOR_DIGITS.get(currency, 0), str(clients), house, str(total))


def reconciliation_of(last: Run | None) -> Reconciliation | None:
    """The newest outcome; None without any."""
    if last is None:
        return None
    outcome = last.outcome
    return Reconciliation(
        at_ms=last.at_ms,
        cut_id=outcome.cut_id,
        verdict=outcome.verdict,
        full=outcome.full,
        breaks={kind: count for kind, count in sorted(outcome.breaks.items()) if count},
        explained=outcome.explained,
        oldest_at_ms=outcome.oldest_at_ms,
        at_risk_minor=outcome.at_risk_minor,
    )


_READ: Final = "read:"
_AGE: Final = "age:"
_AGES: Final = "ages:"
_DEAD_LETTERS: Final = "dead_letters"
_EFFECTS: Final = "effects"
_REFUSED: Final = "refused"
_TAKEN: Final = "taken"
_SHOWN: Final = (_TAKEN, "deduplicated", _REFUSED, "committed", "aborted", "unknown")

COUNTS: Final = (  # sums of the services' counters
    *(
        Count(_READ + topic, reader, catalogue.RECORDS_CONSUMED, (("topic", topic),))
        for topic, reader in READERS.items()
        if reader != BALANCES
    ),
    *(
        Count(name + topic, "", catalogue.END_TO_END_LATENCY, (("hop", topic),), suffix=suffix)
        for topic in READERS
        for name, suffix in ((_AGE, observed.SUM), (_AGES, observed.COUNT))
    ),
    # Not its answers: a batch has one answer for many records
    Count(_TAKEN, "gateway", catalogue.RECORD_SEND, (("topic", PAYMENTS_RAW),)),
    Count("deduplicated", "ingest", catalogue.DEDUPLICATED),
    Count(_DEAD_LETTERS, "ingest", catalogue.DEAD_LETTERS, by="reason"),
    Count(_EFFECTS, "outbox", catalogue.EFFECTS, by="state"),
    Count(_REFUSED, "", catalogue.FENCED),
    *(
        Count(outcome, "", catalogue.TRANSACTIONS, (("outcome", outcome),))
        for outcome in ("committed", "aborted", "unknown")
    ),
)


class Memory(msgspec.Struct, frozen=True):
    """What one round hands on to the next."""

    tally: Tally = Tally()
    posted: Counted = Counted()  # records of ledger.postings in the view's tables
    rest: Rest = Rest()
    fencing: Fencing = Fencing()
    judged: Judged = Judged()
    brokers_seen: int = 0  # the most that were alive at once
    states: States = {}
    log: snapshot.Log = snapshot.Log()


def derive(before: Memory, seen: Seen) -> tuple[Memory, Snapshot]:
    """One round, from the memory of the round before, `Memory()` for the first."""
    tally = advance(before.tally, COUNTS, seen.instances, seen.at_s)
    rest = rest_after(before.rest, seen)
    fencing = fencing_after(before.fencing, seen.instances, seen.at_ms)
    judged, lights = judge(before.judged, seen, rest, fencing, round(tally.get(_REFUSED).total))
    services = stages.services(before.states, seen, tally)
    brokers = None if seen.cluster is None else seen.cluster.brokers
    brokers_seen = max(before.brokers_seen, brokers or 0)
    posted = _posted(before.posted, seen)
    alive = snapshot.Alive(brokers, brokers_seen, seen.cluster_failure)
    log = snapshot.after(before.log, seen.at_ms, services, alive, lights)
    states = {name: (service.state, service.since_ms) for name, service in services.items()}
    memory = Memory(tally, posted, rest, fencing, judged, brokers_seen, states, log)
    started = [started_s for started_s in tally.started.values() if started_s]
    return memory, Snapshot(
        at_ms=seen.at_ms,
        since_ms=round(min(started) * 1000) if started else None,
        brokers=brokers,
        brokers_seen=brokers_seen,
        cluster_failure=seen.cluster_failure,
        services=services,
        hops={topic: _hop(topic, seen, tally, posted) for topic in READERS},
        counts=_counts(tally),
        dead_letters=_split(tally, _DEAD_LETTERS),
        effects_waiting=stages.gauge(seen, catalogue.EFFECTS_WAITING),
        redis_trusted=stages.trusted(seen),
        view=None if seen.view is None else view_of(seen.view),
        view_failure=seen.view_failure,
        runs_known=seen.runs_known,
        reconciliation=reconciliation_of(seen.run),
        lights=lights,
        events=log.events,
    )


def _posted(before: Counted, seen: Seen) -> Counted:
    """Records in the view's tables; a view that is rebuilt starts over."""
    if seen.view is None:
        return before
    total = float(sum(seen.view.events.values()))
    return (Counted() if total < before.total else before).at(total, seen.at_s)


def _hop(topic: str, seen: Seen, tally: Tally, posted: Counted) -> Hop:
    reader = READERS[topic]
    per_s = posted.per_s if reader == BALANCES else tally.get(_READ + topic).per_s
    lag, with_markers = _lag(topic, reader, seen)
    ages, count = tally.get(_AGE + topic).per_s, tally.get(_AGES + topic).per_s
    return Hop(
        per_s=per_s,
        lag=lag,
        lag_with_markers=with_markers,
        lso_lag=None if seen.cluster is None else seen.cluster.lso_lag.get(topic),
        latency_s=ages / count if ages and count else None,
    )


def _lag(topic: str, reader: str, seen: Seen) -> tuple[int | None, bool]:
    """A reader's own lag; while it reports none, that of its group's committed offsets."""
    if reader == BALANCES:
        return None if seen.view is None else overall(seen.view.positions).offsets_behind, False
    lags = [
        value
        for one in seen.instances
        if one.watched.service == reader and one.answer is not Answer.SILENT and one.scrape is not None
        for labels, value in observed.series(one.scrape, catalogue.RECORDS_LAG).items()
        if labels[0] == topic
    ]
    if lags:
        return round(sum(lags)), False
    behind = None if seen.cluster is None else seen.cluster.behind.get(reader)
    return behind, behind is not None


def _counts(tally: Tally) -> dict[str, Counter]:
    read = {topic: _counter(tally, _READ + topic) for topic, reader in READERS.items() if reader != BALANCES}
    effects = {f"effects_{state}": counter for state, counter in _split(tally, _EFFECTS).items()}
    shown = {name: _counter(tally, name) for name in _SHOWN}
    return {**shown, **effects, "received": read[PAYMENTS_RAW], "accepted": read[PAYMENTS_ACCEPTED]}


def _counter(tally: Tally, name: str, by: str = "") -> Counter:
    counted = tally.get(name, by)
    return Counter(round(counted.total), counted.at_least, counted.per_s)


def _split(tally: Tally, name: str) -> dict[str, Counter]:
    return {by: _counter(tally, name, by) for by in sorted(tally.split(name))}
