"""`once reconcile`: the topics landed as tables, totalled, and compared to the minor unit."""

import dataclasses
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path

import click
import msgspec
from pyspark.sql import SparkSession
from rich.markup import escape
from rich.table import Table

from deploy.cli.cluster import default_directory, optional_brokers_option, require
from deploy.cli.output import as_json, console, json_option, note, nothing, print_findings, table
from deploy.local.jars import JarError
from deploy.reconciliation import LOG, Request, cuts_due, reconcile_cut, settings_of, spark_session
from shared import settings
from shared.kafka.client.access import Access
from shared.kafka.client.errors import KafkaUnavailableError
from spark.audit import audit
from spark.evidence import record_verified
from spark.job import ERRORS, EXIT_CLEAN, EXIT_FAILED, SPARK_ERRORS, exit_code, explained, unfinished
from spark.lake import Lake
from spark.manifest import Manifest
from spark.nightly import Work
from spark.page import amount, summary_lines, words
from spark.register import Entry
from spark.report import BREAKS, LISTED_MAX, Break, Report, encode
from spark.runs import PAGE, Runs

_FAILURES: tuple[type[Exception], ...] = (*ERRORS, KafkaUnavailableError, JarError, click.ClickException)
_WIDTH_CHARS = 120
_DAYS_MAX = 14


def _lake(_context: click.Context, _parameter: click.Parameter, directory: Path | None) -> Lake:
    chosen = settings.load(settings.ReconcileSettings).lake
    return Lake(directory or (Path(chosen) if chosen else default_directory() / "lake"))


lake_option = click.option(
    "--lake",
    type=click.Path(path_type=Path, file_okay=False),
    callback=_lake,
    help="Folder of tables and runs.  [default: $ONCE_LAKE or `lake` in the local stack's directory]",
)
"""The option of every command that reads landed tables; the command gets a `Lake`."""


@click.command()
@click.option(
    "--manifest",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="This cut again; its report must be the same.",
)
@click.option("--day", type=click.DateTime(["%Y-%m-%d"]), help="The last cut of this day in UTC again.")
@click.option("--full", is_flag=True, help="One run over all landed cuts, or all up to the one that is named.")
@click.option(
    "--max-runs",
    "runs_max",
    type=click.IntRange(min=1),
    help="Make at most so many missing runs, the oldest first, and no new cut before they are done.",
)
@click.option("--replace", is_flag=True, help="Make the damaged or lost run of that cut again; a damaged one is kept.")
@click.option("--audit", "auditing", is_flag=True, help="Verify every file of the lake and the chain of its digests.")
@lake_option
@click.option(
    "--listed",
    "listed_max",
    type=click.IntRange(min=0),
    default=LISTED_MAX,
    show_default=True,
    help="Breaks to list; all are counted, and all are in the lake.",
)
@json_option("Print report.json; with --audit, the audit.")
@optional_brokers_option
def reconcile(
    manifest: Path | None,
    day: datetime | None,
    full: bool,
    runs_max: int | None,
    replace: bool,
    auditing: bool,
    lake: Lake,
    listed_max: int,
    brokers: Access | None,
) -> None:
    """Reconcile the topics in Spark, from the last run's cut up to now.

    Lands the new records as tables, adds up every account, and compares each record with its source and with its child
    records. Records in flight at the cut are counted, and are not breaks. A run that is missing, or was stopped, is
    made first. Writes report.json and report.html into the lake, and the outcome to reconciliation.runs.

    A break stays open until the records no longer show it: see `once breaks`.

    With --audit, it makes no run: it compares every landed file and every run with its digests, and these with those
    that the next cut names. A run does that once a week, and verifies what is new and carried each time.

    With --max-runs, a backfill over many missing runs is done in parts: run the command again until it does not end
    with 75. With --full, it makes one run over all landed cuts instead; missing runs stay missing, and the next run
    makes them.

    Exit codes: 0 clean, or each open break is explained; 1 breaks; 2 wrong usage, the run could not be made, or an
    audit found a fault; 3 nothing has landed that an audit could verify; 75 stopped by --max-runs, and runs are left.
    """
    if manifest is not None and day is not None:
        raise click.UsageError("give --manifest or --day, not both")
    if replace and manifest is None and day is None:
        raise click.UsageError("name the cut of a damaged or lost run with --manifest or --day")
    if full and runs_max is not None:
        raise click.UsageError("a full run is one run over all cuts: give --full or --max-runs, not both")
    if auditing:
        if manifest is not None or day is not None or full or runs_max is not None:
            raise click.UsageError("an audit is of the whole lake: give --audit without a cut")
        sys.exit(_audit(lake))
    chosen = settings.load(settings.ReconcileSettings)
    textfile = Path(chosen.textfile) if chosen.textfile else None
    request = Request(full, manifest, day.date() if day else None, listed_max, textfile, replace, runs_max)
    try:
        access = require(brokers)
        with lake.lock():
            cuts = cuts_due(lake, access, request, settings_of(chosen), say=_say)
            first = next(cuts)
            _say("starting Spark")
            with spark_session(chosen, lake.root) as spark:
                reports, left = reconcile_cuts(spark, lake, access, chain([first], cuts), request)
    except _FAILURES as error:
        note(f"once: {explained(error)}")
        if isinstance(error, SPARK_ERRORS):
            note(f"once: Spark's own messages are in {lake.root / LOG}")
        sys.exit(EXIT_FAILED)
    last = reports[-1]
    if as_json():
        click.echo(encode(last), nl=False)
    else:
        show(last, Runs(lake).folder(last.cut.cut_id) / PAGE)
    if left:
        note(f"once: {unfinished(len(reports), left)}")
    sys.exit(exit_code(last.verdict, left))


