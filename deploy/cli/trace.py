"""`once trace`: a payment's way through every topic."""

import asyncio
import sys

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.cli.endpoints import bootstrap_servers_option
from shared.kafka.client.access import Bootstrap
from shared.kafka.lineage.trace import Hop, Transaction, Way
from shared.kafka.lineage.trace import trace as find

EXIT_NOT_FOUND = 3

_STYLES = {
    Transaction.COMMITTED: "green",
    Transaction.ABORTED: "red",
    Transaction.OPEN: "yellow",
    Transaction.NONE: "dim",
}


@click.command()
@click.argument("payment_id")
@click.option("--debtor", help="Only this debtor's payment; reads one partition instead of all.")
@bootstrap_servers_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def trace(payment_id: str, debtor: str | None, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Show a payment's way through every topic.

    Every raw record with this PAYMENT_ID is followed by its origin: partition, offset, producer id and epoch, what
    became of the transaction, and times since the raw record. Aborted attempts are shown as well, and what was asked
    for and done outside. A record whose source occurs a second time is shown as a repeat, which receivers ignore.

    Exit code 0 when it was found, 3 when there is no such payment.
    """
    try:
        ways = asyncio.run(find(bootstrap_servers, payment_id=payment_id, debtor=debtor))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--debtor") from error
    if as_json:
        click.echo(msgspec.json.encode({"payment_id": payment_id, "ways": ways}))
    elif ways:
        console = Console(width=None if sys.stdout.isatty() else 160)
        for way in ways:
            console.print(table(way))
    if not ways:
        click.echo(f"no payment {payment_id} in payments.raw", err=True)
        sys.exit(EXIT_NOT_FOUND)


def table(way: Way) -> Table:
    """One way as a table, times in milliseconds since its first record."""
    shown = Table(title=way.origin, title_justify="left", box=None, pad_edge=False)
    for name in ("ms", "what", "topic", "partition", "offset", "key", "producer", "transaction", "marker", "marker ms"):
        shown.add_column(name, justify="right" if name in {"ms", "partition", "offset", "marker ms"} else "left")
    first_ms = way.hops[0].timestamp_ms
    for hop in way.hops:
        shown.add_row(*_cells(hop, first_ms))
    return shown


def _cells(hop: Hop, first_ms: int) -> list[str | Text]:
    marker_ms = "" if hop.marker_timestamp_ms is None else f"+{hop.marker_timestamp_ms - first_ms}"
    return [
        f"+{hop.timestamp_ms - first_ms}",
        Text(f"{hop.what}, repeat: ignored", "yellow") if hop.repeat else hop.what,
        hop.topic,
        str(hop.partition),
        str(hop.offset),
        Text("" if hop.key is None else hop.key),
        f"{hop.producer_id}/{hop.producer_epoch}",
        Text(hop.transaction, _STYLES[hop.transaction]),
        "" if hop.marker_offset is None else str(hop.marker_offset),
        marker_ms,
    ]
