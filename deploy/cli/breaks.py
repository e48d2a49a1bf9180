"""`once breaks list | show | explain`: the open breaks of the last reconciliation, and their explanations."""

import time
from collections.abc import Mapping
from typing import Any

import click

from deploy.cli.output import (
    answer,
    failing_on,
    fields_text,
    iso_time,
    json_option,
    note,
    nothing,
    operator,
    print_rows,
)
from deploy.cli.reconcile import lake_option, place
from shared.events.reference import MINOR_DIGITS
from spark import register
from spark.lake import Lake, LakeError, LakeLockedError
from spark.manifest import Manifest
from spark.page import amount
from spark.register import Entry, Explanation, State
from spark.runs import Runs

_WIDTH_CHARS = 160
_DAY_MS = 86_400_000


@click.group()
def breaks() -> None:
    """List, show and explain the open breaks of the reconciliation."""


@breaks.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="The oldest.")
@lake_option
@json_option("Print one JSON object, counts included.")
def list_breaks(limit: int, lake: Lake) -> None:
    """List the open breaks of the last run, the oldest first; those that are explained last.

    A break stays open until the records no longer show it. An explanation does not close it, but the verdict of a run
    is `explained` when each open break has one.

    Exit codes: 0 shown (none is fine), 1 not, 3 there was no run yet.
    """
    with failing_on(LakeError):
        cut, found = _open(lake)
        known = register.newest_explanations(register.read_explanations(lake.root))
    shown = [_fields(entry, _explanation(entry, known)) for entry in found]
    shown.sort(key=lambda one: one["explained"] is not None)
    unexplained = sum(one["explained"] is None for one in shown)
    counts = {"cut_id": cut.cut_id, "open": unexplained, "explained": len(shown) - unexplained}
    answer({**counts, "breaks": shown[:limit]}, lambda: _show_list(shown[:limit], counts))


def _show_list(shown: list[dict[str, Any]], counts: dict[str, Any]) -> None:
    rows = [{**one, "explained": "" if one["explained"] is None else f"by {one['explained']['by']}"} for one in shown]
    columns = ("id", "kind", "at", "payment_id", "days", "amount", "explained", "detail")
    print_rows(rows, columns, width_chars=_WIDTH_CHARS, no_wrap=("id", "kind", "at"), right=("days", "amount"))
    note(f"{counts['open']:,} open, {counts['explained']:,} explained, after cut {counts['cut_id']}")


@breaks.command()
@click.argument("break_id")
@lake_option
@json_option()
def show(break_id: str, lake: Lake) -> None:
    """Show the break BREAK_ID and its history: when it was opened, explained and closed.

    Exit codes: 0 shown, 1 not, 3 no run knows it.
    """
    with failing_on(LakeError):
        runs, seen = Runs(lake), []
        for cut in lake.cuts():
            if runs.record(cut) is not None:
                seen += [(cut, one) for one in register.entries(runs, cut) if one.break_id == break_id]
        explained = [one for one in register.read_explanations(lake.root) if one.break_id == break_id]
    if not seen:
        nothing(f"no run knows the break {break_id}: see once breaks list")
    entry = seen[-1][1]
    known = _explanation(entry, register.newest_explanations(explained))
    events = [
        (cut.taken_at_ms, f"{one.state} by the run over cut {cut.cut_id}: {one.detail}")
        for (cut, one), before in zip(seen, [None, *(one for _, one in seen)], strict=False)
        if one.state != State.OPEN or before is None or before.detail != one.detail
    ]
    events += [(one.at_ms, f"explained by {one.by}: {one.reason}") for one in explained]
    history = [{"time": iso_time(at_ms), "event": text} for at_ms, text in sorted(events)]
    fields = {**_fields(entry, known), "state": entry.state, "check": entry.check}
    text = fields_text(fields) + "\n" + "\n".join(f"{one['time']}  {one['event']}" for one in history)
    answer({**fields, "history": history}, text)


@breaks.command()
@click.argument("break_id")
@click.option("--reason", required=True, help="What happened, and what was done about it: for the auditor.")
@click.option("--by", default=operator, show_default="the user and host of this process", help="Who explains it.")
@lake_option
@json_option()
def explain(break_id: str, reason: str, by: str, lake: Lake) -> None:
    """Explain the break BREAK_ID as it is now. The next run counts it as explained.

    An explanation changes no total and no other break. It ends when the break changes or ends: if another amount
    differs, or the break opens again, it needs another explanation. Explanations are appended to the lake and cannot be
    changed.

    Exit codes: 0 done, 1 not, 2 wrong usage, 3 no such break is open.
    """
    if not reason.strip() or not by.strip():
        raise click.UsageError("--reason and --by must not be empty")
    with failing_on(LakeError, LakeLockedError), lake.lock():
        _, found = _open(lake)
        entry = next((one for one in found if one.break_id == break_id), None)
        if entry is None:
            nothing(f"no break {break_id} is open: see once breaks list")
        # Since it opened, by the clock of the run
        at_ms = max(time.time_ns() // 1_000_000, entry.opened_at_ms)
        made = register.explain(lake.root, break_id, entry.detail, by=by, at_ms=at_ms, reason=reason)
    answer(_fields(entry, made), f"{break_id} is explained by {by}; the next run counts it as explained")


def _explanation(entry: Entry, known: Mapping[tuple[str, str], Explanation]) -> Explanation | None:
    return register.explanation_of(known, entry.break_id, entry.detail, entry.opened_at_ms)


def _open(lake: Lake) -> tuple[Manifest, list[Entry]]:
    runs = Runs(lake)
    cut = register.newest_run(runs, lake.cuts())
    if cut is None:
        nothing(f"there is no complete run in {lake.root}: make one with once reconcile")
    return cut, [one for one in register.entries(runs, cut) if one.state != State.CLOSED]


def _fields(entry: Entry, known: Explanation | None) -> dict[str, Any]:
    shown = None if entry.amount_minor is None else amount(entry.amount_minor, entry.currency or "")
    return {
        "id": entry.break_id,
        "kind": entry.kind,
        "at": place(entry) or entry.subject or "",
        "payment_id": entry.payment_id,
        "opened_at": iso_time(entry.opened_at_ms),
        "days": (time.time_ns() // 1_000_000 - entry.opened_at_ms) // _DAY_MS,
        "amount": None
        if shown is None
        else f"{shown} {entry.currency if entry.currency in MINOR_DIGITS else ''}".strip(),
        "detail": entry.detail,
        "explained": None if known is None else {"by": known.by, "at": iso_time(known.at_ms), "reason": known.reason},
    }