def reconcile_cuts(spark: SparkSession, lake: Lake, access: Access, cuts: Iterator[Manifest], request: Request) -> Work:
    """Make the runs over cuts, as many as the request allows."""
    before = [*lake.cuts(), lake.pending()]
    made: list[Report] = []
    for cut in cuts:
        allowed = None if request.runs_max is None else request.runs_max - len(made)
        reports, left = reconcile_cut(
            spark, lake, access, cut, dataclasses.replace(request, runs_max=allowed), say=_say
        )
        made += reports
        if left or allowed == len(reports):
            # Where a new cut is asked for, and was not taken, its run is left as well
            return Work(made, left or int(request.is_of_a_new_cut and cut in before))
    return Work(made, 0)


def _audit(lake: Lake) -> int:
    """Audit a lake and print what was verified; return the exit code.

    Raises SystemExit if nothing has landed in it.
    """
    if not any(lake.root.glob("cuts/*/landed.json")):
        nothing(f"nothing has landed in {lake.root}: name the lake by --lake or ONCE_LAKE")
    try:
        with lake.lock():
            found = audit(lake)
            if not found.faults:
                record_verified(lake, time.time_ns() // 1_000_000)
    except ERRORS as error:
        note(f"once: {explained(error)}")
        return EXIT_FAILED
    if as_json():
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
        return EXIT_FAILED if found.faults else EXIT_CLEAN
    screen = console(_WIDTH_CHARS)
    rows = [("cuts", found.cuts), ("runs", found.runs), ("files", found.files), ("bytes", found.size_bytes)]
    counts = ((name, f"{count:,}") for name, count in rows)
    screen.print(table(("name", "count"), counts, right=("count",), show_header=False, pad_edge=True))
    for name in found.replaced:
        screen.print(f"replaced: {escape(name)}", soft_wrap=True)
    for fault in found.faults:
        screen.print(f"[bold red]fault[/]: {escape(fault)}", soft_wrap=True)
    screen.print(f"audit: {f'{len(found.faults)} faults' if found.faults else 'no fault'}")
    return EXIT_FAILED if found.faults else EXIT_CLEAN


def show(report: Report, page: Path) -> None:
    """Print a report: counts, totals, breaks, and the answers of the page with the verdict last."""
    screen = console(_WIDTH_CHARS)
    screen.print(_counts(report))
    screen.print(_currencies(report))
    if report.totals.business_days:
        screen.print(_days(report))
    print_findings(screen, map(_finding, report.breaks.listed), report.breaks.total)
    screen.print(f"report: {escape(str(page))}", soft_wrap=True)
    for line in summary_lines(report):
        screen.print(escape(line), soft_wrap=True)
    style = "bold red" if report.verdict == BREAKS else "bold green"
    screen.print(f"verdict: [{style}]{report.verdict}[/]")


def place(item: Break | Entry) -> str:
    """Return the coordinates of a break's record, as topic:partition:offset; empty where it has none."""
    return ":".join(str(part) for part in (item.topic, item.partition, item.offset) if part is not None)


def _finding(item: Break) -> tuple[str, ...]:
    return item.kind, place(item), item.payment_id or "", item.detail


def _counts(report: Report) -> Table:
    made = table(("name", "count"), right=("count",), show_header=False, pad_edge=True)
    made.add_row("cut", report.cut.cut_id)
    for name, count in sorted(report.figures.items()):
        made.add_row(words(name), f"{count:,}")
    for name, count in sorted(report.in_flight.items()):
        made.add_row(f"in flight: {words(name)}", f"{count:,}")
    for name, count in sorted(report.breaks.by_kind.items()):
        made.add_row(f"breaks: {name}", f"{count:,}", style="red" if count else "")
    return made


def _currencies(report: Report) -> Table:
    amounts = ("turnover", "of clients", "in transit")
    rows = (
        (row.currency, *(amount(minor, row.currency) for minor in minors))
        for row in report.totals.currencies
        for minors in [(row.turnover_minor, row.clients_closing_minor, row.in_transit_minor)]
    )
    return table(("currency", *amounts), rows, right=amounts, pad_edge=True)


def _days(report: Report) -> Table:
    """Return the last business days; the page has all, and the value dates."""
    days = report.totals.business_days[-_DAYS_MAX:]
    amounts = ("turnover", "fees", "debits", "credits")
    rows = (
        (day.day, day.currency, f"{day.postings:,}", *(amount(minor, day.currency) for minor in minors))
        for day in days
        for minors in [(day.turnover_minor, day.fees_minor, day.debits_minor, day.credits_minor)]
    )
    head = f"day ({report.totals.time_zone})"
    return table((head, "currency", "postings", *amounts), rows, right=("postings", *amounts), pad_edge=True)


def _say(text: str) -> None:
    note(f"reconcile: {text}")
