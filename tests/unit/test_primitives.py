"""Kafka's types decoded from malformed bytes, and messages encoded from invalid values."""

import struct
from typing import Any

import pytest

from shared.kafka.protocol.codec import Values, decode, decode_record, encode
from shared.kafka.protocol.definitions import definition
from shared.kafka.protocol.primitives import (
    BYTES,
    COMPACT,
    TEXT,
    ProtocolDecodeError,
    array_of,
    encode_uvarint,
    number,
    read_uvarint,
    sized,
)

STRING, COMPACT_STRING = (sized("Name", TEXT, length, nullable=True) for length in ("int16", COMPACT))
NUMBERS, COMPACT_NUMBERS = (
    sized("Ids", array_of(number("int8")), length, nullable=True) for length in ("int32", COMPACT)
)


def test_nulls_differ_from_empty_values() -> None:
    assert [STRING.read(data, 0)[0] for data in (b"\xff\xff", b"\x00\x00")] == [None, ""]
    assert [COMPACT_STRING.read(data, 0)[0] for data in (b"\x00", b"\x01")] == [None, ""]
    data = sized("Records", BYTES, "int32", nullable=True)
    assert [data.read(sent, 0)[0] for sent in (b"\xff" * 4, b"\x00" * 4)] == [None, b""]
    assert [NUMBERS.read(sent, 0)[0] for sent in (b"\xff" * 4, b"\x00" * 4)] == [None, []]
    assert [COMPACT_NUMBERS.read(sent, 0)[0] for sent in (b"\x00", b"\x01")] == [None, []]
    heartbeat = "ConsumerGroupHeartbeatResponse"
    assert decode(heartbeat, 1, encode(heartbeat, 1, {}))["Assignment"] is None
    assert decode(heartbeat, 1, encode(heartbeat, 1, {"Assignment": {}}))["Assignment"] == {"TopicPartitions": []}


@pytest.mark.parametrize("codec", [STRING, COMPACT_STRING, NUMBERS, COMPACT_NUMBERS])
def test_a_null_round_trips(codec: Any) -> None:
    out: list[bytes] = []
    codec.write(out, None)
    assert codec.read(b"".join(out), 0) == (None, len(b"".join(out)))


def test_a_null_in_a_non_nullable_field_is_refused_in_both_directions() -> None:
    with pytest.raises(ProtocolDecodeError, match="TransactionalId is null"):
        decode("EndTxnRequest", 0, b"\xff\xff" + bytes(11))
    with pytest.raises(ValueError, match="TransactionalId is null"):
        encode("EndTxnRequest", 5, {"TransactionalId": None})


def test_an_array_cannot_have_more_items_than_bytes() -> None:
    with pytest.raises(ProtocolDecodeError, match="2147483647 items wanted at 4, 1 bytes are left"):
        NUMBERS.read(b"\x7f\xff\xff\xff\x00", 0)


@pytest.mark.parametrize("value", [0, 127, 128, 300, (1 << 32) - 1])
def test_a_varint_round_trips(value: int) -> None:
    encoded = encode_uvarint(value)
    assert read_uvarint(b"\xff" + encoded, 1) == (value, 1 + len(encoded))
    with pytest.raises(ProtocolDecodeError):
        read_uvarint(encoded[:-1], 0)


def test_a_number_that_never_ends_is_refused() -> None:
    with pytest.raises(ProtocolDecodeError, match="more than 5 bytes"):
        read_uvarint(b"\xff" * 9, 0)


@pytest.mark.parametrize("cut", [b"", b"\x00", b"\x00\x02a", b"\x00\x01\xff"])
def test_a_truncated_or_invalid_string_is_refused(cut: bytes) -> None:
    with pytest.raises(ProtocolDecodeError):
        decode("TransactionLogKey", 0, cut)
    with pytest.raises(ProtocolDecodeError):
        decode_record("TransactionLogKey", cut[:1])


OFFSETS = b"\x02t\x02\x00\x00\x00\x04" + bytes(8) + b"\xff\xff\xff\xff\x01"
"""A partition of TxnOffsetCommit v5, before its tagged fields."""


