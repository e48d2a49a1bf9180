"""`once load FILE`: payments from a file into payments.raw."""

import asyncio
from pathlib import Path

import click

from deploy.cli.cluster import brokers_option, client_name, default_directory
from deploy.cli.output import answer, failing_on, json_option, note, progress
from deploy.clients.local import LOCAL, submitted_by
from deploy.load.files import Format, LoadError
from deploy.load.loader import Loaded, load_file
from deploy.local.supervisor import state
from shared.kafka.client.access import Access

_UNEXPLAINED_SHOWN = 5


def _local_key(client: str, brokers: Access) -> Path | None:
    """The key of the local stack's own client, where the brokers are its."""
    stack = state.running(default_directory())
    if client != LOCAL or stack is None or stack.bootstrap_servers != brokers.bootstrap_servers:
        return None
    return Path(stack.local_key_file) if stack.local_key_file else None


def _regular(_context: click.Context, _parameter: click.Parameter, value: Path) -> Path:
    if not value.is_file():
        raise click.BadParameter(f"{value} is a pipe or a device, and is read more than once: give a file")
    return value


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False), callback=_regular)
@click.option(
    "--format",
    "file_format",
    type=click.Choice([item.value for item in Format]),
    help="Of the file.  [default: detected from its first line]",
)
@click.option(
    "--rate", "records_per_s", type=click.FloatRange(min=0, min_open=True), help="Records per second at most."
)
@click.option("--client", type=client_name, default=LOCAL, show_default=True, help="Who submits the payments.")
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The client's key, whose id is recorded with each payment.  [default: the local stack's]",
)
@json_option()
@brokers_option
def load(
    file: Path,
    file_format: str | None,
    records_per_s: float | None,
    client: str,
    key_file: Path | None,
    brokers: Access,
) -> None:
    """Load payments from FILE into payments.raw, plain or gzip.

    JSON lines go in as they are, byte by byte. Transactions of the PKDD'99 data set are mapped to payments; their
    client accounts are opened first for the client that loads, with unlimited overdraft, and the bank's own last
    balances go to reference.balances for `once verify`. Payments loaded again are dropped as repeats while ingest
    remembers them.

    The ledger declines payments whose debtor belongs to another client than the one that loads, and those of a house
    account, unless the client is `local` or `operator`. --client operator loads payments of accounts that have no other
    owner.

    Exit codes: 0 all loaded, 1 not, 2 wrong usage.
    """
    chosen = Format(file_format) if file_format else None
    with failing_on(LoadError), progress(f"loading {file.name}", "records") as report:
        loaded = asyncio.run(
            load_file(
                brokers,
                file,
                submitted_by(client, key_file or _local_key(client, brokers)),
                file_format=chosen,
                records_per_s=records_per_s,
                on_progress=report,
            )
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
