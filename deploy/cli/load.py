"""`once load FILE`: payments from a file into payments.raw."""

import asyncio
from pathlib import Path

import click

from deploy.cli.cluster import brokers_option
from deploy.cli.output import answer, failing_on, json_option, note, progress
from deploy.load.files import Format, LoadError
from deploy.load.loader import Loaded, load_file
from shared.kafka.client.access import Access

_UNEXPLAINED_SHOWN = 5


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--format",
    "file_format",
    type=click.Choice([item.value for item in Format]),
    help="Of the file.  [default: detected from its first line]",
)
@click.option(
    "--rate", "records_per_s", type=click.FloatRange(min=0, min_open=True), help="Records per second at most."
)
@json_option()
@brokers_option
def load(file: Path, file_format: str | None, records_per_s: float | None, brokers: Access) -> None:
    """Load payments from FILE into payments.raw, plain or gzip.

    JSON lines go in as they are, byte by byte. Transactions of the PKDD'99 data set are mapped to payments; their
    client accounts are opened first, with unlimited overdraft, and the bank's own last balances go to
    reference.balances for `once verify`. Payments loaded again are dropped as repeats while ingest remembers them.

    Exit codes: 0 all loaded, 1 not, 2 wrong usage.
    """
    chosen = Format(file_format) if file_format else None
    with failing_on(LoadError), progress(f"loading {file.name}", "records") as report:
        loaded = asyncio.run(
            load_file(brokers, file, file_format=chosen, records_per_s=records_per_s, on_progress=report)
        )
    _warn(loaded)
    answer(loaded, _summary(loaded))


def _warn(loaded: Loaded) -> None:
    accounts = loaded.accounts_unexplained
    if accounts:
        shown = ", ".join(accounts[:_UNEXPLAINED_SHOWN]) + (", ..." if len(accounts) > _UNEXPLAINED_SHOWN else "")
        note(
            f"warning: the balances of {len(accounts)} accounts form no chain ({shown}): "
            "they get no new expected balance"
        )
    if loaded.unmapped:
        note(f"warning: {loaded.unmapped} lines are not transactions; they were loaded unchanged, and are refused")


def _summary(loaded: Loaded) -> str:
    rate = loaded.records / loaded.seconds if loaded.seconds else 0.0
    line = f"{loaded.file}: {loaded.records:,} records in {loaded.seconds:.1f} s ({rate:,.0f}/s)"
    if loaded.accounts_opened:
        line += f", {loaded.accounts_opened:,} accounts opened, {loaded.expected_balances:,} expected balances"
    if loaded.empty_lines:
        line += f", {loaded.empty_lines:,} empty lines skipped"
    return line
