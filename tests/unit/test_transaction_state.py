"""The coordinator's log as bytes, and its records of the newest transaction."""

import pytest

from shared.kafka.admin.transaction_state import (
    StateRecord,
    Status,
    TransactionState,
    begins,
    decode_key,
    decode_value,
    newest_transaction,
    partition_of,
)
from shared.kafka.protocol.primitives import ProtocolDecodeError

KEY = bytes.fromhex("0000 0006") + b"ledger"

# Written by hand from TransactionLogValue.json, field after field
VERSION_0 = bytes.fromhex(
    "0000"  # version
    "0000000000000fa1 0007 00002710"  # producer 4001, epoch 7, timeout 10 s
    "01"  # Ongoing
    "00000002"  # two topics
    "0001 74 00000002 00000001 00000000"  # t: partitions 1 and 0
    "0012 5f5f636f6e73756d65725f6f666673657473 00000001 00000005"  # __consumer_offsets: 5
    "000001941f29c07b 000001941f29c000"  # last update, start
)
VERSION_1 = bytes.fromhex(
    "0001"
    "0000000000000fa1 0007 00002710"
    "02"  # PrepareCommit
    "02"  # one topic
    "02 74 02 00000001 00"  # t: partition 1, no tagged fields
    "000001941f29c07b 000001941f29c000"
    "04"  # four tagged fields
    "00 08 0000000000000fa0"  # previous producer id
    "01 08 0000000000000fa2"  # next producer id
    "02 02 0002"  # the client's transaction version
    "03 02 0001"  # next producer epoch
)
NO_PARTITIONS = bytes.fromhex(
    "0001 0000000000000fa1 0007 00002710 00 00 000001941f29c07b ffffffffffffffff 00"  # Empty, null, never started
)


def test_golden_bytes_of_each_version() -> None:
    partitions = (("__consumer_offsets", 5), ("t", 0), ("t", 1))
    at_ms, start_ms = 1_735_689_617_531, 1_735_689_617_408
    assert decode_key(KEY) == "ledger"
    assert decode_value(VERSION_0) == TransactionState(0, 4001, 7, 10_000, Status.ONGOING, partitions, at_ms, start_ms)
    assert decode_value(VERSION_1) == TransactionState(
        1, 4001, 7, 10_000, Status.PREPARE_COMMIT, (("t", 1),), at_ms, start_ms, 4000, 4002, 2, 1
    )
    assert decode_value(NO_PARTITIONS) == TransactionState(1, 4001, 7, 10_000, Status.EMPTY, (), at_ms, -1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x00\x02" + VERSION_1[2:], "TransactionLogValue v2 is not known"),
        (VERSION_1[:16] + b"\x08" + VERSION_1[17:], "transaction state 8 is not known"),
        (VERSION_0 + b"\x00", "1 bytes are left"),
        (VERSION_1[:-1], "are left"),
        (b"", "2 bytes wanted at 0"),
    ],
)
def test_an_invalid_value_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolDecodeError, match=message):
        decode_value(data)


@pytest.mark.parametrize(
    "data", [b"\x00\x01" + KEY[2:], b"\x00\x00\xff\xff", KEY + b"\x00", KEY[:-1], b"\x00\x00\x00\x01\xff"]
)
def test_an_invalid_key_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolDecodeError):
        decode_key(data)


@pytest.mark.parametrize(
    ("transactional_id", "hash_code"),
    # Java's String.hashCode: over UTF-16 units, signed, including the number without an absolute value
    [("", 0), ("hello", 99162322), ("ledger-ledger.transfers-3", -748335251), ("\U0001f600", 1772899), ("é", 233)],
)
def test_the_partition_is_the_one_that_java_computes(transactional_id: str, hash_code: int) -> None:
    assert partition_of(transactional_id, 1 << 31) == abs(hash_code)
    assert partition_of(transactional_id, 50) == abs(hash_code) % 50


def test_the_hash_without_a_positive_counterpart_counts_as_zero() -> None:
    assert partition_of("polygenelubricants", 50) == 0  # its hash code is Integer.MIN_VALUE


def record(offset: int, status: Status) -> StateRecord:
    return StateRecord(offset, offset, TransactionState(1, 1, 0, 10_000, status, (), offset, offset))


E, O, P, C = Status.EMPTY, Status.ONGOING, Status.PREPARE_COMMIT, Status.COMPLETE_COMMIT  # noqa: E741


@pytest.mark.parametrize(
    ("statuses", "first"),
    [
        ([E, O, O, P, C], 1),
        ([E, O, O, P, C, O, P, C], 5),
        ([C, O, O], 1),
        ([O, P, C, E], 0),
        ([P, C, O, P, C, E, E], 2),
        ([E], 0),
        ([P, C], 0),
    ],
)
def test_the_newest_transaction_begins_with_its_first_ongoing(statuses: list[Status], first: int) -> None:
    states = [record(place, status) for place, status in enumerate(statuses)]
    assert [state.offset for state in newest_transaction(states)] == list(range(first, len(states)))


def test_a_transaction_begins_where_none_was_ongoing() -> None:
    states = [record(place, status) for place, status in enumerate([O, O, P, C, O])]
    assert [place for place in range(5) if begins(states, place)] == [0, 4]
    assert newest_transaction([]) == []
