"""`once dead-letters list | show | resubmit`: show refused records and resubmit them.

Invariant: a resubmission is a new raw record with an identity and coordinates of its own; the dead letter stays. A
value is shown only when it is asked for: it may hold what a log must not.
"""

import asyncio
import base64
import heapq
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.cli.endpoints import bootstrap_servers_option
from deploy.cli.writing import where, write
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_DEAD_LETTER, PAYMENTS_RAW
from shared.events.dead_letters import Reason
from shared.events.headers import DETAIL, ORIGIN, REASON, RESUBMISSION_OF, SERVICE, Coordinates, header
from shared.events.partitions import PARTITIONS
from shared.events.validation import InvalidPaymentError, decode_payment, key_of
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.reader import read_partition, read_topics

EXIT_NOT_FOUND = 3
_SHOWN_DEFAULT = 50


class DeadLetter(msgspec.Struct, frozen=True):
    """A refused record, without its value.

    Attributes:
        origin, at: coordinates of the raw record and of the dead letter.
        time: of the refusal, ISO 8601 in UTC.
        key: of the raw record, None without one.
        value_bytes: size of the value.
    """

    origin: str
    at: str
    time: str
    reason: str
    detail: str
    service: str
    key: str | None
    value_bytes: int


class _Found(NamedTuple):
    letter: DeadLetter
    value: bytes | None


