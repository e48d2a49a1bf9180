"""`once verify`: the verdict over everything that the topics hold."""

import asyncio
import sys
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploy.checkers.audit import IDENTITY_WINDOW
from deploy.checkers.verdict import FAIL, FIGURES, INVARIANTS, NO_DATA, PASS, Verdict
from deploy.cli.endpoints import bootstrap_servers_option
from deploy.cli.progress import StderrProgress
from deploy.verification import verify_cluster
from shared.kafka.client.access import Bootstrap

EXIT_CODES = {PASS: 0, FAIL: 1, NO_DATA: 3}

_STYLES = {PASS: "bold green", FAIL: "bold red", NO_DATA: "bold yellow"}
_WIDTH_CHARS = 120


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the pipeline has drained.")
@click.option(
    "--timeout",
    "deadline_s",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="Seconds to wait for that, and to read again where records arrive; then what is there is judged, and fails.",
)
@click.option(
    "--identity-window",
    type=click.IntRange(min=1),
    default=IDENTITY_WINDOW,
    show_default=True,
    help="Accepted identities that ingest remembers for each partition; its setting ONCE_INGEST_WINDOW.",
)
@click.option(
    "--file-sinks",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Compare effects with the files of the file: destinations in this directory; ONCE_OUTBOX_FILE_DIRECTORY.",
)
@bootstrap_servers_option
def verify(
    as_json: bool,
    wait: bool,
    deadline_s: float,
    identity_window: int,
    file_sinks: Path | None,
    bootstrap_servers: Bootstrap,
) -> None:
    """Prove that each payment was booked once, and its notifications sent once.

    Reads the topics read_committed from offset 0, with none of the services' code. Accounts of a loaded bank file are
    compared with the bank's own last balances. With --no-wait, records in flight count as missing. An effect in doubt
    or failed is counted, but is not a fault; an effect that still waits to be tried again is.

    Exit codes: 0 all holds, 1 something does not (or there is no verdict), 2 wrong usage, 3 no payment was there
    to check.
    """
    with StderrProgress("verifying", "offsets") as progress:
        verdict = asyncio.run(
            verify_cluster(
                bootstrap_servers,
                wait=wait,
                deadline_s=deadline_s,
                identity_window=identity_window,
                file_sinks=file_sinks,
                on_progress=progress,
                on_note=lambda note: click.echo(f"verify: {note}", err=True),
            )
        )
    if as_json:
        click.echo(msgspec.json.encode(verdict))
    else:
        show(verdict)
    sys.exit(EXIT_CODES[verdict.verdict])


def show(verdict: Verdict) -> None:
    """Print a verdict as tables on stdout."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_CHARS)
    console.print(_figures(verdict))
    console.print(_invariants(verdict))
    for violation in verdict.violations:
        console.print(
            f"[red]{violation.invariant} {violation.kind}[/] {escape(violation.where)}  {escape(violation.detail)}",
            soft_wrap=True,
        )
    more = verdict.violations_total - len(verdict.violations)
    if more:
        console.print(f"and {more:,} more")
    if not verdict.at_rest:
        console.print("The pipeline was not idle: records in flight count as missing.")
    console.print(f"verdict: [{_STYLES[verdict.verdict]}]{verdict.verdict}[/]")


def _figures(verdict: Verdict) -> Table:
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(justify="right")
    for name in FIGURES:
        table.add_row(name, f"{getattr(verdict, name):,}")
    return table


def _invariants(verdict: Verdict) -> Table:
    table = Table(box=None)
    table.add_column("invariant")
    table.add_column("checked", justify="right")
    table.add_column("violations", justify="right")
    table.add_column("result")
    for name, text in INVARIANTS.items():
        result = verdict.invariants[name]
        table.add_row(
            f"{name}  {text}",
            f"{result.checked:,}",
            f"{result.violations:,}",
            f"[{_STYLES[result.result]}]{result.result}[/]",
        )
    return table
