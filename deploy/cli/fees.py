"""`once fees set | clear | list`: the fees that transform prices payments with.

Invariant: a key always goes to the same partition, so that compaction keeps its last value; a value that transform
could not use is refused here.
"""

import asyncio
from collections.abc import Mapping

import click
import msgspec

from deploy.cli.cluster import brokers_option, partitions_of, write
from deploy.cli.output import answer, json_option, print_rows
from shared.events.catalogue import REFERENCE_FEES
from shared.events.partitions import partition_for
from shared.events.reference import MINOR_DIGITS, Fee, Rate, decode_fee, encode_reference
from shared.kafka.client.access import Access
from shared.kafka.client.reader import read_table

EXIT_CODES = "Exit codes: 0 written, 1 not, 2 wrong usage."
_BASIS_POINTS_MAX = 10_000  # the whole amount; a higher fee is a slip
_MINOR_MAX = 2**53 - 1  # exact in every JSON reader

_minor = click.IntRange(min=0, max=_MINOR_MAX)


def currency_of(value: str) -> str:
    """Validate a currency that an argument names."""
    if value not in MINOR_DIGITS:
        raise click.BadParameter(f"{value} is not an active ISO 4217 code, such as EUR")
    return value


@click.group()
def fees() -> None:
    """Set and show what payments cost."""


@fees.command("set", epilog=EXIT_CODES)
@click.argument("currency", type=currency_of)
@click.option("--fixed-minor", type=_minor, help="On every payment.")
@click.option(
    "--basis-points", type=click.IntRange(0, _BASIS_POINTS_MAX), help="Hundredths of a per cent of the amount."
)
@click.option("--min-minor", type=_minor, help="At least this.")
@click.option("--max-minor", type=_minor, help="At most this.  [default: no bound]")
@brokers_option
@json_option("Print JSON.")
def set_fee(
    currency: str,
    fixed_minor: int | None,
    basis_points: int | None,
    min_minor: int | None,
    max_minor: int | None,
    brokers: Access,
) -> None:
    """Set the fee for payments in CURRENCY, in its minor units. What is not given is 0."""
    if fixed_minor is None and basis_points is None and min_minor is None:
        raise click.UsageError("give --fixed-minor, --basis-points or --min-minor; `once fees clear` ends a fee")
    fee = Fee(fixed_minor or 0, basis_points or 0, min_minor or 0, max_minor)
    if fee.max_minor is not None and fee.max_minor < fee.min_minor:
        raise click.UsageError("--max-minor is below --min-minor")
    put(brokers, REFERENCE_FEES, currency, fee)


@fees.command("clear", epilog=EXIT_CODES)
@click.argument("currency", type=currency_of)
@brokers_option
@json_option("Print JSON.")
def clear_fee(currency: str, brokers: Access) -> None:
    """End the fee for payments in CURRENCY."""
    put(brokers, REFERENCE_FEES, currency, None)


@fees.command("list")
@brokers_option
@json_option("Print JSON.")
def list_fees(brokers: Access) -> None:
    """Show all fees."""
    show(asyncio.run(read_table(brokers, REFERENCE_FEES, decode_fee)), "currency", Fee)


def put(brokers: Access, topic: str, key: str, value: Fee | Rate | None) -> None:
    """Write the value of a key of a reference topic, None to clear it, and print where it is."""
    encoded = None if value is None else encode_reference(value)
    partition = partition_for(key, partitions_of(brokers, topic))
    at = write(brokers, topic, partition, key.encode(), encoded)
    text = f"{key} {'cleared' if encoded is None else encoded.decode()} ({at})"
    answer({"key": key, "value": value, "at": at}, text)


def show(found: Mapping[str, Fee | Rate], key: str, kind: type[Fee | Rate]) -> None:
    """Print all values of a reference topic, each with its key in a column of this name."""
    rows = [{key: name} | msgspec.to_builtins(value) for name, value in found.items()]
    columns = kind.__struct_fields__
    answer(rows, lambda: print_rows(rows, (key, *columns), right=columns, none="none is set"))
