"""`once accounts open | close`: an account's terms, as events of the ledger's own input."""

import click
import msgspec

from deploy.cli.endpoints import bootstrap_servers_option
from deploy.cli.writing import where, write
from shared.events.catalogue import LEDGER_TRANSFERS
from shared.events.fields import is_account
from shared.events.partitions import partition_for
from shared.events.transfers import AccountClosed, AccountOpened, encode_transfer
from shared.kafka.client.access import Bootstrap

_EXIT_CODES = "Exit codes: 0 written, 1 not, 2 wrong usage."


def _client_account(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if "@" in value:
        raise click.BadParameter(f"{value} is a house account: those are always open, without limit")
    if not is_account(value):
        raise click.BadParameter(
            "an account has 1 to 64 letters, digits, '.', '_' or '-', and begins with one of the first two"
        )
    return value


_account = click.argument("account", callback=_client_account)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group()
def accounts() -> None:
    """Open and close client accounts."""


@accounts.command("open", epilog=_EXIT_CODES)
@_account
@click.option(
    "--overdraft-minor",
    type=click.IntRange(min=0),
    help="How far below zero it may go, per currency, in minor units.  [default: 0]",
)
@click.option("--unlimited", is_flag=True, help="No limit.")
@bootstrap_servers_option
@_json
def open_account(
    account: str, overdraft_minor: int | None, bootstrap_servers: Bootstrap, *, unlimited: bool, as_json: bool
) -> None:
    """Open ACCOUNT, or give an open one new terms.

    Payments from an account that was never opened may use what it has, and no more.
    """
    if unlimited and overdraft_minor is not None:
        raise click.UsageError("give --overdraft-minor or --unlimited, not both")
    overdraft = None if unlimited else overdraft_minor or 0
    terms = "unlimited overdraft" if overdraft is None else f"overdraft {overdraft}"
    _write(bootstrap_servers, AccountOpened(account, overdraft), f"{account} opened with {terms}", as_json=as_json)


@accounts.command("close", epilog=_EXIT_CODES)
@_account
@bootstrap_servers_option
@_json
def close_account(account: str, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Close ACCOUNT: it takes no more debits, and what is credited to it goes to suspense."""
    _write(bootstrap_servers, AccountClosed(account), f"{account} closed", as_json=as_json)


def _write(bootstrap_servers: Bootstrap, event: AccountOpened | AccountClosed, text: str, *, as_json: bool) -> None:
    partition = partition_for(event.account)
    metadata = write(bootstrap_servers, LEDGER_TRANSFERS, partition, event.account.encode(), encode_transfer(event))
    if as_json:
        click.echo(msgspec.json.encode(msgspec.to_builtins(event) | {"at": where(metadata)}))
    else:
        click.echo(f"{text} ({where(metadata)})")
