"""`once repair`: write the records that `once verify` misses."""

import asyncio
import getpass
import socket
import sys

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploy.cli.endpoints import bootstrap_servers_option
from deploy.cli.progress import StderrProgress
from deploy.repairs.run import Repair, Report
from shared.kafka.client.access import Bootstrap

_SHOWN_MAX = 100
_WIDTH_CHARS = 120


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@click.option("--as", "by", help="Who repairs, for the record of it.  [default: user@host]")
@click.option(
    "--timeout",
    "deadline_s",
    type=click.FloatRange(min=0),
    default=120.0,
    show_default=True,
    help="Seconds to wait until the pipeline has drained, before and after.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@bootstrap_servers_option
def repair(*, dry_run: bool, by: str | None, deadline_s: float, as_json: bool, bootstrap_servers: Bootstrap) -> None:
    """Write the records that are missing, each exactly once.

    Services complete a transaction that the brokers tore by themselves. This is for what no service can complete any
    more: `once verify` names input records below the committed offset that lack outputs. They go through the service's
    own code again, and what does not exist of their outputs is written, under the service's transactional.id. Its owner
    is fenced and must be started again, as every supervisor does. Run it with the services' own settings.

    Duplicates and altered records are listed and left as they are.

    Exit codes: 0 nothing was missing, or all of it was written; 1 something is left, or was not written because of
    --dry-run; 2 wrong usage.
    """
    who = by or f"{getpass.getuser()}@{socket.gethostname()}"
    with StderrProgress("verifying", "offsets") as progress:
        run = Repair(
            bootstrap_servers,
            who,
            dry_run=dry_run,
            deadline_s=deadline_s,
            on_progress=progress,
            on_note=lambda note: click.echo(f"repair: {note}", err=True),
        )
        report = asyncio.run(run.run())
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        _show(report)
    sys.exit(0 if report.clean else 1)


def _show(report: Report) -> None:
    """Print a report on stdout."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_CHARS)
    if report.scopes:
        console.print(_table(report))
    for reason in report.failed:
        console.print(f"[red]not repaired[/] {escape(reason)}", soft_wrap=True)
    for violation in report.left[:_SHOWN_MAX]:
        console.print(
            f"[red]left: {violation.kind}[/] {escape(violation.where)}  {escape(violation.detail)}", soft_wrap=True
        )
    if len(report.left) > _SHOWN_MAX:
        console.print(f"and {len(report.left) - _SHOWN_MAX:,} more")
    records = sum(sum(scope.records.values()) for scope in report.scopes)
    if not report.scopes:
        console.print("nothing is missing" if report.clean else "nothing was written")
    elif report.dry_run:
        console.print(f"{records:,} records would be written")
    else:
        console.print(f"{records:,} records written as {report.repair_id}, by {escape(report.by)}")


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("service", "partition", "inputs", "missing records", "state"):
        table.add_column(column)
    for scope in report.scopes:
        records = ", ".join(f"{count:,} {topic}" for topic, count in scope.records.items())
        shown = ", ".join(scope.inputs[:3]) + (f" and {len(scope.inputs) - 3:,} more" if len(scope.inputs) > 3 else "")
        table.add_row(scope.service, str(scope.partition), shown, records, f"{scope.state_records:,}")
    return table
