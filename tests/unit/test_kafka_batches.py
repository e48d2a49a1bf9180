"""Record batches as bytes: decoded headers, and which batches are committed."""

import gzip
import struct
from collections.abc import Callable
from contextlib import suppress

import cramjam
import pytest

from deploy.drills.clients.record_batches import record_batch
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.clients import SubmittedBy
from shared.events.headers import SUBMITTED_BY, Headers
from shared.kafka.client.batches import Batch, CorruptBatchError, Marker, by_fate, decode
from shared.kafka.client.errors import RecordTooLargeError, classify, error_name, is_retriable
from shared.kafka.client.plain_producer import refuse_oversize
from shared.kafka.lineage.trace import _names, describe, submitted_by
from tests.batches import with_checksum

TRANSACTIONAL, CONTROL = 0x10, 0x20
RECORDS_AT = 61


def varint(value: int) -> bytes:
    """Zigzag, as records encode every number."""
    rest = (value << 1) ^ (value >> 63)
    encoded = b""
    while rest > 0x7F:
        encoded += bytes([(rest & 0x7F) | 0x80])
        rest >>= 7
    return encoded + bytes([rest])


def encode(
    base: int, *, count: int = 1, producer: int = 7, epoch: int = 0, attributes: int = 0, key: bytes = b"k"
) -> bytes:
    records = b""
    for delta in range(count):
        body = b"\x00" + varint(0) + varint(delta) + varint(len(key)) + key + varint(1) + b"v" + varint(0)
        records += varint(len(body)) + body
    after_length = struct.pack(">ibIhiqqqhii", 0, 2, 0, attributes, count - 1, 1000, 1000, producer, epoch, 5, count)
    return struct.pack(">qi", base, len(after_length) + len(records)) + after_length + records


def data(base: int, producer: int = 7, count: int = 1) -> Batch:
    return decode(encode(base, producer=producer, count=count, attributes=TRANSACTIONAL))[0]


def marker(base: int, kind: Marker, producer: int = 7) -> Batch:
    key = struct.pack(">HH", 0, kind.value)
    return decode(encode(base, producer=producer, attributes=TRANSACTIONAL | CONTROL, key=key))[0]


def test_decode_reads_what_the_header_says() -> None:
    [batch] = decode(encode(40, count=3, producer=9, epoch=2, attributes=TRANSACTIONAL))
    assert (batch.base_offset, batch.last_offset) == (40, 42)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 2, 5)
    assert (batch.is_transactional, batch.is_control, batch.timestamp_ms) == (True, False, 1000)
    assert batch.marker is None


@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_batch_that_is_cut_off_is_left_out(cut: int) -> None:
    whole = encode(0, count=2)
    batches = decode(whole + encode(2, count=2)[:cut])
    assert [batch.base_offset for batch in batches] == [0]
    assert batches[0].data == whole


def test_an_older_message_format_is_refused() -> None:
    old = bytearray(encode(0))
    old[16] = 1
    with pytest.raises(CorruptBatchError, match="message format 1"):
        decode(bytes(old))


@pytest.mark.parametrize("length", [-12, -1, 0, 48])
def test_a_batch_shorter_than_its_header_is_refused(length: int) -> None:
    odd = encode(0)
    with pytest.raises(CorruptBatchError, match=f"{length} bytes"):
        decode(odd[:8] + struct.pack(">i", length) + odd[12:])


@pytest.mark.parametrize(("attributes", "key"), [(TRANSACTIONAL | CONTROL, b""), (CONTROL | 1, b"\x00\x00\x00\x01")])
def test_a_control_batch_without_a_known_type_is_refused(attributes: int, key: bytes) -> None:
    [batch] = decode(encode(7, attributes=attributes, key=key))
    with pytest.raises(CorruptBatchError, match="offset 7"):
        _ = batch.marker


def test_a_wrong_checksum_is_refused() -> None:
    with pytest.raises(CorruptBatchError, match=r"t:3:40"):
        data(40).records(("t", 3))


def packed(data: bytes, codec: int, compress: Callable[[bytes], bytes]) -> Batch:
    """Compress a batch's records as a producer does."""
    whole = bytearray(data[:RECORDS_AT] + compress(data[RECORDS_AT:]))
    whole[8:12] = struct.pack(">i", len(whole) - 12)
    whole[22] |= codec
    return with_checksum(decode(bytes(whole))[0])


