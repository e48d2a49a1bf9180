"""`once accounts open | close`: an account's terms and owner, as events of the ledger's own input."""

import asyncio

import click
import msgspec

from deploy.cli.cluster import brokers_option, client_name, partitions_of, write
from deploy.cli.output import answer, json_option
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_ACCOUNTS, LEDGER_TRANSFERS
from shared.events.clients import OWNER_UNNAMED
from shared.events.fields import is_client_account
from shared.events.partitions import partition_for
from shared.events.payments import MAX_AMOUNT_MINOR
from shared.events.postings import decode_terms
from shared.events.transfers import AccountClosed, AccountOpened, encode_transfer
from shared.kafka.client.access import Access
from shared.kafka.client.reader import read_partition

_EXIT_CODES = "Exit codes: 0 written, 1 not, 2 wrong usage."


def _client_account(value: str) -> str:
    if "@" in value:
        raise click.BadParameter(f"{value} is a house account: those are always open, without limit")
    if not is_client_account(value):
        raise click.BadParameter(
            "an account has 1 to 64 letters, digits, '.', '_' or '-', and begins with one of the first two"
        )
    return value


_account = click.argument("account", type=_client_account)


@click.group()
def accounts() -> None:
    """Open and close client accounts."""


@accounts.command("open", epilog=_EXIT_CODES)
@_account
@click.option(
    "--overdraft-minor",
    type=click.IntRange(min=0, max=MAX_AMOUNT_MINOR),
    help="How far below zero it may go, per currency, in minor units.  [default: 0]",
)
@click.option("--unlimited", is_flag=True, help="No limit.")
@click.option(
    "--owner",
    type=client_name,
    metavar="CLIENT",
    help="The client whose keys may debit it.  [default: its present owner; operator for a new account]",
)
@click.option(
    "--expected-version",
    type=click.IntRange(min=0, max=MAX_AMOUNT_MINOR),
    help="Only if the account still has this version; the ledger declines it otherwise. 0 is an account that was "
    "never opened.",
)
@brokers_option
@json_option()
def open_account(
    account: str,
    overdraft_minor: int | None,
    owner: str | None,
    expected_version: int | None,
    brokers: Access,
    *,
    unlimited: bool,
) -> None:
    """Open ACCOUNT, or give an open one new terms or another owner.

    Payments from an account that was never opened may use what it has, and no more.
    """
    if unlimited and overdraft_minor is not None:
        raise click.UsageError("give --overdraft-minor or --unlimited, not both")
    overdraft = None if unlimited else overdraft_minor or 0
    terms = "unlimited overdraft" if overdraft is None else f"overdraft {overdraft}"
    client = owner or _owner(brokers, account)
    event = AccountOpened(account, overdraft, client, expected_version=expected_version)
    _write(brokers, event, f"{account} of {client} opened with {terms}", {"owner": client})


@accounts.command("close", epilog=_EXIT_CODES)
@_account
@brokers_option
@json_option()
def close_account(account: str, brokers: Access) -> None:
    """Close ACCOUNT: it takes no more debits, and what is credited to it goes to suspense."""
    _write(brokers, AccountClosed(account), f"{account} closed", {})


def _owner(brokers: Access, account: str) -> str:
    """Return the account's owner as ledger.accounts has it."""
    owner, key = OWNER_UNNAMED, account.encode()

    def take(records: list[Record]) -> None:
        nonlocal owner
        for record in records:
            if record.key == key and record.value is not None:
                owner = decode_terms(record.value).owner

    partition = partition_for(account, partitions_of(brokers, LEDGER_ACCOUNTS))
    asyncio.run(read_partition(brokers, LEDGER_ACCOUNTS, partition, take))
    return owner


def _write(brokers: Access, event: AccountOpened | AccountClosed, text: str, shown: dict[str, str]) -> None:
    partition = partition_for(event.account, partitions_of(brokers, LEDGER_TRANSFERS))
    at = write(brokers, LEDGER_TRANSFERS, partition, event.account.encode(), encode_transfer(event))
    answer(msgspec.to_builtins(event) | shown | {"at": at}, f"{text} ({at})")
