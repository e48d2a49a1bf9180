"""`once trace`: a payment's way through every topic."""

import asyncio

import click
from rich.text import Text

from deploy.cli.cluster import brokers_option
from deploy.cli.output import answer, console, json_option, nothing, table
from shared.kafka.client.access import Access
from shared.kafka.lineage.trace import Hop, Transaction, Way
from shared.kafka.lineage.trace import trace as find

_WIDTH_CHARS = 190
_COLUMNS = (
    "ms",
    "what",
    "topic",
    "partition",
    "offset",
    "key",
    "client",
    "producer",
    "transaction",
    "marker",
    "marker ms",
)
_NUMBERS = ("ms", "partition", "offset", "marker ms")
_STYLES = {
    Transaction.COMMITTED: "green",
    Transaction.ABORTED: "red",
    Transaction.OPEN: "yellow",
    Transaction.NONE: "dim",
}


@click.command()
@click.argument("payment_id")
@click.option("--debtor", help="Only this debtor's payment; reads one partition instead of all.")
@brokers_option
@json_option()
def trace(payment_id: str, debtor: str | None, brokers: Access) -> None:
    """Show a payment's way through every topic.

    Every raw record with this PAYMENT_ID is followed by its origin: partition, offset, client and key id, producer id
    and epoch, what became of the transaction, and times since the raw record. Aborted attempts are shown as well, and
    what was asked for and done outside. A record whose source occurs a second time is shown as a repeat, which
    receivers ignore.

    Exit code 0 when it was found, 3 when there is no such payment.
    """
    try:
        ways = asyncio.run(find(brokers, payment_id=payment_id, debtor=debtor))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--debtor") from error
    answer({"payment_id": payment_id, "ways": ways}, lambda: _show(ways))
    if not ways:
        nothing(f"no payment {payment_id} in payments.raw")


def _show(ways: tuple[Way, ...]) -> None:
    """Print each way as a table, times in milliseconds since its first record."""
    for way in ways:
        rows = (_cells(hop, way.hops[0].timestamp_ms) for hop in way.hops)
        console(_WIDTH_CHARS).print(table(_COLUMNS, rows, right=_NUMBERS, title=way.origin, title_justify="left"))


def _cells(hop: Hop, first_ms: int) -> list[str | Text]:
    return [
        f"+{hop.timestamp_ms - first_ms}",
        Text(f"{hop.what}, repeat: ignored", "yellow") if hop.repeat else hop.what,
        hop.topic,
        str(hop.partition),
        str(hop.offset),
        Text("" if hop.key is None else hop.key),
        Text(":".join(part for part in (hop.client, hop.key_id) if part)),
        f"{hop.producer_id}/{hop.producer_epoch}",
        Text(hop.transaction, _STYLES[hop.transaction]),
        "" if hop.marker_offset is None else str(hop.marker_offset),
        "" if hop.marker_timestamp_ms is None else f"+{hop.marker_timestamp_ms - first_ms}",
    ]