def _dead_letter(record: Record) -> DeadLetter:
    def text(name: str) -> str:
        return (header(record.headers, name) or b"").decode(errors="replace")

    return DeadLetter(
        origin=text(ORIGIN),
        at=str(Coordinates(record.topic, record.partition, record.offset)),
        time=datetime.fromtimestamp(record.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        reason=text(REASON),
        detail=text(DETAIL),
        service=text(SERVICE),
        key=None if record.key is None else record.key.decode(errors="replace"),
        value_bytes=len(record.value or b""),
    )


def _origin(_context: click.Context, _parameter: click.Parameter, value: str) -> Coordinates:
    short = value.removeprefix(f"{PAYMENTS_RAW}:")
    try:
        found = Coordinates.decode(f"{PAYMENTS_RAW}:{short}".encode())
    except ValueError:
        found = Coordinates(PAYMENTS_RAW, -1, -1)
    if not 0 <= found.partition < PARTITIONS or found.offset < 0:
        raise click.BadParameter(
            f"{value} names no raw record: give {PAYMENTS_RAW}:PARTITION:OFFSET, or PARTITION:OFFSET"
        )
    return found


_origin_argument = click.argument("origin", callback=_origin)


@click.group("dead-letters")
def dead_letters() -> None:
    """Show refused records and send them in again."""


@dead_letters.command("list")
@click.option("--reason", type=click.Choice([reason.value for reason in Reason]), help="Only these.")
@click.option("--limit", type=click.IntRange(min=1), default=_SHOWN_DEFAULT, show_default=True, help="The youngest.")
@bootstrap_servers_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, counts included.")
def list_dead_letters(reason: str | None, limit: int, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """List refused records, the youngest last, and count them by reason.

    Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage.
    """
    counts: Counter[str] = Counter()
    youngest: list[tuple[int, int, int, DeadLetter]] = []

    def take(_topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            letter = _dead_letter(record)
            if reason in {None, letter.reason}:
                counts[letter.reason] += 1
                heapq.heappush(youngest, (record.timestamp_ms, record.partition, record.offset, letter))
                if len(youngest) > limit:
                    heapq.heappop(youngest)

    asyncio.run(read_topics(bootstrap_servers, [PAYMENTS_DEAD_LETTER], take))
    letters = [letter for *_, letter in sorted(youngest, key=lambda item: item[:3])]
    by_reason = dict(sorted(counts.items()))
    if as_json:
        click.echo(msgspec.json.encode({"total": counts.total(), "by_reason": by_reason, "dead_letters": letters}))
        return
    if letters:
        Console(width=None if sys.stdout.isatty() else 160).print(_table(letters))
    summary = ", ".join(f"{name} {count:,}" for name, count in by_reason.items())
    click.echo(f"{counts.total():,} dead letters" + (f": {summary}" if summary else ""), err=True)


def _table(letters: list[DeadLetter]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("origin", "time", "reason", "key", "detail"):
        table.add_column(column, no_wrap=column in {"origin", "reason"})
    for letter in letters:
        table.add_row(letter.origin, letter.time, letter.reason, Text(letter.key or ""), Text(letter.detail))
    return table


@dead_letters.command("show")
@_origin_argument
@click.option("--value", "value_only", is_flag=True, help="Write the value's bytes alone to stdout, to be edited.")
@bootstrap_servers_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show_dead_letter(origin: Coordinates, bootstrap_servers: Bootstrap, *, value_only: bool, as_json: bool) -> None:
    """Show the refused record of ORIGIN, payments.raw:PARTITION:OFFSET.

    Exit codes: 0 shown, 1 not, 2 wrong usage, 3 no dead letter of that origin.
    """
    if value_only and as_json:
        raise click.UsageError("give --value or --json, not both")
    letter, value = _find(bootstrap_servers, origin)
    if value_only:
        click.echo(value or b"", nl=False)
        return
    fields = msgspec.to_builtins(letter) | _readable(value)
    if as_json:
        click.echo(msgspec.json.encode(fields))
        return
    for name, content in fields.items():
        click.echo(f"{name + ':':13} {'' if content is None else content}")


def _readable(value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


@dead_letters.command("resubmit")
@_origin_argument
@click.option(
    "--value-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The corrected value, byte by byte.  [default: the value as it was]",
)
@bootstrap_servers_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def resubmit(origin: Coordinates, value_file: Path | None, bootstrap_servers: Bootstrap, *, as_json: bool) -> None:
    """Send the refused record of ORIGIN in again, as a new raw record.

    It names its predecessor in the header `resubmission-of`. Sending it in twice is safe once it is valid: the second
    one is a repeat.

    Exit codes: 0 written, 1 not, 2 wrong usage, 3 no dead letter of that origin.
    """
    letter, old = _find(bootstrap_servers, origin)
    new = old if value_file is None else value_file.read_bytes()
    if not new:
        raise click.UsageError("there is no value to send: give one by --value-file")
    warning = _warning(letter, new, changed=new != old)
    if warning:
        click.echo(f"warning: {warning}", err=True)
    key, partition = key_of(new)
    metadata = write(bootstrap_servers, PAYMENTS_RAW, partition, key, new, ((RESUBMISSION_OF, origin.encode()),))
    if as_json:
        click.echo(msgspec.json.encode({"resubmission_of": str(origin), "at": where(metadata), "warning": warning}))
    else:
        click.echo(f"{origin} sent in again as {where(metadata)}")


def _warning(letter: DeadLetter, value: bytes, *, changed: bool) -> str | None:
    """Warn that the resubmission will be refused again, where that is known; else None."""
    try:
        decode_payment(value)
    except InvalidPaymentError as error:
        return f"it will be refused {'' if changed else 'again '}for {error.reason}: {error.detail}"
    if not changed and letter.reason == Reason.IDENTITY_CONFLICT:
        return "unchanged, it conflicts with the same payment again, as long as that one is remembered"
    return None


def _find(bootstrap_servers: Bootstrap, origin: Coordinates) -> _Found:
    """The dead letter of an origin. It is on the same partition number; several (after a replay) are the same."""
    wanted = origin.encode()
    found: list[_Found] = []

    def take(records: list[Record]) -> None:
        if not found:
            found.extend(
                _Found(_dead_letter(record), record.value)
                for record in records
                if header(record.headers, ORIGIN) == wanted
            )

    asyncio.run(read_partition(bootstrap_servers, PAYMENTS_DEAD_LETTER, origin.partition, take))
    if not found:
        click.echo(f"no dead letter of {origin}: `once dead-letters list` shows all", err=True)
        sys.exit(EXIT_NOT_FOUND)
    return found[0]
