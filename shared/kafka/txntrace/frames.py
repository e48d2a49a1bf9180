"""Requests and responses of a transaction, decoded from the bytes on the wire. Pure.

The decoder follows Kafka's own message definitions and shares no code with the client that wrote the bytes. So it shows
what the broker received.

Invariant: payloads are never decoded; only the header of a record batch is. Of requests that do not belong to a
transaction only the header is shown.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from aiokafka.errors import for_code

from shared.kafka.client.batches import Batch
from shared.kafka.client.batches import decode as decode_batches
from shared.kafka.protocol.codec import Values
from shared.kafka.protocol.headers import LENGTH, RequestHeader, decode_request, decode_request_header, decode_response
from shared.kafka.protocol.primitives import ProtocolDecodeError

PRODUCE: Final = 0
FIND_COORDINATOR: Final = 10
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS_TO_TXN: Final = 24
ADD_OFFSETS_TO_TXN: Final = 25
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28

API_NAMES: Final[dict[int, str]] = {
    PRODUCE: "Produce",
    3: "Metadata",
    FIND_COORDINATOR: "FindCoordinator",
    17: "SaslHandshake",
    18: "ApiVersions",
    INIT_PRODUCER_ID: "InitProducerId",
    ADD_PARTITIONS_TO_TXN: "AddPartitionsToTxn",
    ADD_OFFSETS_TO_TXN: "AddOffsetsToTxn",
    END_TXN: "EndTxn",
    TXN_OFFSET_COMMIT: "TxnOffsetCommit",
    36: "SaslAuthenticate",
}
"""APIs that a producer may call, by API key."""

GROUP, TRANSACTION = "GROUP", "TRANSACTION"
COORDINATOR_TYPES: Final = (GROUP, TRANSACTION)
SIZE_BYTES: Final = LENGTH.size
"""The length before each message."""

NO_ERROR: Final = "NONE"
BATCHES: Final = "batches"
"""The field of a Produce request with its batches' headers, by partition."""

UNDECODED: Final = "undecoded"
"""The field with the reason why a message's other fields are missing."""

Fields = dict[str, Any]
"""A message's fields by name; partitions are written `topic:partition`."""


def api_name(api_key: int) -> str:
    """Return Kafka's name of an API."""
    return API_NAMES.get(api_key, f"API {api_key}")


def request_header(written: bytes) -> RequestHeader:
    """Decode the header of a request.

    Args:
        written: the bytes written to the socket, including the length in front.

    Raises:
        ProtocolDecodeError: the bytes are not exactly one request.
    """
    left = len(written) - SIZE_BYTES
    if written[:SIZE_BYTES] != LENGTH.pack(max(left, 0)):
        raise ProtocolDecodeError(f"{left} bytes that are not one request")
    return decode_request_header(written[SIZE_BYTES:])


def request_fields(written: bytes) -> Fields:
    """Decode the fields of a transaction's request; empty for any other request or an unknown version.

    Args:
        written: as for `request_header`.

    Raises:
        ProtocolDecodeError: the bytes do not match the definition.
        CorruptBatchError: the bytes of a batch in it are corrupt.
    """
    request = written[SIZE_BYTES:]
    key, version, *_ = decode_request_header(request)
    if not _is_shown(key, version):
        return {}
    return _SHOWN[key].request(decode_request(API_NAMES[key], version, request))


def response_fields(api_key: int, version: int, frame: bytes) -> Fields:
    """Decode the fields of a response to a transaction's request, errors by Kafka's names; empty for any other.

    Args:
        api_key, version: of the request.
        frame: the bytes read from the socket, without the length in front.

    Raises:
        ProtocolDecodeError: the bytes do not match the definition.
    """
    if not _is_shown(api_key, version):
        return {}
    return _SHOWN[api_key].response(decode_response(API_NAMES[api_key], version, frame))


_Show = Callable[[Values], Fields]
"""Returns the fields that are shown of a message."""


class _Shown(NamedTuple):
    """An API's versions that are shown, those with the same fields, and how its messages are shown."""

    versions: range
    request: _Show
    response: _Show


def _is_shown(api_key: int, version: int) -> bool:
    return version in VERSIONS.get(api_key, ())


def _error(values: Values) -> Fields:
    return {"error": _error_name(values["ErrorCode"])}


def _error_name(code: int) -> str:
    return NO_ERROR if code == 0 else str(for_code(code).message)


def _producer(values: Values) -> Fields:
    return {"producer_id": values["ProducerId"], "producer_epoch": values["ProducerEpoch"]}