CODECS = pytest.mark.parametrize(
    ("codec", "compress"),
    [
        (1, gzip.compress),
        (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
        (3, lambda data: bytes(cramjam.lz4.compress(data))),
        (4, lambda data: bytes(cramjam.zstd.compress(data))),
    ],
    ids=["gzip", "snappy", "lz4", "zstd"],
)


@CODECS
def test_compressed_records_are_read(codec: int, compress: Callable[[bytes], bytes]) -> None:
    records = packed(encode(40, count=3), codec, compress).records(("t", 3))
    assert [(record.offset, record.value) for record in records] == [(40, b"v"), (41, b"v"), (42, b"v")]


@CODECS
def test_records_that_cannot_be_decompressed_are_refused(codec: int, compress: Callable[[bytes], bytes]) -> None:
    for at in range(24):

        def damaged(data: bytes, at: int = at) -> bytes:
            sound = compress(data)
            return sound[:at] + b"\xff" + sound[at + 1 :]

        with suppress(CorruptBatchError):
            packed(encode(40, count=3), codec, damaged).records(("t", 3))
    with pytest.raises(CorruptBatchError, match=r"t:3:40 cannot be read"):
        packed(encode(40), codec, lambda _: b"\xff" * 40).records(("t", 3))


@pytest.mark.parametrize("attributes", [0, 1])
def test_a_header_name_that_is_not_utf8_is_decoded_as_the_java_client_does(attributes: int) -> None:
    plain = record_batch([(b"k", b"\xff"), (None, None)], headers=(("name", b"\xfe"), ("source", b"")))
    data = plain.data.replace(b"name", b"n\xffme")
    batch = packed(data, 1, gzip.compress) if attributes else with_checksum(decode(data)[0])
    headers = (("n\ufffdme", b"\xfe"), ("source", b""))
    assert batch.records(("t", 3)) == [
        Record("t", 3, 0, 0, b"k", b"\xff", headers),
        Record("t", 3, 1, 0, None, None, headers),
    ]


@pytest.mark.parametrize("kind", list(Marker))
def test_a_marker_says_how_the_transaction_ended(kind: Marker) -> None:
    assert marker(5, kind).marker is kind


def test_contains_looks_into_the_bytes_and_never_rules_out_a_compressed_batch() -> None:
    plain = decode(encode(0, key=b"payments.raw:3:1"))[0]
    assert plain.contains(b"payments.raw:3:1")
    assert not plain.contains(b"payments.raw:4:1")
    assert decode(encode(0, attributes=1))[0].contains(b"anything")


def test_by_fate_drops_markers_and_separates_what_was_aborted() -> None:
    log = [
        data(0, producer=1),
        data(1, producer=2),
        marker(2, Marker.ABORT, producer=1),
        data(3, producer=1),
        marker(4, Marker.COMMIT, producer=2),
        marker(5, Marker.COMMIT, producer=1),
        decode(encode(6, producer=1))[0],
    ]
    committed, aborted = by_fate(log, [(1, 0)])
    assert [batch.base_offset for batch in committed] == [1, 3, 6]
    assert [batch.base_offset for batch in aborted] == [0]


def test_by_fate_sees_the_second_abort_of_the_same_producer() -> None:
    log = [data(0), marker(1, Marker.ABORT), data(2), marker(3, Marker.COMMIT), data(4), marker(5, Marker.ABORT)]
    committed, aborted = by_fate(log, [(7, 4), (7, 0)])
    assert [batch.base_offset for batch in committed] == [2]
    assert [batch.base_offset for batch in aborted] == [0, 4]


def test_an_abort_that_began_before_the_fetch_hides_its_remaining_batches() -> None:
    committed, aborted = by_fate([data(10), marker(11, Marker.ABORT), data(12)], [(7, 3)])
    assert [batch.base_offset for batch in committed] == [12]
    assert [batch.base_offset for batch in aborted] == [10]


class GroupCoordinatorNotAvailableError(Exception):
    """Named as in the client library."""


class OddError(Exception):
    """An error that no table has."""


def test_errors_have_kafkas_names() -> None:
    assert error_name(GroupCoordinatorNotAvailableError()) == "CoordinatorNotAvailableError"
    assert type(classify(GroupCoordinatorNotAvailableError())).__name__ == "UnknownOutcomeError"
    assert type(classify(OddError("odd"))).__name__ == "FatalError"
    assert is_retriable(TimeoutError())
    assert not is_retriable(OddError())


def test_an_error_of_the_runtime_stays_as_it_is() -> None:
    fatal = classify(OddError())
    assert classify(fatal) is fatal


def test_an_oversize_record_is_refused_by_the_topics_own_limit() -> None:
    value = b"x" * (1024 * 1024)
    refuse_oversize(catalogue.PAYMENTS_DEAD_LETTER, b"k", value, (("reason", b"too_large"),))
    with pytest.raises(RecordTooLargeError, match="make it smaller"):
        refuse_oversize(catalogue.PAYMENTS_RAW, b"k", value, ())
    with pytest.raises(RecordTooLargeError):
        refuse_oversize(catalogue.PAYMENTS_RAW, None, None, (("detail", value),))


@pytest.mark.parametrize(
    ("topic", "value", "what"),
    [
        (catalogue.PAYMENTS_RAW, b"\xff", "raw"),
        (catalogue.PAYMENTS_ACCEPTED, b"{}", "accepted"),
        (catalogue.PAYMENTS_DEAD_LETTER, b"\xff", "dead letter: not_utf8"),
        (catalogue.PAYMENTS_DEDUPLICATED, b'{"first":"payments.raw:1:2"}', "repeat of payments.raw:1:2"),
        (catalogue.LEDGER_TRANSFERS, b'{"type":"transfer"}', "transfer"),
        (catalogue.LEDGER_TRANSFERS, b'{"type":"credit_leg"}', "credit leg"),
        (catalogue.LEDGER_POSTINGS, b'{"type":"posting","leg":"debit"}', "debit posting"),
        (catalogue.LEDGER_POSTINGS, b'{"type":"decline","reason":"no_rate"}', "decline: no_rate"),
        (catalogue.LEDGER_POSTINGS, b'{"type":"account_opened","account":"a"}', "account opened"),
        (
            catalogue.LEDGER_POSTINGS,
            b'{"type":"decline","reason":"stale_version","opening":true}',
            "decline: stale_version",
        ),
        (catalogue.EFFECTS_REQUESTS, b'{"type":"effect","kind":"decline_notice"}', "decline notice asked for"),
        (catalogue.EFFECTS_REQUESTS, b'{"type":"resolution","action":"confirm"}', "decision: confirm"),
        (catalogue.EFFECTS_RESULTS, b'{"state":"in_doubt","request":{"kind":"receipt"}}', "effect in doubt"),
        (catalogue.EFFECTS_DEAD_LETTER, b'{"type":"effect","reason":null}', "dead letter: not_utf8"),
    ],
)
def test_describe_says_what_a_record_is(topic: str, value: bytes, what: str) -> None:
    assert describe(Record(topic, 0, 0, 0, None, value, (("reason", b"not_utf8"),))) == what


BY = SubmittedBy("acme", "0123456789abcdef")
IN_VALUE = b'{"type":"transfer","submitted_by":["acme","0123456789abcdef",false]}'


@pytest.mark.parametrize(
    ("topic", "value", "headers", "expected"),
    [
        (catalogue.PAYMENTS_RAW, b"\xff", ((SUBMITTED_BY, b"acme:0123456789abcdef"),), BY),
        (catalogue.PAYMENTS_RAW, IN_VALUE, (), None),
        (catalogue.PAYMENTS_RAW, b"{}", ((SUBMITTED_BY, b"acme"),), None),
        (catalogue.LEDGER_TRANSFERS, IN_VALUE, ((SUBMITTED_BY, b"other:"),), BY),
        (catalogue.LEDGER_POSTINGS, b"{}", (), None),
        (catalogue.LEDGER_POSTINGS, b"\xff", (), None),
        (catalogue.EFFECTS_REQUESTS, IN_VALUE, (), None),
    ],
)
def test_a_record_names_who_submitted_it(
    topic: str, value: bytes, headers: Headers, expected: SubmittedBy | None
) -> None:
    assert submitted_by(Record(topic, 0, 0, 0, None, value, headers)) == expected


def test_a_raw_record_nested_too_deeply_has_no_payment_id() -> None:
    assert not _names(b'{"unknown":' + b"[" * 5000, "p-1", None)
    assert _names(b'{"payment_id":"p-1"}', "p-1", None)
