"""Traces of messages and of the coordinator's records, against Kafka's own definitions of them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.kafka.admin.transaction_state import Status, decode_key, decode_value
from shared.kafka.protocol.codec import encode
from shared.kafka.protocol.definitions import valid_versions
from shared.kafka.protocol.headers import encode_request, encode_response, framed
from shared.kafka.protocol.primitives import ProtocolDecodeError
from shared.kafka.txntrace import frames
from shared.kafka.txntrace.frames import Fields, request_fields, request_header, response_fields
from tests.unit.test_kafka_batches import TRANSACTIONAL
from tests.unit.test_kafka_batches import encode as encode_batch

TID, PRODUCER, EPOCH = "ledger-ledger.transfers-3", 4_001, 7
IDENTITY = {"transactional_id": TID, "producer_id": PRODUCER, "producer_epoch": EPOCH}
TXN = {"TransactionalId": TID, "ProducerId": PRODUCER, "ProducerEpoch": EPOCH}
BATCH = encode_batch(0, count=3, producer=PRODUCER, epoch=EPOCH, attributes=TRANSACTIONAL)


def topics(name: str, *partitions: Any, of: str = "Partitions", topic: str = "Name") -> list[dict[str, Any]]:
    return [{topic: name, of: list(partitions)}, {topic: "other", of: list(partitions[:1])}]


def errors(name: str, of: str, index: str, code: str) -> list[dict[str, Any]]:
    return topics(name, {index: 0, code: 0}, {index: 4, code: 51}, of=of)


ANSWERED = {"errors": {"t:0": "NONE", "t:4": "CONCURRENT_TRANSACTIONS", "other:0": "NONE"}}

REQUESTS: dict[str, tuple[int, dict[str, Any], Fields]] = {
    "FindCoordinatorRequest": (
        frames.FIND_COORDINATOR,
        {"Key": TID, "KeyType": 1},
        {"key": TID, "key_type": "TRANSACTION"},
    ),
    "InitProducerIdRequest": (
        frames.INIT_PRODUCER_ID,
        {"TransactionalId": TID, "TransactionTimeoutMs": 10_000},
        {"transactional_id": TID, "transaction_timeout_ms": 10_000},
    ),
    "AddPartitionsToTxnRequest": (
        frames.ADD_PARTITIONS_TO_TXN,
        {f"V3AndBelow{name}": value for name, value in TXN.items()} | {"V3AndBelowTopics": topics("t", 0, 4)},
        IDENTITY | {"partitions": ["t:0", "t:4", "other:0"]},
    ),
    "ProduceRequest": (
        frames.PRODUCE,
        {
            "TransactionalId": TID,
            "Acks": -1,
            "TimeoutMs": 10_000,
            "TopicData": [{"Name": "t", "PartitionData": [{"Index": 4, "Records": BATCH}]}],
        },
        IDENTITY | {"acks": -1, "batches": {"t:4": [{"base_sequence": 5, "records": 3, "size_bytes": len(BATCH)}]}},
    ),
    "AddOffsetsToTxnRequest": (frames.ADD_OFFSETS_TO_TXN, TXN | {"GroupId": "ledger"}, IDENTITY | {"group": "ledger"}),
    "TxnOffsetCommitRequest": (
        frames.TXN_OFFSET_COMMIT,
        TXN
        | {
            "GroupId": "ledger",
            "Topics": topics("t", {"PartitionIndex": 4, "CommittedOffset": 99, "CommittedMetadata": "secret"}),
        },
        IDENTITY | {"group": "ledger", "offsets": {"t:4": 99, "other:4": 99}},
    ),
    "EndTxnRequest": (frames.END_TXN, TXN | {"Committed": True}, IDENTITY | {"result": "COMMIT"}),
}

RESPONSES: dict[str, tuple[int, dict[str, Any], Fields]] = {
    "FindCoordinatorResponse": (
        frames.FIND_COORDINATOR,
        {"ErrorCode": 15, "NodeId": 2, "Host": "127.0.0.1", "Port": 9092},
        {"error": "COORDINATOR_NOT_AVAILABLE", "node_id": 2, "address": "127.0.0.1:9092"},
    ),
    "InitProducerIdResponse": (
        frames.INIT_PRODUCER_ID,
        {"ProducerId": PRODUCER, "ProducerEpoch": EPOCH},
        {"error": "NONE", "producer_id": PRODUCER, "producer_epoch": EPOCH},
    ),
    "AddPartitionsToTxnResponse": (
        frames.ADD_PARTITIONS_TO_TXN,
        {"ResultsByTopicV3AndBelow": errors("t", "ResultsByPartition", "PartitionIndex", "PartitionErrorCode")},
        ANSWERED,
    ),
    "ProduceResponse": (
        frames.PRODUCE,
        {"Responses": topics("t", {"Index": 4, "ErrorCode": 47, "BaseOffset": 812}, of="PartitionResponses")},
        {
            "errors": {"t:4": "INVALID_PRODUCER_EPOCH", "other:4": "INVALID_PRODUCER_EPOCH"},
            "base_offsets": {"t:4": 812, "other:4": 812},
        },
    ),
    "AddOffsetsToTxnResponse": (frames.ADD_OFFSETS_TO_TXN, {"ErrorCode": 0}, {"error": "NONE"}),
    "TxnOffsetCommitResponse": (
        frames.TXN_OFFSET_COMMIT,
        {"Topics": errors("t", "Partitions", "PartitionIndex", "ErrorCode")},
        ANSWERED,
    ),
    "EndTxnResponse": (frames.END_TXN, {"ErrorCode": 48}, {"error": "INVALID_TXN_STATE"}),
}


def known(name: str, api_key: int) -> list[int]:
    """The versions that this Kafka accepts and the trace decodes."""
    found = [version for version in valid_versions(name) if version in frames.VERSIONS[api_key]]
    assert found, f"this Kafka accepts no version of {name} that is decoded"
    return found


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_are_read_as_kafka_defines_them(name: str) -> None:
    api_key, values, fields = REQUESTS[name]
    for version in known(name, api_key):
        if name == "FindCoordinatorRequest" and version == 0:
            continue  # it knows groups only
        api = name.removesuffix("Request")
        written = framed(encode_request(api, version, values, correlation_id=77, client_id=TID))
        assert request_header(written) == (api_key, version, 77, TID)
        assert request_fields(written) == fields
        with pytest.raises(ProtocolDecodeError):
            request_fields(written[:-1])
        with pytest.raises(ProtocolDecodeError, match="not one request"):
            request_header(written[:-1])


def test_the_first_find_coordinator_asks_for_a_group() -> None:
    written = framed(encode_request("FindCoordinator", 0, {"Key": "ledger"}))
    assert request_fields(written) == {"key": "ledger", "key_type": "GROUP"}


@pytest.mark.parametrize("name", RESPONSES)
def test_responses_are_read_as_kafka_defines_them(name: str) -> None:
    api_key, values, fields = RESPONSES[name]
    for version in known(name, api_key):
        frame = encode_response(name.removesuffix("Response"), version, values, correlation_id=77)
        assert response_fields(api_key, version, frame) == fields
        with pytest.raises(ProtocolDecodeError, match="left"):
            response_fields(api_key, version, frame + b"\x00")


int8, int16, int32, int64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (7, 15, 31, 63))
names = st.text(max_size=200)
partitions = st.lists(
    st.fixed_dictionaries({"Topic": names, "PartitionIds": st.lists(int32, max_size=200)}), max_size=5
)
states = st.fixed_dictionaries(
    {
        "ProducerId": int64,
        "ProducerEpoch": int16,
        "TransactionTimeoutMs": int32,
        "TransactionStatus": st.integers(0, 7),
        "TransactionPartitions": st.none() | partitions,
        "TransactionLastUpdateTimestampMs": int64,
        "TransactionStartTimestampMs": int64,
    }
)
tags = st.fixed_dictionaries(
    {},
    optional={
        "PreviousProducerId": int64,
        "NextProducerId": int64,
        "ClientTransactionVersion": int16,
        "NextProducerEpoch": int16,
    },
)


@settings(deadline=None)
@given(states, tags, st.integers(0, 1))
def test_states_are_read_as_kafka_defines_them(values: dict[str, Any], tagged: dict[str, Any], version: int) -> None:
    sent = values | (tagged if version else {})
    state = decode_value(version.to_bytes(2, "big") + encode("TransactionLogValue", version, sent))
    assert (state.version, state.producer_id) == (version, sent["ProducerId"])
    assert state.producer_epoch == sent["ProducerEpoch"]
    assert list(Status).index(state.status) == sent["TransactionStatus"]
    assert state.timeout_ms == sent["TransactionTimeoutMs"]
    assert state.last_update_ms == sent["TransactionLastUpdateTimestampMs"]
    assert state.start_ms == sent["TransactionStartTimestampMs"]
    topics = sent["TransactionPartitions"] or ()
    listed = [(topic["Topic"], number) for topic in topics for number in topic["PartitionIds"]]
    assert list(state.partitions) == sorted(listed)
    assert state.previous_producer_id == sent.get("PreviousProducerId", -1)
    assert state.next_producer_id == sent.get("NextProducerId", -1)
    assert state.client_version == sent.get("ClientTransactionVersion", 0)
    assert state.next_producer_epoch == sent.get("NextProducerEpoch", -1)


@settings(deadline=None)
@given(states, tags, st.integers(0, 1), st.data())
def test_no_part_of_a_state_is_taken_for_a_whole_one(
    values: dict[str, Any], tagged: dict[str, Any], version: int, data: st.DataObject
) -> None:
    whole = version.to_bytes(2, "big") + encode("TransactionLogValue", version, values | (tagged if version else {}))
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ProtocolDecodeError):
        decode_value(whole[:cut])
    with pytest.raises(ProtocolDecodeError):
        decode_value(whole + b"\x00")


def test_kafka_writes_no_other_versions_of_the_state_log() -> None:
    assert valid_versions("TransactionLogValue") == range(2)
    assert valid_versions("TransactionLogKey") == range(1)


@given(names)
def test_keys_are_read_as_kafka_defines_them(name: str) -> None:
    assert decode_key(b"\x00\x00" + encode("TransactionLogKey", 0, {"TransactionalId": name})) == name
