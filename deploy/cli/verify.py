"""`once verify`: the verdict over everything that the topics hold."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from deploy.checkers.audit import IDENTITY_WINDOW
from deploy.checkers.cover import REVERSAL_WINDOW
from deploy.checkers.verdict import FAIL, FIGURES, INVARIANTS, NO_DATA, PASS, Verdict
from deploy.cli.cluster import brokers_option, timeout_option
from deploy.cli.output import EXIT_NOTHING, answer, console, json_option, note, print_findings, progress, table
from deploy.verification import verify_cluster
from shared.kafka.client.access import Access

EXIT_CODES = {PASS: 0, FAIL: 1, NO_DATA: EXIT_NOTHING}

_STYLES = {PASS: "bold green", FAIL: "bold red", NO_DATA: "bold yellow"}
_WIDTH_CHARS = 120


@click.command()
@json_option()
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the pipeline has drained.")
@timeout_option(
    "Seconds to wait for that, and to read again where records arrive; then what is there is judged, and fails.", 120.0
)
@click.option(
    "--identity-window",
    type=click.IntRange(min=1),
    default=IDENTITY_WINDOW,
    show_default=True,
    help="Accepted identities that ingest remembers for each partition; its setting ONCE_INGEST_WINDOW.",
)
@click.option(
    "--reversal-window",
    type=click.IntRange(min=1),
    default=REVERSAL_WINDOW,
    show_default=True,
    help="Booked payments that the ledger remembers for each partition; its setting ONCE_LEDGER_REVERSAL_WINDOW.",
)
@click.option(
    "--file-sinks",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Compare effects with the files of the file: destinations in this directory; ONCE_OUTBOX_FILE_DIRECTORY.",
)
@brokers_option
def verify(
    wait: bool,
    timeout_s: float,
    identity_window: int,
    reversal_window: int,
    file_sinks: Path | None,
    brokers: Access,
) -> None:
    """Prove that each payment was booked once, and its notifications sent once.

    Reads the topics read_committed from offset 0, with none of the services' code. Refusals, prices, declines and
    effect requests are computed again, by the reference data that was in force. Accounts of a loaded bank file are
    compared with the bank's own last balances. With --no-wait, records in flight count as missing. An effect in doubt
    or failed is counted, but is not a fault; an effect that still waits to be tried again is.

    Exit codes: 0 all holds, 1 something does not (or there is no verdict), 2 wrong usage, 3 no payment was there
    to check.
    """
    with progress("verifying", "offsets") as report:
        verdict = asyncio.run(
            verify_cluster(
                brokers,
                wait=wait,
                deadline_s=timeout_s,
                identity_window=identity_window,
                reversal_window=reversal_window,
                file_sinks=file_sinks,
                on_progress=report,
                on_note=lambda text: note(f"verify: {text}"),
            )
        )
    answer(verdict, lambda: _show(verdict))
    sys.exit(EXIT_CODES[verdict.verdict])


def _show(verdict: Verdict) -> None:
    screen = console(_WIDTH_CHARS)
    figures = ((name, f"{getattr(verdict, name):,}") for name in FIGURES)
    screen.print(table(("figure", "count"), figures, right=("count",), show_header=False, pad_edge=True))
    columns = ("invariant", "checked", "violations", "result")
    screen.print(table(columns, _results(verdict), right=("checked", "violations"), pad_edge=True))
    found = ((f"{one.invariant} {one.kind}", one.where, one.detail) for one in verdict.violations)
    print_findings(screen, found, verdict.violations_total)
    if not verdict.at_rest:
        screen.print("The pipeline was not idle: records in flight count as missing.")
    screen.print(f"verdict: [{_STYLES[verdict.verdict]}]{verdict.verdict}[/]")


def _results(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    for name, text in INVARIANTS.items():
        one = verdict.invariants[name]
        result = f"[{_STYLES[one.result]}]{one.result}[/]"
        yield f"{name}  {text}", f"{one.checked:,}", f"{one.violations:,}", result
