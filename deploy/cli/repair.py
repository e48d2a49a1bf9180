"""`once repair`: write the records that `once verify` misses."""

import asyncio
import sys
from collections.abc import Iterator

import click
from rich.markup import escape

from deploy.cli.cluster import brokers_option, timeout_option
from deploy.cli.output import answer, console, json_option, note, operator, print_findings, progress, table
from deploy.repairs.run import Repair, Report
from shared.kafka.client.access import Access

_SHOWN_MAX = 100
_WIDTH_CHARS = 120


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@click.option("--as", "by", help="Who repairs, for the record of it.  [default: user@host]")
@timeout_option("Seconds to wait until the pipeline has drained, before and after.", 120.0)
@json_option()
@brokers_option
def repair(*, dry_run: bool, by: str | None, timeout_s: float, brokers: Access) -> None:
    """Write the records that are missing, each exactly once.

    Services complete a transaction that the brokers tore by themselves. This is for what no service can complete any
    more: `once verify` names input records below the committed offset that lack outputs. They go through the service's
    own code again, and what does not exist of their outputs is written, under the transactional.id of the instance that
    owns the partition. That instance is fenced and rejoins; fenced again within a minute, it ends and must be started
    again, as every supervisor does. Run it with the services' own settings.

    Duplicates and altered records are listed and left as they are.

    Exit codes: 0 nothing was missing, or all of it was written; 1 something is left, or was not written because of
    --dry-run; 2 wrong usage.
    """
    with progress("verifying", "offsets") as on_progress:
        run = Repair(
            brokers,
            by or operator(),
            dry_run=dry_run,
            deadline_s=timeout_s,
            on_progress=on_progress,
            on_note=lambda text: note(f"repair: {text}"),
        )
        report = asyncio.run(run.run())
    answer(report, lambda: _show(report))
    sys.exit(0 if report.clean else 1)


def _show(report: Report) -> None:
    screen = console(_WIDTH_CHARS)
    if report.scopes:
        columns = ("service", "partition", "inputs", "missing records", "state")
        screen.print(table(columns, _rows(report)))
    print_findings(screen, (("not repaired", reason) for reason in report.failed), len(report.failed))
    left = ((f"left: {one.kind}", one.where, one.detail) for one in report.left[:_SHOWN_MAX])
    print_findings(screen, left, len(report.left))
    records = sum(sum(scope.records.values()) for scope in report.scopes)
    if not report.scopes:
        screen.print("nothing is missing" if report.clean else "nothing was written")
    elif report.dry_run:
        screen.print(f"{records:,} records would be written")
    else:
        screen.print(f"{records:,} records written as {report.repair_id}, by {escape(report.by)}")


def _rows(report: Report) -> Iterator[tuple[str, ...]]:
    for scope in report.scopes:
        records = ", ".join(f"{count:,} {topic}" for topic, count in scope.records.items())
        shown = ", ".join(scope.inputs[:3]) + (f" and {len(scope.inputs) - 3:,} more" if len(scope.inputs) > 3 else "")
        yield scope.service, str(scope.partition), shown, records, f"{scope.state_records:,}"
