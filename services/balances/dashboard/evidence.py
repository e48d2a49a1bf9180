"""Evidence for or against an invariant, gathered in several rounds: quiescence, and epochs. Pure.

Invariant: the pipeline counts as quiescent only after nothing moved for REST_S seconds with all services ready, nothing
lagging and no transaction open. What is judged of a quiescent system is judged then and not before.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from services.balances.dashboard.observed import Answer, Instance, Scrape, Seen, series, total
from shared.telemetry import catalogue
from shared.telemetry.metrics import COMMITTED

REST_S: Final = 3.0  # longer than a pipeline with work shows no progress
MOVERS: Final = ("ingest", "transform", "ledger")  # they must have drained
EPOCHS: Final = 1 << 15  # epochs are signed 16-bit numbers; after the last one a new producer id begins at 0
EPOCH_KEPT_MS: Final = 300_000
"""How long an epoch is kept that no instance reports. Each transaction raises it, some 12 times a second: it must be
forgotten before half of all epochs have passed."""


class Rest(msgspec.Struct, frozen=True):
    """Whether the pipeline is quiescent."""

    since_s: float | None = None  # since when nothing seemed to move; None when something does, or it is unknown
    marks: tuple[object, ...] = ()  # what must not change meanwhile

    def lasted(self, at_s: float) -> bool:
        return self.since_s is not None and at_s - self.since_s >= REST_S


def rest_after(before: Rest, seen: Seen) -> Rest:
    if not _still(seen):
        return Rest()
    marks = _marks(seen)
    return before if before.since_s is not None and before.marks == marks else Rest(seen.at_s, marks)


def _still(seen: Seen) -> bool:
    if seen.view is None or len(seen.view.positions) != seen.partitions or seen.own:
        return False
    if any(position.offsets_behind != 0 for position in seen.view.positions):
        return False
    for service in MOVERS:
        instances = [one for one in seen.instances if one.watched.service == service]
        if not instances or not all(map(_drained, instances)):
            return False
        if sum(len(series(one.scrape or {}, catalogue.RECORDS_LAG)) for one in instances) != seen.partitions:
            return False
    return True


def _drained(instance: Instance) -> bool:
    if instance.answer is not Answer.READY or instance.scrape is None:
        return False
    still = (catalogue.RECORDS_LAG, catalogue.LSO_LAG, catalogue.OPEN_TRANSACTION_AGE)
    return not any(value for row in still for value in series(instance.scrape, row).values())


def _marks(seen: Seen) -> tuple[object, ...]:
    positions = () if seen.view is None else tuple(position.next_offset for position in seen.view.positions)
    consumed = tuple(
        (str(one.watched), total(one.scrape or {}, catalogue.RECORDS_CONSUMED))
        for one in seen.instances
        if one.watched.service in MOVERS
    )
    return positions, consumed


class Fencing(msgspec.Struct, frozen=True):
    """What is known of producer epochs."""

    newest: Mapping[str, int] = {}  # epoch of each transactional.id
    # Of instances all of whose producers have a successor: the transactions that they had committed when they were
    # first asked after that was noticed; None until then
    fenced: Mapping[str, float | None] = {}
    breach: str = ""  # how a commit of theirs was seen to go through
    breach_ms: int | None = None
    reported_ms: Mapping[str, int] = {}  # when an instance last reported the newest epoch


def fencing_after(before: Fencing, instances: Iterable[Instance], at_ms: int) -> Fencing:
    """One round later: an instance whose every producer has a successor must not commit any more.

    An instance that has lost only some of them may go on with the others: its commits prove nothing.
    """
    scraped = [(str(one.watched), one.scrape) for one in instances if one.scrape is not None]
    reported_ms = {name: ms for name, ms in before.reported_ms.items() if at_ms - ms <= EPOCH_KEPT_MS}
    newest = {name: epoch for name, epoch in before.newest.items() if name in reported_ms}
    for _, scrape in scraped:
        for name, epoch in _epochs(scrape).items():
            known = newest.get(name)
            if known is None or known == epoch or _newer(epoch, known):
                newest[name], reported_ms[name] = epoch, at_ms
    fenced: dict[str, float | None] = {}
    breach, breach_ms = before.breach, before.breach_ms
    for instance, scrape in scraped:
        own = _epochs(scrape)
        if not own or not all(_newer(newest[name], epoch) for name, epoch in own.items()):
            continue
        if instance not in before.fenced:
            fenced[instance] = None  # this answer may be older than the successor's: commits in between are no breach
            continue
        committed = _committed(scrape)
        had = before.fenced[instance]
        fenced[instance] = committed if had is None else min(had, committed)  # a new process begins at 0
        if had is not None and committed > had and not breach:
            breach = f"{instance} committed although all of its producers have successors"
            breach_ms = at_ms
    return Fencing(newest, fenced, breach, breach_ms, reported_ms)


def _epochs(scrape: Scrape) -> dict[str, int]:
    return {name: int(epoch) for (name,), epoch in series(scrape, catalogue.PRODUCER_EPOCH).items()}


def _newer(epoch: int, known: int) -> bool:
    """Compare as serial numbers: after the last epoch comes 0."""
    return 0 < (epoch - known) % EPOCHS < EPOCHS // 2


def _committed(scrape: Scrape) -> float:
    outcome = catalogue.TRANSACTIONS.labels.index("outcome")
    return sum(
        value for labels, value in series(scrape, catalogue.TRANSACTIONS).items() if labels[outcome] == COMMITTED
    )
