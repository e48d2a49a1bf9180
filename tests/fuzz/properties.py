"""Properties of each decoder for any bytes: a value, or a documented error.

Hypothesis and the coverage-guided fuzzer call the same functions. Invariant: a check raises only if the
decoder is wrong; a decoded value is no larger than its input can account for.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from deploy.load import pkdd99
from deploy.load.files import LINE_BYTES_MAX, LoadError, detect, lines_of, survey
from services.balances.api.parameters import EntriesQuery, RefusedError, decode_cursor
from services.gateway import commands, domain
from services.outbox.marks import decode_mark, encode_mark
from services.outbox.sinks.file import _effect_id
from shared.eos.progress import decode_next_offset
from shared.events import effects, operations, postings, reference, transfers
from shared.events.clients import OPERATOR
from shared.events.dead_letters import Reason
from shared.events.headers import ORIGIN_TIME, Coordinates, origin_time_ms
from shared.events.payments import decode_accepted, encode_accepted, encode_instruction
from shared.events.validation import InvalidPaymentError, decode_payment, key_of
from shared.http import keys
from shared.kafka.admin import transaction_state
from shared.kafka.client.batches import Batch, CorruptBatchError, decode
from shared.kafka.lineage import trace
from shared.kafka.protocol.codec import decode as decode_message
from shared.kafka.protocol.codec import encode as encode_message
from shared.kafka.protocol.headers import decode_correlation_id, encode_request_header, framed
from shared.kafka.protocol.primitives import ProtocolDecodeError
from shared.kafka.txntrace.frames import (
    VERSIONS,
    request_fields,
    request_header,
    response_fields,
)
from shared.kafka.txntrace.wire import Tap
from tests.batches import with_checksum
from tests.fuzz import seeds
from tests.partitions import PARTITIONS
from tests.property.test_protocol import NAMES

BATCH_BYTES_MIN: Final = 61
UNPACKED_LINES_MAX: Final = 1000

Check = Callable[[bytes], None]


class Property(NamedTuple):
    """A property of a decoder.

    Attributes:
        check: raises for bytes that violate the property.
        seeds: valid bytes, and bytes that were found to break it.
    """

    name: str
    check: Check
    seeds: tuple[bytes, ...]


def _expect(holds: bool, what: str) -> None:
    """Assert a property of an error."""
    assert holds, what


def _event(decode_event: Callable[[bytes], Any]) -> Check:
    def check(data: bytes) -> None:
        try:
            value = decode_event(data)
        except msgspec.DecodeError:
            return
        assert decode_event(msgspec.json.encode(value)) == value

    return check


def _payment(data: bytes) -> None:
    key, partition = key_of(data, PARTITIONS)
    assert 0 <= partition < 6
    domain.names_payment(data, "p")
    trace._names(data, "p", "a")
    try:
        instruction = decode_payment(data, PARTITIONS)
    except InvalidPaymentError as error:
        _expect(error.detail.isascii() and len(error.detail) < 1000, error.detail)
        return
    assert key == instruction.debtor.encode()
    accepted, extra = decode_accepted(encode_accepted(instruction, 1, OPERATOR))
    same = type(instruction)(*(getattr(accepted, name) for name in instruction.__struct_fields__))
    assert (same, extra) == (instruction, {})


def _request(data: bytes) -> None:
    for form in (
        lambda: domain.place(commands.with_payment_id(data, "k"), PARTITIONS),
        lambda: commands.batch(data),
        lambda: commands.opening(data, "k", PARTITIONS),
    ):
        try:
            form()
        except domain.RefusedError as error:
            _expect(error.status in {400, 422} and error.detail.isascii() and len(error.detail) < 1000, error.detail)


def _headers(data: bytes) -> None:
    time_ms = origin_time_ms(((ORIGIN_TIME, data),))
    assert time_ms is None or 0 <= time_ms < 10**18
    try:
        place = Coordinates.decode(data)
    except ValueError:
        return
    assert Coordinates.decode(place.encode()) == place


def _destination(data: bytes) -> None:
    try:
        effects.channel_of(data.decode())
    except ValueError as error:
        _expect(len(str(error)) < effects.DESTINATION_MAX_CHARS + 200, str(error))


def _batches(data: bytes) -> None:
    try:
        batches = decode(data)
    except CorruptBatchError:
        return
    assert sum(len(batch.data) for batch in batches) <= len(data)
    assert all(len(batch.data) >= BATCH_BYTES_MIN for batch in batches)
    for batch in batches:
        batch.contains(b"needle")
        for made in (batch, with_checksum(batch)):
            for ask in (_marker, _records):
                try:
                    ask(made)
                except CorruptBatchError:
                    continue


def _marker(batch: Batch) -> None:
    _ = batch.marker


def _records(batch: Batch) -> None:
    batch.records(("t", 0))


class _Connection:
    host, port = "127.0.0.1", 9092


def _frames(data: bytes) -> None:
    for decode_frame in (request_header, request_fields, decode_correlation_id):
        try:
            decode_frame(data)
        except (ProtocolDecodeError, CorruptBatchError):
            continue
    for api_key, versions in VERSIONS.items():
        for version in versions:
            try:
                response_fields(api_key, version, data)
            except ProtocolDecodeError:
                continue


def _wire(data: bytes) -> None:
    try:
        client = request_header(data).client_id
    except ProtocolDecodeError:
        client = ""
    tap, connection = Tap(str(client)), _Connection()
    tap.written(connection, data, 0.0)
    tap.written(connection, framed(encode_request_header("Produce", 7, correlation_id=7, client_id=None) + data), 0.0)
    tap.read(connection, data)
    tap.read(connection, (7).to_bytes(4, "big") + data)
    assert len(tap.frames) <= 4


def _message(data: bytes) -> None:
    name, version = NAMES[(data or b"\0")[0] % len(NAMES)], int.from_bytes(data[1:2])
    try:
        values = decode_message(name, version, data, 2)
    except ProtocolDecodeError:
        return
    assert decode_message(name, version, encode_message(name, version, values)) == values


def _state(data: bytes) -> None:
    for decode_state in (transaction_state.decode_key, transaction_state.decode_value):
        try:
            decode_state(data)
        except ProtocolDecodeError:
            continue


def _file(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(prefix="once-fuzz-", suffix=".csv") as file:
        file.write(data)
        file.flush()
        path = Path(file.name)
        for read in (_lines, detect, lambda path: survey(path, detect(path), {})):
            try:
                read(path)
            except LoadError:
                continue


def _lines(path: Path) -> None:
    for line in lines_of(path):
        assert len(line) <= LINE_BYTES_MAX
        assert b"\n" not in line


def _pkdd99(data: bytes) -> None:
    value, mapped = pkdd99.value_of(data, PARTITIONS)
    pkdd99.is_header(data)
    if not mapped:
        assert value == data
        return
    try:
        assert encode_instruction(decode_payment(value, PARTITIONS)) == value
    except InvalidPaymentError as error:  # the data set has amounts of 0, which ingest refuses
        _expect(error.reason in {Reason.AMOUNT_NOT_POSITIVE, Reason.FIELD_INVALID}, str(error))


def _keys(data: bytes) -> None:
    try:
        found = keys.parse(data)
    except keys.KeysError as error:
        _expect(error.__cause__ is None, str(error))
        return
    assert 1 <= len(found) <= keys.KEYS_MAX
    assert len(found.clients) <= len(found) <= keys.KEYS_PER_CLIENT_MAX * len(found.clients)


def _mark(data: bytes) -> None:
    _effect_id(data)
    try:
        mark = decode_mark(data)
    except ValueError:
        return
    assert decode_mark(encode_mark(mark)).state == mark.state


def _query(data: bytes) -> None:
    text = data.decode("latin-1")
    try:
        domain.coordinates(text, text, PARTITIONS)
    except domain.RefusedError as error:
        _expect(error.status == 400, str(error))
    try:
        decode_cursor("a", EntriesQuery(currency="EUR", after=text))
    except RefusedError:
        return


_EVENTS: Final[dict[str, Callable[[bytes], Any]]] = {
    "instruction": lambda value: decode_accepted(value)[0],
    "transfer": transfers.decode_transfer,
    "ledger_event": postings.decode_ledger_event,
    "account": postings.decode_account,
    "request": effects.decode_request,
    "result": effects.decode_result,
    "trust": effects.decode_trust,
    "waiting": effects.decode_waiting,
    "subscriptions": effects.decode_subscriptions,
    "fee": reference.decode_fee,
    "rate": reference.decode_rate,
    "expected_balance": reference.decode_expected_balance,
    "run_outcome": operations.decode_run_outcome,
    "next_offset": decode_next_offset,
}

PROPERTIES: Final[tuple[Property, ...]] = (
    *(Property(name, _event(decode_event), seeds.EVENTS) for name, decode_event in _EVENTS.items()),
    Property("payment", _payment, seeds.EVENTS),
    Property("request", _request, (*seeds.EVENTS, b'{"payments":[{}]}', b'{"account":"2378","command_id":"c"}')),
    Property("headers", _headers, (b"payments.raw:3:1207", b"1700000000000", b"1" * 5000)),
    Property("destination", _destination, (b"https://a.example/b", b"mailto:a@b.example", b"file:a", b"http://[a")),
    Property("batches", _batches, seeds.BATCHES),
    Property("frames", _frames, seeds.REQUESTS),
    Property("wire", _wire, seeds.REQUESTS),
    Property("message", _message, seeds.MESSAGES),
    Property("state", _state, seeds.STATES),
    Property("file", _file, seeds.FILES),
    Property("pkdd99", _pkdd99, tuple(seeds.LINES.splitlines())),
    Property("keys", _keys, (seeds.KEY_FILE,)),
    Property(
        "mark",
        _mark,
        (
            b"s\x01\x8b\xcf\xe5\x68\x00\x01\x01\x00",
            b"f\0\0\0\0\0\5\xac\x02\x02\x01",
            b"s|1|2|3|0",
            b'{"effect_id":"00"}',
        ),
    ),
    Property("query", _query, (b"3", b"MS4yLjM", b"")),
)
"""Every decoder of input from outside a process."""
