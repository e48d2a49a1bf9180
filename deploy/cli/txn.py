"""`once txn list | find-hanging | abort`: transactions as coordinators and partitions know them, and ending one.

Invariant: nothing is aborted without consent. A transaction that its coordinator knows is ended only through it: a
marker on one partition would tear it. Success is reported only after the partitions were seen to have ended it.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import click
from rich.text import Text

from deploy.cli.cluster import brokers_option, timeout_option
from deploy.cli.output import answer, console, failing_on, json_option, note, nothing, table
from deploy.txn.abort import Plan, carry_out, plan_hanging, plan_known
from deploy.txn.listing import HANGING, Hanging, Row, hanging_rows, named, remedy, rows, targets_text
from deploy.txn.trace import trace_command
from shared.eos.open_transactions import OPEN_STATES, Look, Transaction, late
from shared.events.catalogue import TOPICS
from shared.kafka.admin.configs import broker_config
from shared.kafka.admin.groups import PIPELINE, Groups
from shared.kafka.admin.transactions import look_twice
from shared.kafka.admin.txn_abort import AbortFailedError, Ended
from shared.kafka.client.access import Access
from shared.kafka.client.brokers import Brokers

EXIT_FOUND = 1
_EXIT_CODES = "Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage."
_COLUMNS = ("transactional_id", "service", "instance", "state", "producer", "age", "timeout", "partitions", "holds")
_WIDTH_CHARS = 200
_TOPICS = [topic.name for topic in TOPICS]

T = TypeVar("T")


@click.group()
def txn() -> None:
    """Show open transactions and what they hold back; end one."""


txn.add_command(trace_command)


@txn.command("list", epilog=_EXIT_CODES)
@click.option("--all", "everything", is_flag=True, help="Every transactional.id that a coordinator knows.")
@brokers_option
@json_option()
def list_transactions(brokers: Access, *, everything: bool) -> None:
    """List open and recent transactions, the oldest first.

    Recent are those that began in the last minute. `holds` are the partitions whose last stable offset waits for the
    transaction, each with how many offsets, of any producer, that keeps from read_committed readers.
    """

    async def ask(cluster: Brokers) -> tuple[list[Row], Sequence[str]]:
        seen, suspicion = await look_twice(cluster, _TOPICS)
        owners, silent = await Groups(cluster).owners([group for group, _ in PIPELINE], sorted(seen.coordinators))
        return rows(seen, suspicion, owners, everything=everything), (*seen.unanswered, *silent)

    found, unanswered = _asked(brokers, ask)
    answer({"transactions": found, "unanswered": unanswered}, lambda: _show(found, unanswered))


@txn.command("find-hanging")
@brokers_option
@json_option()
def find_hanging(brokers: Access) -> None:
    """Find transactions that will not end by themselves (KIP-664).

    Either a partition holds one open that no coordinator knows, or its coordinator has one open for longer than
    transaction.max.timeout.ms.

    Exit codes: 0 none, 1 found, or a broker did not answer, 2 wrong usage.
    """
    seen, suspicion = _asked(brokers, lambda cluster: look_twice(cluster, _TOPICS))
    max_timeout_ms = int(asyncio.run(broker_config(brokers, "transaction.max.timeout.ms")))
    hanging, overdue = hanging_rows(seen, suspicion), late(seen, max_timeout_ms)
    found = {"hanging": hanging, "late": overdue, "unanswered": seen.unanswered}
    answer(found, lambda: _show_hanging(seen, hanging, overdue))
    _warn(seen.unanswered)
    if hanging or overdue or seen.unanswered:
        sys.exit(EXIT_FOUND)


@txn.command("abort")
@click.argument("transactional_id", required=False)
@click.option("--topic", help="Of a hanging one: the topic.")
@click.option("--partition", type=click.IntRange(min=0), help="Of a hanging one: the partition.")
@click.option("--start-offset", type=click.IntRange(min=0), help="Of a hanging one: its first offset there.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option("Seconds to wait.", 30.0)
@brokers_option
def abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    timeout_s: float,
    brokers: Access,
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
    planned = _asked(brokers, plan)
    if planned is None:
        what = transactional_id or f"{topic}:{partition}:{start_offset}"
        nothing(f"nothing is open under {what}: `once txn list --all` and `once txn find-hanging` show what is")
    note(planned.text)
    if not yes and not click.confirm("Abort it?", err=True):
        raise click.ClickException("nothing was done")
    for ended in _asked(brokers, lambda cluster: carry_out(cluster, planned, deadline_s=timeout_s)):
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
        return lambda cluster: plan_known(cluster, name, _TOPICS)
    if transactional_id is not None:
        raise click.UsageError("give a TRANSACTIONAL_ID or a place, not both")
    if topic is None or partition is None or start_offset is None:
        raise click.UsageError("a hanging transaction is named by all of --topic, --partition and --start-offset")
    target, offset = (topic, partition), start_offset
    return lambda cluster: plan_hanging(cluster, target, offset, _TOPICS)


def _asked(brokers: Access, ask: Callable[[Brokers], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Brokers(brokers) as cluster:
            return await ask(cluster)

    with failing_on(AbortFailedError):
        return asyncio.run(run())


def _warn(unanswered: Iterable[str]) -> None:
    for reason in unanswered:
        note(f"not answered: {reason}")


def _moved(ended: Ended, plan: Plan) -> str:
    where, stable = named(ended.target), ended.offsets.stable
    moved = f"{where}: the last stable offset moved from {plan.stable[ended.target]} to {stable}"
    if ended.held_by is None:
        return moved
    return f"{moved}; offsets from {ended.held_by} wait for another transaction"


def _show(found: Sequence[Row], unanswered: Sequence[str]) -> None:
    if found:
        cells = ([Text(cell, _style(row)) for cell in _cells(row)] for row in found)
        console(_WIDTH_CHARS).print(table(_COLUMNS, cells, right=("age", "timeout"), fold=_COLUMNS))
    else:
        note("no transaction is open, and none began in the last minute")
    _warn(unanswered)


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
            f"transaction may be; its coordinator is broker {known.coordinator}. {remedy(known)}"
        )
    if not hanging and not overdue and not seen.unanswered:
        note("no transaction hangs")
