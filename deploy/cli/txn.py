"""`once txn list | find-hanging | abort`: transactions as coordinators and partitions know them, and ending one.

Invariant: nothing is aborted without consent. A transaction that its coordinator knows is ended only through it: a
marker on one partition would tear it. Success is reported only after the partitions were seen to have ended it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.cli.endpoints import bootstrap_servers_option
from deploy.txn.abort import Plan, carry_out, plan_hanging, plan_known
from deploy.txn.listing import HANGING, Row, named, rows, targets_text
from deploy.txn.trace import trace_command
from shared.eos.open_transactions import OPEN_STATES, Look, Suspicion, Transaction, late
from shared.events.catalogue import TOPICS
from shared.kafka.admin.drain import PIPELINE
from shared.kafka.admin.groups import Groups
from shared.kafka.admin.topics import broker_config
from shared.kafka.admin.transactions import look_twice
from shared.kafka.admin.txn_abort import AbortFailedError, Ended
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.brokers import Brokers

EXIT_FOUND = 1
EXIT_NOTHING = 3
_EXIT_CODES = "Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage."
_COLUMNS = ("transactional_id", "service", "instance", "state", "producer", "age", "timeout", "partitions", "holds")
_NO_TERMINAL_WIDTH = 200

T = TypeVar("T")

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


class Hanging(msgspec.Struct, frozen=True):
    """A transaction that a partition holds open and no coordinator knows."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    held: int


@click.group()
def txn() -> None:
    """Show open transactions and what they hold back; end one."""


txn.add_command(trace_command)


@txn.command("list", epilog=_EXIT_CODES)
@click.option("--all", "everything", is_flag=True, help="Every transactional.id that a coordinator knows.")
@bootstrap_servers_option
@_json
def list_transactions(bootstrap_servers: Bootstrap, *, everything: bool, as_json: bool) -> None:
    """List open and recent transactions, the oldest first.

    Recent are those that began in the last minute. `holds` are the partitions whose last stable offset waits for the
    transaction, each with how many offsets, of any producer, that keeps from read_committed readers.
    """

    async def ask(brokers: Brokers) -> tuple[list[Row], Sequence[str]]:
        seen, suspicion = await look_twice(brokers, _topics())
        owners, silent = await Groups(brokers).owners([group for group, _ in PIPELINE], sorted(seen.coordinators))
        return rows(seen, suspicion, owners, everything=everything), (*seen.unanswered, *silent)

    found, unanswered = _asked(bootstrap_servers, ask)
    if as_json:
        click.echo(msgspec.json.encode({"transactions": found, "unanswered": unanswered}))
        return
    if found:
        Console(width=None if sys.stdout.isatty() else _NO_TERMINAL_WIDTH).print(_table(found))
    else:
        click.echo("no transaction is open, and none began in the last minute", err=True)
    _warn(unanswered)


