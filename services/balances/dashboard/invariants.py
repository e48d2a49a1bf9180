"""The invariants of ARCHITECTURE.md as lights: who judges each, what was found, and when. Pure.

Invariant: each light can turn red, and none is green by default; one that was not judged yet says so. A light is red if
any judge found a breach. A reconciliation counts breaks by kind, not by invariant: a kind turns every light red that it
may concern, and the text refers to the report for the invariants.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from services.balances.dashboard.evidence import Fencing, Rest
from services.balances.dashboard.observed import Seen, ViewLook
from services.balances.dashboard.snapshot import Light, Standing
from shared.events.postings import CREDIT, DEBIT

# Kinds of breaks of a reconciliation
AMOUNT: Final = "amount"
DUPLICATE: Final = "duplicate"
EFFECT: Final = "effect"
MISSING: Final = "missing"
ORPHAN: Final = "orphan"
TORN: Final = "torn"
UNCOMMITTED: Final = "uncommitted"
UNDECODABLE: Final = "undecodable"
OFFSETS: Final = "offsets"
EXPIRED: Final = "expired"
DECISION: Final = "decision"
ANY: Final = (AMOUNT, DUPLICATE, EFFECT, MISSING, ORPHAN, TORN, UNCOMMITTED, UNDECODABLE, OFFSETS, EXPIRED, DECISION)

IN_TRANSIT: Final = "in-transit"
NAMED_MAX: Final = 4  # currencies in a text


class Verdict(NamedTuple):
    standing: Standing
    detail: str
    at_ms: int | None


class Evidence(NamedTuple):
    seen: Seen
    rested: bool  # whether the pipeline is quiescent now
    fencing: Fencing
    refused: int  # requests of fenced producers that were refused since the services started


Judge = Callable[[Evidence], Verdict]


class Invariant(NamedTuple):
    id: str
    name: str
    statement: str
    kinds: tuple[str, ...]  # of breaks that concern it; empty if reconciliations do not judge it
    live: tuple[str, Judge] | None = None  # its judge from live figures, with the name of that judge


def _unknown(detail: str) -> Verdict:
    return Verdict(Standing.UNKNOWN, detail, None)


def sums(view: ViewLook) -> dict[str, int]:
    """The sum of all balances, by currency."""
    found: dict[str, int] = {}
    for (_, currency), minor in view.balances.items():
        found[currency] = found.get(currency, 0) + minor
    return dict(sorted(found.items()))


def _conserved(evidence: Evidence) -> Verdict:
    view = evidence.seen.view
    if view is None:
        return _unknown("the view's database does not answer")
    if not view.balances:
        return _unknown("nothing was posted yet")
    found = sums(view)
    off = {currency: minor for currency, minor in found.items() if minor}
    if off:
        return Verdict(Standing.BROKEN, _listed(f"{c} {minor} minor units" for c, minor in off.items()), _now(evidence))
    return Verdict(Standing.OK, f"{_listed(found)}: the sum is 0", _now(evidence))


def _completed(evidence: Evidence) -> Verdict:
    view = evidence.seen.view
    if view is None or not evidence.rested:
        return _unknown("work is under way")
    debited, credited = view.events.get(DEBIT, 0), view.events.get(CREDIT, 0)
    if not debited and not credited:
        return _unknown("nothing was posted yet")
    standing = Standing.OK if debited == credited else Standing.BROKEN
    return Verdict(standing, f"{debited:,} debit legs, {credited:,} credit legs", _now(evidence))


def _in_transit(evidence: Evidence) -> Verdict:
    view = evidence.seen.view
    if view is None or not evidence.rested:
        return _unknown("work is under way")
    found = {currency: minor for (holder, currency), minor in view.balances.items() if holder == IN_TRANSIT}
    if not found:
        return _unknown("nothing was ever in transit")
    off = {currency: minor for currency, minor in sorted(found.items()) if minor}
    if off:
        return Verdict(Standing.BROKEN, _listed(f"{c} {minor} minor units" for c, minor in off.items()), _now(evidence))
    return Verdict(Standing.OK, f"{_listed(sorted(found))}: nothing is in transit", _now(evidence))


def _fenced(evidence: Evidence) -> Verdict:
    fencing = evidence.fencing
    if fencing.breach:
        return Verdict(Standing.BROKEN, fencing.breach, fencing.breach_ms)
    if not fencing.newest:
        return _unknown("no producer has reported its epoch yet")
    refused = f"{evidence.refused:,} refused so far" if evidence.refused else "none had to be refused so far"
    return Verdict(Standing.OK, f"{len(fencing.newest)} producers watched, {refused}", _now(evidence))


def _now(evidence: Evidence) -> int:
    return evidence.seen.at_ms


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    more = f" and {len(every) - NAMED_MAX} more" if len(every) > NAMED_MAX else ""
    return ", ".join(every[:NAMED_MAX]) + more


_AT_REST: Final = "the view, whenever the pipeline is at rest"

INVARIANTS: Final = (
    Invariant(
        "I1", "conservation", "for each currency, all balances sum to 0", (), ("the view's totals, always", _conserved)
    ),
    Invariant(
        "I2", "balanced", "each posting's entries sum to 0 for each currency, on one partition", (AMOUNT, UNDECODABLE)
    ),
    Invariant(
        "I3",
        "once",
        "each accepted payment has exactly one debit posting or one decline",
        (AMOUNT, DECISION, DUPLICATE, MISSING, ORPHAN, UNDECODABLE),
    ),
    Invariant(
        "I4",
        "completed",
        "each debit leg has exactly one credit leg, once drained",
        (DUPLICATE, MISSING, ORPHAN),
        (_AT_REST, _completed),
    ),
    Invariant("I5", "in transit", "the in-transit accounts sum to 0 once drained", (), (_AT_REST, _in_transit)),
    Invariant(
        "I6",
        "nothing lost",
        "each raw offset is in exactly one of accepted, deduplicated, dead-letter",
        (DECISION, DUPLICATE, MISSING, ORPHAN, UNDECODABLE),
    ),
    Invariant("I7", "atomic", "of a transaction's records and offsets, all are visible or none", (MISSING, TORN)),
    Invariant(
        "I8", "committed only", "no record of an aborted transaction is the source of any other", (ORPHAN, UNCOMMITTED)
    ),
    Invariant(
        "I9", "replay", "folding ledger.postings from offset 0 gives the balances in the changelog", (AMOUNT, MISSING)
    ),
    Invariant(
        "I10",
        "fenced",
        "a commit by a producer with an older epoch is refused",
        (),
        ("the producers' epochs and commits, as they report them", _fenced),
    ),
    Invariant(
        "I11",
        "effects",
        "each committed request has exactly one distinct effect; a doubt is reported",
        (DECISION, DUPLICATE, EFFECT, ORPHAN),
    ),
    Invariant("I12", "reconciled", "what Spark counts and sums agrees at the same offsets", ANY),
)


class Judged(msgspec.Struct, frozen=True):
    """The last verdict from live figures on each invariant, by id: that on a quiescent system stays until the next."""

    live: Mapping[str, Verdict] = {}


def judge(before: Judged, seen: Seen, rest: Rest, fencing: Fencing, refused: int) -> tuple[Judged, tuple[Light, ...]]:
    """All lights after one more round."""
    evidence = Evidence(seen, rest.lasted(seen.at_s), fencing, refused)
    live: dict[str, Verdict] = {}
    lights = []
    for row in INVARIANTS:
        verdicts: list[tuple[str, Verdict]] = []
        if row.live is not None:
            words, ask = row.live
            verdict = ask(evidence)
            if verdict.standing is Standing.UNKNOWN:
                verdict = before.live.get(row.id, verdict)
            if verdict.standing is not Standing.UNKNOWN:
                live[row.id] = verdict
            verdicts.append((words, verdict))
        if row.kinds:
            verdicts.append(("the reconciliation", _reconciled(row, seen)))
        lights.append(_light(row, verdicts))
    return Judged(live), tuple(lights)


def _reconciled(row: Invariant, seen: Seen) -> Verdict:
    if not seen.runs_known:
        return _unknown("the last reconciliation is not known yet")
    last = seen.run
    if last is None:
        return _unknown("there was no reconciliation yet")
    found = {
        kind: count for kind, count in last.outcome.breaks.items() if count and (kind in row.kinds or kind not in ANY)
    }
    if found:
        listed = _listed(f"{count:,} {kind}" for kind, count in sorted(found.items()))
        text = f"open breaks: {listed}; the report names the records"
        return Verdict(Standing.BROKEN, text, last.at_ms)
    explained = f", {last.outcome.explained:,} explained" if last.outcome.explained else ""
    return Verdict(Standing.OK, f"no open break{explained}", last.at_ms)


def _light(row: Invariant, verdicts: list[tuple[str, Verdict]]) -> Light:
    """The worst verdict; a judge without one is outvoted, but named."""
    standings = [verdict.standing for _, verdict in verdicts]
    worst = next(one for one in (Standing.BROKEN, Standing.OK, Standing.UNKNOWN) if one in standings)
    deciding = [verdict for _, verdict in verdicts if verdict.standing is worst]
    times = [verdict.at_ms for verdict in deciding if verdict.at_ms is not None]
    return Light(
        row.id,
        row.name,
        row.statement,
        worst,
        "; ".join(words for words, _ in verdicts),
        "; ".join(verdict.detail for verdict in deciding),
        max(times) if times else None,
    )
