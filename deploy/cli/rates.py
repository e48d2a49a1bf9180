"""`once rates set | clear | list`: the conversion rates that transform prices payments with."""

import asyncio

import click

from deploy.cli.cluster import brokers_option
from deploy.cli.fees import EXIT_CODES, currency_of, put, show
from deploy.cli.output import json_option
from shared.events.catalogue import REFERENCE_RATES
from shared.events.reference import RATE_PATTERN, Rate, decode_rate
from shared.kafka.client.access import Access
from shared.kafka.client.reader import read_table

_from_argument = click.argument("from_currency", metavar="FROM", type=currency_of)
_to_argument = click.argument("to_currency", metavar="TO", type=currency_of)


def _rate(value: str) -> str:
    if RATE_PATTERN.fullmatch(value) is None or not value.strip("0."):
        raise click.BadParameter(
            f"{value} is not a rate: give a decimal above 0 such as 1.0850, at most 12 digits on each side"
        )
    return value


def _pair(from_currency: str, to_currency: str) -> str:
    if from_currency == to_currency:
        raise click.UsageError("FROM and TO are the same currency")
    return f"{from_currency}/{to_currency}"


@click.group()
def rates() -> None:
    """Set and show conversion rates."""


@rates.command("set", epilog=EXIT_CODES)
@_from_argument
@_to_argument
@click.argument("rate", type=_rate)
@brokers_option
@json_option("Print JSON.")
def set_rate(from_currency: str, to_currency: str, rate: str, brokers: Access) -> None:
    """Set how much of TO one unit of FROM buys. The way back is a rate of its own."""
    put(brokers, REFERENCE_RATES, _pair(from_currency, to_currency), Rate(rate))


@rates.command("clear", epilog=EXIT_CODES)
@_from_argument
@_to_argument
@brokers_option
@json_option("Print JSON.")
def clear_rate(from_currency: str, to_currency: str, brokers: Access) -> None:
    """End a rate: payments that need it are declined from then on."""
    put(brokers, REFERENCE_RATES, _pair(from_currency, to_currency), None)


@rates.command("list")
@brokers_option
@json_option("Print JSON.")
def list_rates(brokers: Access) -> None:
    """Show all rates."""
    show(asyncio.run(read_table(brokers, REFERENCE_RATES, decode_rate)), "pair", Rate)
