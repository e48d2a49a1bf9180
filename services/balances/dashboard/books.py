"""What the view's tables and the reconciliations say, as the page is told of it. Pure."""

from services.balances.dashboard.evidence import breaks_of, standing_runs
from services.balances.dashboard.invariants import sums
from services.balances.dashboard.observed import Run, ViewLook
from services.balances.dashboard.snapshot import Currency, Reconciliation, View
from services.balances.projection.progress import overall
from services.balances.projection.rows import CLIENTS, DECLINE
from shared.events.postings import CREDIT, DEBIT
from shared.events.reference import MINOR_DIGITS


def view_of(view: ViewLook) -> View:
    """Of one look into the tables."""
    told = overall(view.positions)
    return View(
        behind_s=told.seconds_behind,
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


def reconciliation_of(runs: tuple[Run, ...]) -> Reconciliation | None:
    """Of the runs that count; None without any."""
    standing = standing_runs(runs)
    if not standing:
        return None
    last = standing[-1]
    return Reconciliation(
        at_ms=last.at_ms,
        cut_id=last.outcome.cut_id,
        verdict=last.outcome.verdict,
        full=last.outcome.full,
        breaks=breaks_of([last]),
        runs=len(standing),
        found=breaks_of(standing),
    )
