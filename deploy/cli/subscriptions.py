"""`once subscriptions set | list | clear | secret`: subscribe accounts to notifications.

Invariant: an account's subscriptions are one record, so what is set replaces all of them at once; a destination that
the outbox could not use is refused here.
"""

import asyncio
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.cli.endpoints import bootstrap_servers_option
from deploy.cli.writing import where, write
from services.outbox.sinks.credentials import load_key
from services.outbox.sinks.webhook import derive_secret, endpoint_of
from shared.events.catalogue import REFERENCE_SUBSCRIPTIONS
from shared.events.effects import (
    EVERY_ACCOUNT,
    Channel,
    EffectKind,
    Subscription,
    Subscriptions,
    channel_of,
    decode_subscriptions,
    encode_subscriptions,
)
from shared.events.fields import is_account
from shared.events.partitions import partition_for
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.reader import read_table

_EXIT_CODES = "Exit codes: 0 written, 1 not, 2 wrong usage."
_EVERY_PARTITION = 0
_COLUMNS = ("account", "kind", "destination", "ordered")


def _account(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if "@" in value:
        raise click.BadParameter(f"{value} is a house account: only client accounts have subscriptions")
    if value != EVERY_ACCOUNT and not is_account(value):
        raise click.BadParameter(
            f"give a client account, 1 to 64 letters, digits, '.', '_' or '-', or {EVERY_ACCOUNT} for every one"
        )
    return value


def _destination(value: str) -> str:
    try:
        if channel_of(value) is Channel.WEBHOOK:
            endpoint_of(value)  # its port is read only here
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def _destinations(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_destination, values)))


def _webhook(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if channel_of(_destination(value)) is not Channel.WEBHOOK:
        raise click.BadParameter(f"{value} is not a webhook: only https: and http: destinations have a secret")
    return value


_account_argument = click.argument("account", callback=_account)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def subscriptions() -> None:
    """Subscribe accounts to notifications of their payments."""


@subscriptions.command("set", epilog=_EXIT_CODES)
@_account_argument
@click.option("--receipt", metavar="URI", multiple=True, callback=_destinations, help="Notify of each debit.")
@click.option("--notice", metavar="URI", multiple=True, callback=_destinations, help="Notify of each credit.")
@click.option("--decline-notice", metavar="URI", multiple=True, callback=_destinations, help="Notify of each decline.")
@click.option(
    "--event", metavar="URI", multiple=True, callback=_destinations, help="Notify of all three, for machines."
)
@click.option("--ordered", is_flag=True, help="In order: each only after all earlier ones of the account are done.")
@bootstrap_servers_option
@_json
def set_subscriptions(
    account: str,
    receipt: tuple[str, ...],
    notice: tuple[str, ...],
    decline_notice: tuple[str, ...],
    event: tuple[str, ...],
    bootstrap_servers: Bootstrap,
    *,
    ordered: bool,
    as_json: bool,
) -> None:
    """Subscribe ACCOUNT, or every client account where ACCOUNT is '*', to notifications of its payments.

    Replaces all subscriptions of ACCOUNT. Each option may be given several times. A URI is https://host/path,
    mailto:name@example.org or file:name. There are no notifications of payments that were posted before.
    """
    chosen = {
        EffectKind.RECEIPT: receipt,
        EffectKind.NOTICE: notice,
        EffectKind.DECLINE_NOTICE: decline_notice,
        EffectKind.EVENT: event,
    }
    found = tuple(
        Subscription(kind.value, destination, ordered)
        for kind, destinations in chosen.items()
        for destination in destinations
    )
    if not found:
        raise click.UsageError("give at least one URI; `once subscriptions clear` ends all subscriptions of an account")
    _write(bootstrap_servers, account, Subscriptions(found), as_json=as_json)


@subscriptions.command("clear", epilog=_EXIT_CODES)
@_account_argument
@bootstrap_servers_option
@_json
def clear_subscriptions(account: str, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """End all subscriptions of ACCOUNT; those of '*' still hold for it."""
    _write(bootstrap_servers, account, None, as_json=as_json)


def _write(bootstrap_servers: Bootstrap, account: str, value: Subscriptions | None, *, as_json: bool) -> None:
    partition = _EVERY_PARTITION if account == EVERY_ACCOUNT else partition_for(account)
    encoded = None if value is None else encode_subscriptions(value)
    metadata = write(bootstrap_servers, REFERENCE_SUBSCRIPTIONS, partition, account.encode(), encoded)
    kept = () if value is None else value.subscriptions
    if as_json:
        click.echo(msgspec.json.encode({"account": account, "subscriptions": kept, "at": where(metadata)}))
    else:
        click.echo(f"{account} has {len(kept)} subscriptions ({where(metadata)})")


@subscriptions.command("list")
@bootstrap_servers_option
@_json
def list_subscriptions(bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Show all subscriptions.

    Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage.
    """
    found = asyncio.run(read_table(bootstrap_servers, REFERENCE_SUBSCRIPTIONS, decode_subscriptions))
    rows = [
        (account, item.kind, item.destination, item.ordered)
        for account, group in found.items()
        for item in group.subscriptions
    ]
    if as_json:
        click.echo(msgspec.json.encode([dict(zip(_COLUMNS, row, strict=True)) for row in rows]))
        return
    if not rows:
        click.echo("none is set", err=True)
        return
    table = Table(*_COLUMNS, box=None, pad_edge=False)
    for account, kind, destination, ordered in rows:
        table.add_row(account, kind, Text(destination), "yes" if ordered else "no")
    Console().print(table)


@subscriptions.command("secret")
@click.argument("uri", callback=_webhook)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="The outbox' key, as in its setting ONCE_WEBHOOK_KEY_FILE.",
)
def show_secret(uri: str, key_file: Path) -> None:
    """Print the signing secret of the webhook URI, to give to its operator. Each webhook has a secret of its own.

    Exit codes: 0 printed, 1 not, 2 wrong usage.
    """
    try:
        click.echo(derive_secret(load_key(str(key_file), "--key-file"), uri))
    except ValueError as error:
        raise click.ClickException(str(error)) from error