def _by_partition(topics: list[Values], partitions: str, number: str, shown: Callable[[Values], Any]) -> Fields:
    """Return what is shown of each partition; `partitions` and `number` are the definition's names."""
    return {f"{topic['Name']}:{part[number]}": shown(part) for topic in topics for part in topic[partitions]}


def _find_coordinator(values: Values) -> Fields:
    kind = values.get("KeyType", 0)  # the first version finds groups' coordinators only
    return {"key": values["Key"], "key_type": COORDINATOR_TYPES[kind] if kind in {0, 1} else str(kind)}


def _coordinator_found(values: Values) -> Fields:
    return _error(values) | {"node_id": values["NodeId"], "address": f"{values['Host']}:{values['Port']}"}


def _init_producer_id(values: Values) -> Fields:
    timeout_ms = values["TransactionTimeoutMs"]
    return {"transactional_id": values["TransactionalId"], "transaction_timeout_ms": timeout_ms}


def _add_partitions(values: Values) -> Fields:
    found = {name.removeprefix("V3AndBelow"): value for name, value in values.items()}
    partitions = [f"{topic['Name']}:{number}" for topic in found["Topics"] for number in topic["Partitions"]]
    return {"transactional_id": found["TransactionalId"]} | _producer(found) | {"partitions": partitions}


def _partitions_added(values: Values) -> Fields:
    results = values["ResultsByTopicV3AndBelow"]
    return {
        "errors": _by_partition(
            results, "ResultsByPartition", "PartitionIndex", lambda part: _error_name(part["PartitionErrorCode"])
        )
    }


def _produce(values: Values) -> Fields:
    sent: dict[str, list[Batch]] = _by_partition(
        values["TopicData"], "PartitionData", "Index", lambda part: decode_batches(part["Records"] or b"")
    )
    producers = {(batch.producer_id, batch.producer_epoch) for batches in sent.values() for batch in batches}
    if len(producers) != 1:
        raise ProtocolDecodeError(f"one request with batches of {len(producers)} producers")
    [(producer_id, producer_epoch)] = producers
    return {
        "transactional_id": values["TransactionalId"],
        "acks": values["Acks"],
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        BATCHES: {target: [_batch(batch) for batch in batches] for target, batches in sent.items()},
    }


def _batch(batch: Batch) -> Fields:
    return {
        "base_sequence": batch.base_sequence,
        "records": batch.last_offset - batch.base_offset + 1,
        "size_bytes": len(batch.data),
    }


def _produced(values: Values) -> Fields:
    def each(shown: Callable[[Values], Any]) -> Fields:
        return _by_partition(values["Responses"], "PartitionResponses", "Index", shown)

    return {
        "errors": each(lambda part: _error_name(part["ErrorCode"])),
        "base_offsets": each(lambda part: part["BaseOffset"]),
    }


def _add_offsets(values: Values) -> Fields:
    return {"transactional_id": values["TransactionalId"]} | _producer(values) | {"group": values["GroupId"]}


def _txn_offset_commit(values: Values) -> Fields:
    offsets = _by_partition(values["Topics"], "Partitions", "PartitionIndex", lambda part: part["CommittedOffset"])
    named = {"transactional_id": values["TransactionalId"], "group": values["GroupId"]}
    return named | _producer(values) | {"offsets": offsets}


def _offsets_committed(values: Values) -> Fields:
    errors = _by_partition(
        values["Topics"], "Partitions", "PartitionIndex", lambda part: _error_name(part["ErrorCode"])
    )
    return {"errors": errors}


def _end_txn(values: Values) -> Fields:
    named = {"transactional_id": values["TransactionalId"]} | _producer(values)
    return named | {"result": "COMMIT" if values["Committed"] else "ABORT"}


def _txn_ended(values: Values) -> Fields:
    return _error(values) | (_producer(values) if values.get("ProducerId", -1) >= 0 else {})


_SHOWN: Final = {
    PRODUCE: _Shown(range(3, 13), _produce, _produced),
    FIND_COORDINATOR: _Shown(range(4), _find_coordinator, _coordinator_found),
    INIT_PRODUCER_ID: _Shown(range(7), _init_producer_id, lambda values: _error(values) | _producer(values)),
    ADD_PARTITIONS_TO_TXN: _Shown(range(4), _add_partitions, _partitions_added),
    ADD_OFFSETS_TO_TXN: _Shown(range(5), _add_offsets, _error),
    TXN_OFFSET_COMMIT: _Shown(range(6), _txn_offset_commit, _offsets_committed),
    END_TXN: _Shown(range(6), _end_txn, _txn_ended),
}

VERSIONS: Final = {api_key: shown.versions for api_key, shown in _SHOWN.items()}
"""The versions whose fields are shown, of requests and responses alike."""
