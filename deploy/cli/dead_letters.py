"""`once dead-letters list | show | resubmit`: show refused records and resubmit them.

Invariant: a resubmission is a new raw record with an identity and coordinates of its own; the dead letter stays. A
value is shown only when it is asked for: it may hold what a log must not.
"""

import asyncio
import base64
import heapq
from collections import Counter
from pathlib import Path
from typing import Any

import click

from deploy.cli.cluster import brokers_option, partitions_of, write
from deploy.cli.output import answer, as_json, fields_text, iso_time, json_option, note, nothing, print_rows
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_DEAD_LETTER, PAYMENTS_RAW
from shared.events.clients import BY_OPERATOR
from shared.events.dead_letters import Reason
from shared.events.headers import (
    DETAIL,
    ORIGIN,
    REASON,
    RESUBMISSION_OF,
    SERVICE,
    SUBMITTED_BY,
    Coordinates,
    Headers,
    header,
)
from shared.events.partitions import PARTITIONS_MAX
from shared.events.validation import InvalidPaymentError, decode_payment, key_of
from shared.kafka.admin.installation import ownership
from shared.kafka.client.access import Access
from shared.kafka.client.reader import read_partition, read_topics

_WIDTH_CHARS = 160


def _dead_letter(record: Record) -> dict[str, Any]:
    """A refused record without its value: as the commands print it, coordinates and sizes in bytes included."""

    def text(name: str) -> str:
        return (header(record.headers, name) or b"").decode(errors="replace")

    return {
        "origin": text(ORIGIN),
        "at": str(Coordinates(record.topic, record.partition, record.offset)),
        "time": iso_time(record.timestamp_ms),
        "reason": text(REASON),
        "detail": text(DETAIL),
        "service": text(SERVICE),
        "key": None if record.key is None else record.key.decode(errors="replace"),
        "value_bytes": len(record.value or b""),
    }


def _origin(value: str) -> Coordinates:
    short = value.removeprefix(f"{PAYMENTS_RAW}:")
    try:
        found = Coordinates.decode(f"{PAYMENTS_RAW}:{short}".encode())
    except ValueError:
        found = Coordinates(PAYMENTS_RAW, -1, -1)
    if not 0 <= found.partition < PARTITIONS_MAX or found.offset < 0:
        raise click.BadParameter(
            f"{value} names no raw record: give {PAYMENTS_RAW}:PARTITION:OFFSET, or PARTITION:OFFSET"
        )
    return found


_origin_argument = click.argument("origin", type=_origin)


@click.group("dead-letters")
def dead_letters() -> None:
    """Show refused records and send them in again."""


