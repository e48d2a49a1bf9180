"""A system in memory as a run's input: its records decoded with the real codecs, typed by the tables' schemas.

Invariant: no record goes through Spark's decoding, so the checks are tested alone.
"""

from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame, Row, SparkSession

from shared.eos.records import Record
from shared.events import catalogue, effects, payments, postings, reference, transfers, validation
from shared.events.clients import decode_submitted_by, encode_submitted_by
from shared.events.headers import DETAIL, ORIGIN, REASON, REPAIR, SERVICE, SOURCE, SUBMITTED_BY, Coordinates, header
from shared.events.installation import OWNERSHIP_KEY, decode_ownership
from shared.events.payments import decode_accepted
from spark.lake import Bounds, within
from spark.manifest import INPUTS, LANDED_TOPICS, VERSION, Manifest, Range, seal
from spark.night import Checked, Few, Night, frame
from spark.schemas import TABLES, UNDECODABLE, tables_of
from tests.partitions import PARTITIONS
from tests.world import World

Offsets = Mapping[tuple[str, int], int]
Rows = Mapping[str, Sequence[Mapping[str, Any]]]

_DECODE: Mapping[str, Callable[[bytes], Any]] = {
    catalogue.PAYMENTS_ACCEPTED: lambda value: decode_accepted(value)[0],
    catalogue.PAYMENTS_DEDUPLICATED: msgspec.json.Decoder(payments.Repeat).decode,
    catalogue.LEDGER_TRANSFERS: transfers.decode_transfer,
    catalogue.LEDGER_POSTINGS: postings.decode_ledger_event,
    catalogue.EFFECTS_REQUESTS: effects.decode_request,
    catalogue.EFFECTS_RESULTS: effects.decode_result,
    catalogue.EFFECTS_WAITING: effects.decode_waiting,
}
_REFERENCE: Mapping[str, tuple[str, str, Callable[[bytes], Any]]] = {
    catalogue.REFERENCE_FEES: ("reference_fees", "currency", reference.decode_fee),
    catalogue.REFERENCE_RATES: ("reference_rates", "pair", reference.decode_rate),
    catalogue.REFERENCE_SUBSCRIPTIONS: ("reference_subscriptions", "account", effects.decode_subscriptions),
}
"""Table, column of the key, and decoder of each topic of reference data."""


def ends(world: World) -> dict[tuple[str, int], int]:
    """The next offset of every partition."""
    return {
        (topic, number): world._next[topic, number] for topic in LANDED_TOPICS for number in range(world.partitions)
    }


def manifest(
    world: World,
    *,
    stops: Offsets | None = None,
    highs: Offsets | None = None,
    groups: Mapping[str, Mapping[int, int]] | None = None,
    settled: bool = True,
    previous: Manifest | None = None,
    beginnings: Offsets | None = None,
) -> Manifest:
    """A cut through a system, by default at its end and at rest.

    Args:
        stops: ends of the cut instead, by topic and partition.
        highs: high watermarks that differ from the ends of the cut.
        groups: committed offsets by service, instead of the system's.
        settled: see `Manifest`.
        previous: the cut before.
        beginnings: first offsets of logs, if not 0.
    """
    last = {**ends(world), **(stops or {})}
    topics: dict[str, dict[int, Range]] = {topic: {} for topic in LANDED_TOPICS}
    for (topic, number), end in last.items():
        start = previous.topics[topic][number].end if previous else 0
        high = (highs or {}).get((topic, number), end)
        topics[topic][number] = Range(start, end, high, (beginnings or {}).get((topic, number), 0))
    committed = {name: dict((groups or {}).get(name, world.committed[name])) for name in INPUTS}
    sequence, digest = (previous.sequence + 1, previous.digest) if previous else (1, "")
    return seal(Manifest(VERSION, sequence, 1, "cluster", topics, committed, settled, digest))


def night(
    spark: SparkSession,
    world: World,
    cut: Manifest | None = None,
    carried: Mapping[str, DataFrame] | None = None,
) -> Night:
    """A run's input over a cut, or over all of a system at rest."""
    of_run = cut or manifest(world)
    bounds = [(topic, number, of) for topic, ranges in of_run.topics.items() for number, of in ranges.items()]
    new = _rows(world, {(topic, number): (of.start, of.end) for topic, number, of in bounds})
    history = _rows(world, {(topic, number): (0, of.start) for topic, number, of in bounds})
    return night_of(spark, of_run, new, history, carried)


def night_of(
    spark: SparkSession,
    cut: Manifest,
    new: Rows,
    history: Rows | None = None,
    carried: Mapping[str, DataFrame] | None = None,
) -> Night:
    """A run's input from rows by table; columns that a row lacks are null."""
    before: Rows = history or {}
    left = carried or {}

    def history_rows(table: str, bounds: Bounds, /) -> DataFrame:
        return frame(spark, TABLES[table].schema, before.get(table, ())).where(within(bounds))

    return Night(
        spark,
        cut,
        lambda table: frame(spark, TABLES[table].schema, new.get(table, ())),
        history_rows,
        left.get,
    )


def _rows(world: World, bounds: Mapping[tuple[str, int], tuple[int, int]]) -> Rows:
    """Every table's rows between offsets, from and to by topic and partition."""
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for at, records in sorted(world.logs.items()):
        begin, end = bounds.get(at, (0, 0))
        for record in sorted(records, key=lambda one: one.offset):
            if begin <= record.offset < end:
                for table, row in _row(record):
                    found[table].append(row)
    return found


