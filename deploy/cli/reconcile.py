"""`once reconcile`: the topics landed as tables, totalled, and compared to the minor unit."""

import sys
from datetime import datetime
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploy.cli.endpoints import bootstrap_servers_option
from deploy.cli.stack import default_directory
from deploy.local.jars import JarError
from deploy.reconciliation import LOG, Request, choose_cut, reconcile_cut, spark_session
from shared import settings
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import KafkaUnavailableError
from spark.job import ERRORS, EXIT_BREAKS, EXIT_CLEAN, EXIT_FAILED, SPARK_ERRORS, explained
from spark.lake import Lake
from spark.page import amount, words
from spark.report import CLEAN, LISTED_MAX, Report, encode
from spark.runs import PAGE, Runs

_FAILURES: tuple[type[Exception], ...] = (*ERRORS, KafkaUnavailableError, JarError)
_WIDTH_CHARS = 120


lake_option = click.option(
    "--lake",
    "lake_directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of tables and runs.  [default: $ONCE_LAKE or `lake` in the local stack's directory]",
)


@click.command()
@click.option(
    "--manifest",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="This cut again; its report must be the same.",
)
@click.option("--day", type=click.DateTime(["%Y-%m-%d"]), help="The last cut of this day in UTC again.")
@click.option("--full", is_flag=True, help="One run over all landed cuts, or all up to the one that is named.")
@lake_option
@click.option(
    "--listed",
    "listed_max",
    type=click.IntRange(min=0),
    default=LISTED_MAX,
    show_default=True,
    help="Breaks to list; all are counted, and all are in the lake.",
)
@click.option("--json", "as_json", is_flag=True, help="Print report.json.")
@bootstrap_servers_option
def reconcile(
    manifest: Path | None,
    day: datetime | None,
    full: bool,
    lake_directory: Path | None,
    listed_max: int,
    as_json: bool,
    bootstrap_servers: Bootstrap,
) -> None:
    """Reconcile the topics in Spark, from the last run's cut up to now.

    Lands what arrived since as tables, adds up every account, and compares each record with those that it was made from
    and those that were made from it. Records in flight at the cut are counted, but are not breaks. A run that is
    missing, or was stopped, is made first. Writes report.json and report.html into the lake, and the outcome to
    reconciliation.runs.

    Exit codes: 0 clean, 1 breaks, 2 wrong usage, or the run could not be made.
    """
    if manifest is not None and day is not None:
        raise click.UsageError("give --manifest or --day, not both")
    chosen = settings.load(settings.ReconcileSettings)
    lake = the_lake(chosen, lake_directory)
    textfile = Path(chosen.textfile) if chosen.textfile else None
    request = Request(full, manifest, day.date() if day else None, listed_max, textfile)
    try:
        with lake.lock():
            cut = choose_cut(lake, bootstrap_servers, request)
            _say("starting Spark")
            with spark_session(chosen, lake.root) as spark:
                reports = reconcile_cut(spark, lake, bootstrap_servers, cut, request, say=_say)
    except _FAILURES as error:
        click.echo(f"once: {explained(error)}", err=True)
        if isinstance(error, SPARK_ERRORS):
            click.echo(f"once: Spark's own messages are in {lake.root / LOG}", err=True)
        sys.exit(EXIT_FAILED)
    last = reports[-1]
    if as_json:
        click.echo(encode(last), nl=False)
    else:
        show(last, Runs(lake).folder(last.cut.cut_id) / PAGE)
    sys.exit(EXIT_CLEAN if all(report.verdict == CLEAN for report in reports) else EXIT_BREAKS)


def the_lake(chosen: settings.ReconcileSettings, directory: Path | None) -> Lake:
    """The lake that a command's option names, else the settings, else the local stack's."""
    return Lake(directory or (Path(chosen.lake) if chosen.lake else default_directory() / "lake"))


def show(report: Report, page: Path) -> None:
    """Print a report as tables on stdout."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_CHARS)
    console.print(_counts(report))
    console.print(_currencies(report))
    for item in report.breaks.listed:
        at = ":".join(str(part) for part in (item.topic, item.partition, item.offset) if part is not None)
        console.print(
            f"[red]{item.kind}[/] {escape(at)}  {escape(item.payment_id or '')}  {escape(item.detail)}", soft_wrap=True
        )
    more = report.breaks.total - len(report.breaks.listed)
    if more:
        console.print(f"and {more:,} more")
    console.print(f"report: {escape(str(page))}", soft_wrap=True)
    style = "bold green" if report.verdict == CLEAN else "bold red"
    console.print(f"verdict: [{style}]{report.verdict}[/]")


def _counts(report: Report) -> Table:
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("cut", report.cut.cut_id)
    for name, count in sorted(report.figures.items()):
        table.add_row(words(name), f"{count:,}")
    for name, count in sorted(report.in_flight.items()):
        table.add_row(f"in flight: {words(name)}", f"{count:,}")
    for name, count in sorted(report.breaks.by_kind.items()):
        table.add_row(f"breaks: {name}", f"{count:,}", style="red" if count else "")
    return table


def _currencies(report: Report) -> Table:
    table = Table(box=None)
    heads = ("currency", "turnover", "of clients", "in transit")
    for head in heads:
        table.add_column(head, justify="left" if head == "currency" else "right")
    for row in report.totals.currencies:
        amounts = (row.turnover_minor, row.clients_closing_minor, row.in_transit_minor)
        table.add_row(row.currency, *(amount(minor, row.currency) for minor in amounts))
    return table


def _say(text: str) -> None:
    click.echo(f"reconcile: {text}", err=True)
