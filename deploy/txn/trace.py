"""`once txn trace`: the ten protocol steps of one transaction, as they went over the wire and into the brokers' logs.

Invariant: without an argument the transaction is the command's own, on a topic and a group that it deletes. With one,
an existing transaction is read and nothing is written. Payloads are never shown.
"""

import asyncio
import sys
from collections import Counter
from typing import Any

import click
import msgspec
from rich.text import Text

from deploy.cli.cluster import brokers_option
from deploy.cli.output import answer, console, failing_on, json_option, note, nothing, table
from shared.eos.errors import EosError
from shared.kafka.admin.transaction_state import Status
from shared.kafka.client.access import Access
from shared.kafka.protocol.primitives import ProtocolDecodeError
from shared.kafka.txntrace.transaction_steps import ABORT, COMMIT, NAMES, Line, Source, Step
from shared.kafka.txntrace.transaction_trace import Trace, trace_newest, trace_own

EXIT_FAILURE = 1

_WIDTH_CHARS = 180
_COLUMNS = ("step", "ms", "from", "what", "where", "producer", "detail")
_STYLES = {Source.WIRE: "cyan", Source.STATE_LOG: "magenta", Source.PARTITION_LOG: "blue", Source.CLIENT: "dim"}
_PLAIN = ("version", "correlation_id", "connection", "size_bytes")

_OUTCOMES = {
    Status.EMPTY: "no transaction was begun since the producer was initialised",
    Status.ONGOING: "the transaction is open",
    Status.PREPARE_COMMIT: "the transaction is to be committed; markers are being written",
    Status.PREPARE_ABORT: "the transaction is to be aborted; markers are being written",
    Status.COMPLETE_COMMIT: "the transaction was committed",
    Status.COMPLETE_ABORT: "the transaction was aborted",
    Status.PREPARE_EPOCH_FENCE: "the transaction is to be aborted: another producer took over",
    Status.DEAD: "the transactional.id is being removed: it has expired",
}


@click.command("trace")
@click.argument("transactional_id", required=False)
@click.option("--abort", is_flag=True, help="End the command's own transaction with ABORT.  [default: COMMIT]")
@brokers_option
@json_option()
def trace_command(transactional_id: str | None, brokers: Access, *, abort: bool) -> None:
    """Show a transaction's ten protocol steps.

    Makes a transaction of its own, with the services' producer, on a topic and a group that it deletes afterwards. What
    it sends is read off the wire; what the brokers made of it, from __transaction_state and from the partitions' logs.
    WriteTxnMarkers goes between brokers: its effect is shown, the markers.

    With a TRANSACTIONAL_ID it shows the newest transaction of that producer from the logs alone, for another process's
    connections cannot be tapped: states and markers, steps 4, 6, 8, 9 and 10.

    Exit codes: 0 all steps were seen (or the transaction was found), 1 one is missing, 2 wrong usage, 3 no such
    TRANSACTIONAL_ID.
    """
    if transactional_id is not None and abort:
        raise click.UsageError("--abort ends the command's own transaction: it goes with no TRANSACTIONAL_ID")
    with failing_on(EosError, ProtocolDecodeError):
        if transactional_id is None:
            found: Trace | None = asyncio.run(trace_own(brokers, commit=not abort))
        else:
            found = asyncio.run(trace_newest(brokers, transactional_id))
    if found is None:
        nothing(f"no transactional.id {transactional_id} in the coordinator's log: see `once txn list --all`")
    own = transactional_id is None
    answer(_as_object(found, own=own), lambda: _show(found, own=own))
    sys.exit(EXIT_FAILURE if own and found.faults else 0)


def _as_object(found: Trace, *, own: bool) -> dict[str, Any]:
    """The trace as one JSON object; `ms` counts from the first line."""
    started_ms = found.lines[0].at_ms if found.lines else 0.0
    return {
        "transactional_id": found.transactional_id,
        "wire_tapped": own,
        "state_partition": found.state_partition,
        "coordinator": found.coordinator,
        "status": found.status,
        "complete": not found.faults,
        "faults": found.faults,
        "clock_difference_ms": round(found.clock_difference_ms, 3),
        "lines": [
            {"step_name": NAMES.get(line.step), "ms": round(_since(line, started_ms), 3), **msgspec.to_builtins(line)}
            for line in found.lines
        ],
    }


def _since(line: Line, started_ms: float) -> float:
    """Milliseconds since the start; whole ones for a log's line, whose time has no fractions either."""
    return line.at_ms - (started_ms if _decimals(line) else int(started_ms))


def _decimals(line: Line) -> int:
    return 1 if line.source in {Source.WIRE, Source.CLIENT} else 0


def _show(found: Trace, *, own: bool) -> None:
    click.echo(
        f"{found.transactional_id}: states in {found.state_partition}, coordinator broker {found.coordinator}"
        + ("" if own else "; no wire: another process's connections cannot be tapped")
    )
    cells = (_cells(line, found) for line in found.lines if line.step is not Step.NONE)
    console(_WIDTH_CHARS).print(table(_COLUMNS, cells, right=("step", "ms"), no_wrap=_COLUMNS[:-1], fold=_COLUMNS))
    besides = Counter(line.what.partition(" ")[0] for line in found.lines if line.step is Step.NONE)
    if besides:
        counted = ", ".join(f"{name} {count}" for name, count in sorted(besides.items()))
        note(f"also, in --json only: {counted} messages")
    if found.clock_difference_ms > 0:
        note(
            f"a broker's clock differs from this one's by {found.clock_difference_ms:.1f} ms or more: lines of the "
            "wire and of the logs may be in the wrong order"
        )
    for fault in found.faults:
        click.echo(fault)
    if own and not found.faults:
        ended = COMMIT if found.status is Status.COMPLETE_COMMIT else ABORT
        click.echo(f"all ten steps were seen, the last one with {ended}")
    elif not own and found.status is not None:
        click.echo(_OUTCOMES[found.status])


def _cells(line: Line, found: Trace) -> list[str | Text]:
    return [
        str(int(line.step)),
        "" if _by_producers_clock(line) else f"{_since(line, found.lines[0].at_ms):.{_decimals(line)}f}",
        Text(line.source, _STYLES[line.source]),
        Text(line.what),
        Text(line.where),
        "" if line.producer_id is None else f"{line.producer_id}/{line.producer_epoch}",
        Text(_detail(line, found.transactional_id)),
    ]


def _by_producers_clock(line: Line) -> bool:
    """Whether its time is when its producer made it (CreateTime), not when it was appended."""
    return line.step is Step.PRODUCE and line.source is Source.PARTITION_LOG


def _detail(line: Line, transactional_id: str) -> str:
    if line.source is Source.CLIENT:
        return "nothing is sent: the brokers hear of it with the first partition"
    fields = dict(line.fields)
    parts: list[str] = []
    if line.source is Source.WIRE:
        version, correlation_id, _, size_bytes = (fields.pop(name) for name in _PLAIN)
        parts.append(f"v{version} #{correlation_id} {size_bytes} B")
    shown = {name: value for name, value in fields.items() if value != []}
    if shown.get("transactional_id") == transactional_id:
        del shown["transactional_id"]  # the headline says it
    return " ".join([*parts, *(f"{name}={_text(value)}" for name, value in shown.items())])


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(f"({_text(item)})" if isinstance(item, dict) else _text(item) for item in value)
    if isinstance(value, dict):
        words = set(value.values()) if all(isinstance(item, str) for item in value.values()) else set()
        # The same word for every partition is printed once
        return words.pop() if len(words) == 1 else ",".join(f"{key}={_text(item)}" for key, item in value.items())
    return str(value)