@txn.command("find-hanging")
@bootstrap_servers_option
@_json
def find_hanging(bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Find transactions that will not end by themselves (KIP-664).

    Either a partition holds one open that no coordinator knows, or its coordinator has one open for longer than
    transaction.max.timeout.ms.

    Exit codes: 0 none, 1 found, or a broker did not answer, 2 wrong usage.
    """

    async def ask(brokers: Brokers) -> tuple[Look, Suspicion]:
        return await look_twice(brokers, _topics())

    seen, suspicion = _asked(bootstrap_servers, ask)
    max_timeout_ms = int(asyncio.run(broker_config(bootstrap_servers, "transaction.max.timeout.ms")))
    hanging, overdue = _hanging(seen, suspicion), late(seen, max_timeout_ms)
    if as_json:
        click.echo(msgspec.json.encode({"hanging": hanging, "late": overdue, "unanswered": seen.unanswered}))
    else:
        _show_hanging(seen, hanging, overdue)
    _warn(seen.unanswered)
    if hanging or overdue or seen.unanswered:
        sys.exit(EXIT_FOUND)


@txn.command("abort")
@click.argument("transactional_id", required=False)
@click.option("--topic", help="Of a hanging one: the topic.")
@click.option("--partition", type=click.IntRange(min=0), help="Of a hanging one: the partition.")
@click.option("--start-offset", type=click.IntRange(min=0), help="Of a hanging one: its first offset there.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), default=30.0, show_default=True, help="Seconds to wait."
)
@bootstrap_servers_option
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    timeout_s: float,
    bootstrap_servers: Bootstrap,
    *,
    yes: bool,
) -> None:
    """Abort an open or a hanging transaction.

    Name an open one by its TRANSACTIONAL_ID, a hanging one by its partition and first offset. A TRANSACTIONAL_ID is
    fenced through its coordinator, as its successor would do (InitProducerId). A hanging transaction, as `once txn
    find-hanging` lists it, gets an ABORT marker on its partition (WriteTxnMarkers).

    Exit codes: 0 aborted, 1 not, 2 wrong usage, 3 there is no such open transaction.
    """
    plan = _chosen(transactional_id, topic, partition, start_offset)
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: give --yes if it is to be done")
    planned = _asked(bootstrap_servers, plan)
    if planned is None:
        what = transactional_id or f"{topic}:{partition}:{start_offset}"
        click.echo(
            f"nothing is open under {what}: `once txn list --all` and `once txn find-hanging` show what is", err=True
        )
        sys.exit(EXIT_NOTHING)
    click.echo(planned.text, err=True)
    if not yes and not click.confirm("Abort it?", err=True):
        raise click.ClickException("nothing was done")
    for ended in _asked(bootstrap_servers, lambda brokers: carry_out(brokers, planned, deadline_s=timeout_s)):
        click.echo(_moved(ended, planned))
    click.echo(f"{planned.name} is aborted")


def _chosen(
    transactional_id: str | None, topic: str | None, partition: int | None, start_offset: int | None
) -> Callable[[Brokers], Awaitable[Plan | None]]:
    """Choose the planner of the abort that the arguments name."""
    if topic is None and partition is None and start_offset is None:
        if transactional_id is None:
            raise click.UsageError("give a TRANSACTIONAL_ID, or --topic, --partition and --start-offset")
        name = transactional_id
        return lambda brokers: plan_known(brokers, name, _topics())
    if transactional_id is not None:
        raise click.UsageError("give a TRANSACTIONAL_ID or a place, not both")
    if topic is None or partition is None or start_offset is None:
        raise click.UsageError("a hanging transaction is named by all of --topic, --partition and --start-offset")
    target, offset = (topic, partition), start_offset
    return lambda brokers: plan_hanging(brokers, target, offset, _topics())


def _asked(bootstrap_servers: Bootstrap, ask: Callable[[Brokers], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Brokers(bootstrap_servers) as brokers:
            return await ask(brokers)

    try:
        return asyncio.run(run())
    except AbortFailedError as error:
        raise click.ClickException(str(error)) from error


def _topics() -> list[str]:
    return [topic.name for topic in TOPICS]


def _warn(unanswered: Sequence[str]) -> None:
    for reason in unanswered:
        click.echo(f"not answered: {reason}", err=True)


def _moved(ended: Ended, plan: Plan) -> str:
    where, stable = named(ended.target), ended.offsets.stable
    moved = f"{where}: the last stable offset moved from {plan.stable[ended.target]} to {stable}"
    if ended.held_by is None:
        return moved
    return f"{moved}; offsets from {ended.held_by} wait for another transaction"


def _table(found: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in {"age", "timeout"} else "left", overflow="fold")
    for row in found:
        table.add_row(*(Text(cell, _style(row)) for cell in _cells(row)))
    return table


def _cells(row: Row) -> list[str]:
    holds = ", ".join(f"{hold.partition} by {hold.held}" for hold in row.holds)
    return [
        row.transactional_id or "",
        row.service or "",
        row.instance or "",
        row.state,
        f"{row.producer_id}/{row.producer_epoch}",
        "" if row.age_s is None else f"{row.age_s:.1f} s",
        "" if row.timeout_ms is None else f"{row.timeout_ms / 1000:g} s",
        _short(row.partitions),
        holds,
    ]


def _short(partitions: Sequence[str]) -> str:
    pairs = (name.rsplit(":", 1) for name in partitions)
    return targets_text((topic, int(number)) for topic, number in pairs)


def _style(row: Row) -> str:
    if row.state == HANGING:
        return "red"
    overdue = row.age_s is not None and row.timeout_ms is not None and row.age_s * 1000 > row.timeout_ms
    if row.state in OPEN_STATES:
        return "red" if overdue else "yellow"
    return ""


def _hanging(seen: Look, suspicion: Suspicion) -> list[Hanging]:
    return [
        Hanging(
            one.topic,
            one.partition,
            one.start_offset,
            one.producer_id,
            one.producer_epoch,
            offsets.held if (offsets := seen.offsets.get(one.target)) is not None else 0,
        )
        for one in sorted(suspicion.hanging)
    ]


def _show_hanging(seen: Look, hanging: Sequence[Hanging], overdue: Sequence[Transaction]) -> None:
    for one in hanging:
        where = f"{one.topic}:{one.partition}"
        click.echo(
            f"{where} is held at offset {one.start_offset} by producer {one.producer_id} with epoch "
            f"{one.producer_epoch}, which no coordinator knows; {one.held} offsets wait behind it. To end it:\n"
            f"  once txn abort --topic {one.topic} --partition {one.partition} --start-offset {one.start_offset}"
        )
    for known in overdue:
        click.echo(
            f"{known.transactional_id} is in state {known.state} for {known.age_s(seen.at_ms):.0f} s, longer than any "
            f"transaction may be; its coordinator is broker {known.coordinator}. To end it:\n"
            f"  once txn abort {known.transactional_id}"
        )
    if not hanging and not overdue and not seen.unanswered:
        click.echo("no transaction hangs", err=True)
