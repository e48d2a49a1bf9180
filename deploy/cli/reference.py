"""`once fees` and `once rates`: the reference data that transform prices payments with.

Invariant: a key always goes to the same partition, so that compaction keeps its last value; a value that transform
could not use is refused here.
"""

import asyncio
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table

from deploy.cli.endpoints import bootstrap_servers_option
from deploy.cli.writing import where, write
from shared.events.catalogue import REFERENCE_FEES, REFERENCE_RATES
from shared.events.partitions import partition_for
from shared.events.reference import MINOR_DIGITS, RATE_PATTERN, Fee, Rate, decode_fee, decode_rate, encode_reference
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.reader import read_table

_EXIT_CODES = "Exit codes: 0 written, 1 not, 2 wrong usage."
_BASIS_POINTS_MAX = 10_000  # the whole amount; a higher fee is a slip
_MINOR_MAX = 2**53 - 1  # exact in every JSON reader

V = TypeVar("V", Fee, Rate)


def _currency(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if value not in MINOR_DIGITS:
        raise click.BadParameter(f"{value} is not an active ISO 4217 code, such as EUR")
    return value


def _rate(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if RATE_PATTERN.fullmatch(value) is None or not value.strip("0."):
        raise click.BadParameter(
            f"{value} is not a rate: give a decimal above 0 such as 1.0850, at most 12 digits on each side"
        )
    return value


_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_minor = click.IntRange(min=0, max=_MINOR_MAX)


@click.group()
def fees() -> None:
    """Set and show what payments cost."""


@fees.command("set", epilog=_EXIT_CODES)
@click.argument("currency", callback=_currency)
@click.option("--fixed-minor", type=_minor, help="On every payment.")
@click.option(
    "--basis-points", type=click.IntRange(0, _BASIS_POINTS_MAX), help="Hundredths of a per cent of the amount."
)
@click.option("--min-minor", type=_minor, help="At least this.")
@click.option("--max-minor", type=_minor, help="At most this.  [default: no bound]")
@bootstrap_servers_option
@_json
def set_fee(
    currency: str,
    fixed_minor: int | None,
    basis_points: int | None,
    min_minor: int | None,
    max_minor: int | None,
    bootstrap_servers: Bootstrap,
    *,
    as_json: bool,
) -> None:
    """Set the fee for payments in CURRENCY, in its minor units. What is not given is 0."""
    if fixed_minor is None and basis_points is None and min_minor is None:
        raise click.UsageError("give --fixed-minor, --basis-points or --min-minor; `once fees clear` ends a fee")
    fee = Fee(fixed_minor or 0, basis_points or 0, min_minor or 0, max_minor)
    if fee.max_minor is not None and fee.max_minor < fee.min_minor:
        raise click.UsageError("--max-minor is below --min-minor")
    _set(bootstrap_servers, REFERENCE_FEES, currency, fee, as_json=as_json)


@fees.command("clear", epilog=_EXIT_CODES)
@click.argument("currency", callback=_currency)
@bootstrap_servers_option
@_json
def clear_fee(currency: str, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """End the fee for payments in CURRENCY."""
    _set(bootstrap_servers, REFERENCE_FEES, currency, None, as_json=as_json)


@fees.command("list")
@bootstrap_servers_option
@_json
def list_fees(bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Show all fees."""
    found = asyncio.run(read_table(bootstrap_servers, REFERENCE_FEES, decode_fee))
    _show(found, ("currency", "fixed_minor", "basis_points", "min_minor", "max_minor"), as_json=as_json)


@click.group()
def rates() -> None:
    """Set and show conversion rates."""


@rates.command("set", epilog=_EXIT_CODES)
@click.argument("from_currency", metavar="FROM", callback=_currency)
@click.argument("to_currency", metavar="TO", callback=_currency)
@click.argument("rate", callback=_rate)
@bootstrap_servers_option
@_json
def set_rate(from_currency: str, to_currency: str, rate: str, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Set how much of TO one unit of FROM buys. The way back is a rate of its own."""
    _set(bootstrap_servers, REFERENCE_RATES, _pair(from_currency, to_currency), Rate(rate), as_json=as_json)


@rates.command("clear", epilog=_EXIT_CODES)
@click.argument("from_currency", metavar="FROM", callback=_currency)
@click.argument("to_currency", metavar="TO", callback=_currency)
@bootstrap_servers_option
@_json
def clear_rate(from_currency: str, to_currency: str, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """End a rate: payments that need it are declined from then on."""
    _set(bootstrap_servers, REFERENCE_RATES, _pair(from_currency, to_currency), None, as_json=as_json)


@rates.command("list")
@bootstrap_servers_option
@_json
def list_rates(bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Show all rates."""
    _show(asyncio.run(read_table(bootstrap_servers, REFERENCE_RATES, decode_rate)), ("pair", "rate"), as_json=as_json)


def _pair(from_currency: str, to_currency: str) -> str:
    if from_currency == to_currency:
        raise click.UsageError("FROM and TO are the same currency")
    return f"{from_currency}/{to_currency}"


def _set(bootstrap_servers: Bootstrap, topic: str, key: str, value: Fee | Rate | None, *, as_json: bool) -> None:
    encoded = None if value is None else encode_reference(value)
    metadata = write(bootstrap_servers, topic, partition_for(key), key.encode(), encoded)
    if as_json:
        click.echo(msgspec.json.encode({"key": key, "value": value, "at": where(metadata)}))
    else:
        click.echo(f"{key} {'cleared' if encoded is None else encoded.decode()} ({where(metadata)})")


def _show(found: dict[str, V], columns: tuple[str, ...], *, as_json: bool) -> None:
    rows: list[dict[str, Any]] = [{columns[0]: key} | msgspec.to_builtins(value) for key, value in found.items()]
    if as_json:
        click.echo(msgspec.json.encode(rows))
        return
    if not rows:
        click.echo("none is set", err=True)
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*("" if row[column] is None else str(row[column]) for column in columns))
    Console().print(table)
