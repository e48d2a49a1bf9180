"""`once subscriptions set | list | clear | secret`: subscribe accounts to notifications.

Invariant: an account's subscriptions are one record, so what is set replaces all of them at once; a destination that
the outbox could not use is refused here.
"""

import asyncio
from pathlib import Path

import click
import msgspec

from deploy.cli.cluster import brokers_option, partitions_of, write
from deploy.cli.output import answer, failing_on, json_option, print_rows
from services.outbox.lanes import endpoint_of
from services.outbox.sinks.credentials import load_key
from services.outbox.sinks.email import recipient_of
from services.outbox.sinks.webhook import FORMATS, derive_secret
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
from shared.events.fields import is_client_account
from shared.events.partitions import partition_for
from shared.kafka.client.access import Access
from shared.kafka.client.reader import read_table

_EXIT_CODES = "Exit codes: 0 written, 1 not, 2 wrong usage."
_EVERY_PARTITION = 0


def _account(value: str) -> str:
    if "@" in value:
        raise click.BadParameter(f"{value} is a house account: only client accounts have subscriptions")
    if value != EVERY_ACCOUNT and not is_client_account(value):
        raise click.BadParameter(
            f"give a client account, 1 to 64 letters, digits, '.', '_' or '-', or {EVERY_ACCOUNT} for every one"
        )
    return value


def _destination(value: str) -> str:
    try:
        channel = channel_of(value)
        if channel is Channel.WEBHOOK:
            endpoint_of(value)  # its port is read only here
        elif channel is Channel.EMAIL:
            recipient_of(value)  # likewise its domain
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


def _webhook(value: str) -> str:
    if channel_of(_destination(value)) is not Channel.WEBHOOK:
        raise click.BadParameter(f"{value} is not a webhook: only https: and http: destinations have a secret")
    return value


_account_argument = click.argument("account", type=_account)


@click.group()
def subscriptions() -> None:
    """Subscribe accounts to notifications of their payments."""


@subscriptions.command("set", epilog=_EXIT_CODES)
@_account_argument
@click.option("--receipt", metavar="URI", multiple=True, type=_destination, help="Notify of each debit.")
@click.option("--notice", metavar="URI", multiple=True, type=_destination, help="Notify of each credit.")
@click.option("--decline-notice", metavar="URI", multiple=True, type=_destination, help="Notify of each decline.")
@click.option("--event", metavar="URI", multiple=True, type=_destination, help="Notify of all three, for machines.")
@click.option("--ordered", is_flag=True, help="In order: each only after all earlier ones of the account are done.")
@brokers_option
@json_option("Print JSON.")
def set_subscriptions(account: str, brokers: Access, *, ordered: bool, **destinations: tuple[str, ...]) -> None:
    """Subscribe ACCOUNT, or every client account where ACCOUNT is '*', to notifications of its payments.

    Replaces all subscriptions of ACCOUNT. Each option may be given several times. A URI is https://host/path,
    mailto:name@example.org or file:name. There are no notifications of payments that were posted before.
    """
    found = tuple(
        Subscription(kind.value, destination, ordered)
        for kind in EffectKind
        for destination in dict.fromkeys(destinations[kind.value])
    )
    if not found:
        raise click.UsageError("give at least one URI; `once subscriptions clear` ends all subscriptions of an account")
    _write(brokers, account, Subscriptions(found))


@subscriptions.command("clear", epilog=_EXIT_CODES)
@_account_argument
@brokers_option
@json_option("Print JSON.")
def clear_subscriptions(account: str, brokers: Access) -> None:
    """End all subscriptions of ACCOUNT; those of '*' still hold for it."""
    _write(brokers, account, None)


def _write(brokers: Access, account: str, value: Subscriptions | None) -> None:
    partition = _EVERY_PARTITION
    if account != EVERY_ACCOUNT:
        partition = partition_for(account, partitions_of(brokers, REFERENCE_SUBSCRIPTIONS))
    encoded = None if value is None else encode_subscriptions(value)
    at = write(brokers, REFERENCE_SUBSCRIPTIONS, partition, account.encode(), encoded)
    kept = () if value is None else value.subscriptions
    found = {"account": account, "subscriptions": kept, "at": at}
    answer(found, f"{account} has {len(kept)} subscriptions ({at})")


@subscriptions.command("list")
@brokers_option
@json_option("Print JSON.")
def list_subscriptions(brokers: Access) -> None:
    """Show all subscriptions.

    Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage.
    """
    found = asyncio.run(read_table(brokers, REFERENCE_SUBSCRIPTIONS, decode_subscriptions))
    rows = [
        {"account": account} | msgspec.structs.asdict(item)
        for account, group in found.items()
        for item in group.subscriptions
    ]
    columns = ("account", *Subscription.__struct_fields__)
    answer(rows, lambda: print_rows(rows, columns, none="none is set"))


@subscriptions.command("secret")
@click.argument("uri", type=_webhook)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="The outbox' key, as in its setting ONCE_WEBHOOK_KEY_FILE.",
)
@click.option(
    "--format",
    "its_format",
    type=click.Choice(list(FORMATS)),
    default="standard",
    show_default=True,
    help="As in the outbox' setting ONCE_WEBHOOK_FORMAT.",
)
def show_secret(uri: str, key_file: Path, its_format: str) -> None:
    """Print the signing secret of the webhook URI, to give to its operator. Each webhook has a secret of its own.

    Exit codes: 0 printed, 1 not, 2 wrong usage.
    """
    with failing_on(ValueError):
        secret = derive_secret(load_key(str(key_file), "--key-file"), uri)
    click.echo(FORMATS[its_format].secret_text(secret))