@dead_letters.command("list")
@click.option("--reason", type=click.Choice([reason.value for reason in Reason]), help="Only these.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The youngest.")
@brokers_option
@json_option("Print one JSON object, counts included.")
def list_dead_letters(reason: str | None, limit: int, brokers: Access) -> None:
    """List refused records, the youngest last, and count them by reason.

    Exit codes: 0 shown (none is fine), 1 not, 2 wrong usage.
    """
    counts: Counter[str] = Counter()
    youngest: list[tuple[int, int, int, dict[str, Any]]] = []

    def take(_topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            letter = _dead_letter(record)
            if reason in {None, letter["reason"]}:
                counts[letter["reason"]] += 1
                heapq.heappush(youngest, (record.timestamp_ms, record.partition, record.offset, letter))
                if len(youngest) > limit:
                    heapq.heappop(youngest)

    asyncio.run(read_topics(brokers, [PAYMENTS_DEAD_LETTER], take))
    letters = [letter for *_, letter in sorted(youngest, key=lambda item: item[:3])]
    by_reason = dict(sorted(counts.items()))
    found = {"total": counts.total(), "by_reason": by_reason, "dead_letters": letters}
    answer(found, lambda: _show(letters, counts.total(), by_reason))


def _show(letters: list[dict[str, Any]], total: int, by_reason: dict[str, int]) -> None:
    columns = ("origin", "time", "reason", "key", "detail")
    print_rows(letters, columns, width_chars=_WIDTH_CHARS, no_wrap=("origin", "reason"))
    summary = ", ".join(f"{name} {count:,}" for name, count in by_reason.items())
    note(f"{total:,} dead letters" + (f": {summary}" if summary else ""))


@dead_letters.command("show")
@_origin_argument
@click.option("--value", "value_only", is_flag=True, help="Write the value's bytes alone to stdout, to be edited.")
@brokers_option
@json_option()
def show_dead_letter(origin: Coordinates, brokers: Access, *, value_only: bool) -> None:
    """Show the refused record of ORIGIN, payments.raw:PARTITION:OFFSET.

    Exit codes: 0 shown, 1 not, 2 wrong usage, 3 no dead letter of that origin.
    """
    if value_only and as_json():
        raise click.UsageError("give --value or --json, not both")
    record = _find(brokers, origin)
    if value_only:
        click.echo(record.value or b"", nl=False)
        return
    fields = _dead_letter(record) | _readable(record.value)
    answer(fields, fields_text(fields))


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
@brokers_option
@json_option()
def resubmit(origin: Coordinates, value_file: Path | None, brokers: Access) -> None:
    """Send the refused record of ORIGIN in again, as a new raw record.

    It names its predecessor in the header `resubmission-of`, and counts for the client that submitted the first one.
    Sending it in twice is safe once it is valid: the second one is a repeat.

    Exit codes: 0 written, 1 not, 2 wrong usage, 3 no dead letter of that origin.
    """
    record = _find(brokers, origin)
    new = record.value if value_file is None else value_file.read_bytes()
    if not new:
        raise click.UsageError("there is no value to send: give one by --value-file")
    partitions = partitions_of(brokers, PAYMENTS_RAW)
    warning = _warning(_dead_letter(record)["reason"], new, partitions, changed=new != record.value)
    if warning:
        note(f"warning: {warning}")
    key, partition = key_of(new, partitions)
    headers = ((RESUBMISSION_OF, origin.encode()), *_submitted_by(brokers, record, origin))
    at = write(brokers, PAYMENTS_RAW, partition, key, new, headers)
    found = {"resubmission_of": str(origin), "at": at, "warning": warning}
    answer(found, f"{origin} sent in again as {at}")


def _submitted_by(brokers: Access, record: Record, origin: Coordinates) -> Headers:
    """Return the header that names the client of a refused record; the operator before ownership was enforced."""
    raw_from = asyncio.run(ownership(brokers)).raw_from
    if origin.offset < raw_from[origin.partition]:
        return BY_OPERATOR
    submitted_by = header(record.headers, SUBMITTED_BY)
    return () if submitted_by is None else ((SUBMITTED_BY, submitted_by),)


def _warning(reason: str, value: bytes, partitions: int, *, changed: bool) -> str | None:
    """Why the resubmission will be refused again, where that is known; else None."""
    try:
        decode_payment(value, partitions)
    except InvalidPaymentError as error:
        return f"it will be refused {'' if changed else 'again '}for {error.reason}: {error.detail}"
    if not changed and reason == Reason.IDENTITY_CONFLICT:
        return "unchanged, it conflicts with the same payment again, as long as that one is remembered"
    return None


def _find(brokers: Access, origin: Coordinates) -> Record:
    """The dead letter of an origin. It is on the same partition number; several (after a replay) are the same."""
    found: list[Record] = []

    def take(records: list[Record]) -> None:
        found.extend(record for record in records if header(record.headers, ORIGIN) == origin.encode())

    if origin.partition < partitions_of(brokers, PAYMENTS_DEAD_LETTER):
        asyncio.run(read_partition(brokers, PAYMENTS_DEAD_LETTER, origin.partition, take))
    if not found:
        nothing(f"no dead letter of {origin}: `once dead-letters list` shows all")
    return found[0]