def _row(record: Record) -> Iterator[tuple[str, dict[str, Any]]]:
    """A record's table and row; none if it is not landed."""
    where = _where(record)
    value = None if record.value is None else b64encode(record.value).decode()
    headers = {name: _text(header(record.headers, name)) for name in (REASON, DETAIL, SERVICE)}
    if record.topic == catalogue.PAYMENTS_RAW:
        yield "payments_raw", {**where, "value": value, **_of_raw(record.value), **_submitted_by(record)}
    elif record.topic == catalogue.PAYMENTS_DEAD_LETTER:
        yield "dead_letters", {**where, "value": value, **headers, **_submitted_by(record), **_repair(record)}
    elif record.topic == catalogue.EFFECTS_DEAD_LETTER:
        yield "effect_dead_letters", {**where, "value": value, **headers, "effect_id": _effect_id(record.value)}
    elif record.topic == catalogue.EFFECTS_WAITING:
        key = (record.key or b"").decode()
        if key.startswith(effects.WAITING_PREFIX.decode()):
            effect_id = key.removeprefix(effects.WAITING_PREFIX.decode())
            waiting = None if record.value is None else effects.decode_waiting(record.value)
            due = {} if waiting is None else {"not_before_ms": waiting.not_before_ms}
            yield "effects_waiting", {**where, **due, "effect_id": effect_id, "deleted": waiting is None}
    elif record.topic in _REFERENCE:
        table, key_column, decode = _REFERENCE[record.topic]
        fields = {} if record.value is None else msgspec.to_builtins(decode(record.value))
        yield table, {**where, key_column: where["key"], "deleted": record.value is None, **fields}
    elif record.topic == catalogue.LEDGER_ACCOUNTS:
        terms = msgspec.structs.asdict(postings.decode_terms(record.value or b""))
        yield "account_terms", {**where, "account": where["key"], "deleted": False, **terms}
    elif record.topic == catalogue.INSTALLATION:
        if record.key == OWNERSHIP_KEY:
            ownership = msgspec.structs.asdict(decode_ownership(record.value or b""))
            yield "ownership", {**where, "deleted": False, **ownership}
    elif record.topic != catalogue.LEDGER_BALANCES:
        yield from _decoded(record, where)


def _repair(record: Record) -> dict[str, Any]:
    return {"repair": _text(header(record.headers, REPAIR))}


def _submitted_by(record: Record) -> dict[str, Any]:
    by = decode_submitted_by(header(record.headers, SUBMITTED_BY))
    return {"submitted_by": None if by is None else encode_submitted_by(by).decode()}


def _decoded(record: Record, where: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        event = _DECODE[record.topic](record.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError):
        yield UNDECODABLE, where
        return
    tag = event.__struct_config__.tag
    table = next(one for one in tables_of(record.topic) if one.tag in {"", tag})
    fields = msgspec.structs.asdict(event)
    if "entries" in fields:
        fields["entries"] = [msgspec.structs.asdict(entry) for entry in event.entries]
    fields |= places(fields)
    if isinstance(event, payments.Repeat):
        first = Coordinates.decode(event.first.encode())
        fields |= {"first_partition": first.partition, "first_offset": first.offset}
    fields |= _repair(record)
    names = {column.name for column in table.columns}
    yield table.name, {**where, **{name: value for name, value in fields.items() if name in names}}


def places(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The coordinates of reference records and the client among an event's fields, as their columns have them."""
    found = {name: fields[name] for name in ("priced_by", "notified_by") if name in fields}
    columns: dict[str, Any] = {
        name: None if by is None else list(msgspec.structs.astuple(by)) for name, by in found.items()
    }
    if "submitted_by" in fields:
        by = fields["submitted_by"]
        columns["submitted_by"] = None if by is None else encode_submitted_by(by).decode()
    return columns


def _where(record: Record) -> dict[str, Any]:
    arrived = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
    found: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": arrived.isoformat(),
        "key": _text(record.key),
        "day": arrived.date().isoformat(),
    }
    for name in (ORIGIN, SOURCE):
        try:
            at = Coordinates.decode(header(record.headers, name) or b"")
        except ValueError:
            continue
        found |= {f"{name}_{field}": value for field, value in at._asdict().items()}
    return found


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _of_raw(value: bytes | None) -> dict[str, Any]:
    """The fields of a raw record that is a payment or reversal."""
    try:
        event = validation.decode_payment(value, PARTITIONS)
    except validation.InvalidPaymentError:
        return {}
    return {"type": event.__struct_config__.tag, **msgspec.structs.asdict(event)}


def _effect_id(value: bytes | None) -> str | None:
    try:
        return effects.decode_request(value or b"").effect_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def found(checked: Checked) -> list[tuple[str, str, str]]:
    """Breaks of a check, in order: kind, comparison, and `topic:partition:offset`."""
    rows = rows_of(checked)
    return sorted((row["kind"], row["check"], f"{row['topic']}:{row['partition']}:{row['offset']}") for row in rows)


def rows_of(checked: Checked) -> list[Row]:
    """The breaks that a check found."""
    return [] if checked.breaks is None else checked.breaks.collect()


def kept(rows: Mapping[str, DataFrame | Few]) -> dict[str, DataFrame]:
    """Tables that a run carries over, written and read back."""
    return {name: one.sparkSession.createDataFrame(one.collect(), one.schema) for name, one in tables(rows).items()}


def tables(rows: Mapping[str, DataFrame | Few]) -> dict[str, DataFrame]:
    """Tables that a run carries over, the small ones as well."""
    spark = SparkSession.active()
    return {name: frame(spark, *one) if isinstance(one, Few) else one for name, one in rows.items()}