@pytest.mark.parametrize("tags", [b"\x00", b"\x01\x07\x02no", b"\x02\x00\x00\x7f\x01x"])
def test_tagged_fields_of_a_later_kafka_are_skipped(tags: bytes) -> None:
    head = b"\x03id\x02g" + bytes(8) + bytes(2) + b"\xff\xff\xff\xff\x01\x00\x02"
    values = decode("TxnOffsetCommitRequest", 5, head + OFFSETS + tags + tags + tags)
    [topic] = values["Topics"]
    assert topic["Partitions"][0]["PartitionIndex"] == 4
    with pytest.raises(ProtocolDecodeError, match="wanted at"):
        decode("TxnOffsetCommitRequest", 5, head + OFFSETS + b"\x01\x07\x7f")


EMPTY_STATE = bytes(8 + 2 + 4) + b"\x00\x01" + bytes(16)


def test_a_tagged_field_that_is_not_as_long_as_it_says_is_refused() -> None:
    assert decode("TransactionLogValue", 1, EMPTY_STATE + b"\x01\x02\x02\x00\x02")["ClientTransactionVersion"] == 2
    for tags in (b"\x01\x02\x03\x00\x02\x00", b"\x01\x02\x01\x00", b"\x01\x02\x01\x00\x02"):
        with pytest.raises(ProtocolDecodeError):
            decode("TransactionLogValue", 1, EMPTY_STATE + tags)


def test_a_tagged_field_is_written_only_where_it_is_not_the_default() -> None:
    assert encode("TransactionLogValue", 1, {"TransactionPartitions": [], "NextProducerId": -1})[-1:] == b"\x00"
    sent = {"NextProducerEpoch": 3, "NextProducerId": 5}
    assert encode("TransactionLogValue", 1, sent)[-15:] == b"\x02\x01\x08" + bytes(7) + b"\x05\x03\x02\x00\x03"


def test_defaults_belong_to_the_caller() -> None:
    responses = [decode("FetchResponse", 12, encode("FetchResponse", 12, {})) for _ in range(2)]
    responses[0]["Responses"].append("changed")
    assert responses[1]["Responses"] == []
    part: Values = {"PartitionIndex": 0, "HighWatermark": 1, "Records": b""}
    whole = encode("FetchResponse", 12, {"Responses": [{"Topic": "t", "Partitions": [part]}]})
    first, second = (decode("FetchResponse", 12, whole)["Responses"][0]["Partitions"][0] for _ in range(2))
    first["CurrentLeader"]["LeaderId"] = 7
    assert second["CurrentLeader"]["LeaderId"] == -1


@pytest.mark.parametrize(
    ("name", "version", "values", "message"),
    [
        ("EndTxnRequest", 5, {"Commited": True}, "EndTxnRequest v5 has no field Commited"),
        ("EndTxnRequest", 6, {}, "EndTxnRequest v6 is not known"),
        ("FindCoordinatorRequest", 0, {"KeyType": 1}, "FindCoordinatorRequest v0 has no field KeyType"),
        ("TxnOffsetCommitRequest", 2, {"GenerationId": 7}, "v2 has no field GenerationId"),
    ],
)
def test_a_value_that_would_be_lost_is_refused(name: str, version: int, values: Values, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(name, version, values)


def test_ignorable_fields_are_left_out() -> None:
    assert encode("FindCoordinatorRequest", 0, {"Key": "g", "KeyType": 0}) == b"\x00\x01g"
    assert encode("EndTxnResponse", 4, {"ProducerId": 9}) == encode("EndTxnResponse", 4, {})


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(struct.error):
        encode("EndTxnRequest", 0, {"ProducerEpoch": 1 << 15})


def test_a_message_that_is_not_defined_here_says_which_file_is_missing() -> None:
    with pytest.raises(FileNotFoundError, match=r"messages/VoteRequest\.json"):
        definition("VoteRequest")
    with pytest.raises(ProtocolDecodeError, match="EndTxnRequest v-1 is not known"):
        decode("EndTxnRequest", -1, b"")
