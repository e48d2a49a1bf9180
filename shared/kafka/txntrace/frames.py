"""Requests and responses of a transaction, decoded from the bytes on the wire. Pure.

The decoder follows Kafka's message definitions (common/message/*.json in kafka-clients) and shares no code with the
client that wrote the bytes. So it shows what the broker received.

Invariant: payloads are never decoded; only the header of a record batch is. Of requests that do not belong to a
transaction only the header is shown.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from aiokafka.errors import for_code

from shared.kafka.client.batches import decode as decode_batches
from shared.kafka.client.primitives import ProtocolDecodeError, Reader

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
SIZE_BYTES: Final = 4
"""The length before each message."""

NO_ERROR: Final = "NONE"
BATCHES: Final = "batches"
"""The field of a Produce request with its batches' headers, by partition."""

UNDECODED: Final = "undecoded"
"""The field with the reason why a message's other fields are missing."""

Fields = dict[str, Any]
"""A message's fields by name; partitions are written `topic:partition`."""


class Header(NamedTuple):
    """The header of every request.

    Attributes:
        client_id: None when the request has none.
    """

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None

    @property
    def api(self) -> str:
        """Kafka's name of the API."""
        return API_NAMES.get(self.api_key, f"API {self.api_key}")


def request_header(written: bytes) -> Header:
    """Decode the header of a request.

    Args:
        written: the bytes written to the socket, including the length in front.

    Raises:
        ProtocolDecodeError: the bytes are not exactly one request.
    """
    reader = Reader(written)
    size = reader.int32()
    if size != reader.left:
        raise ProtocolDecodeError(f"a request of {size} bytes was written as {reader.left}")
    return _header(reader)


def request_fields(written: bytes) -> Fields:
    """Decode the fields of a transaction's request; empty for any other request or an unknown version.

    Args:
        written: as for `request_header`.

    Raises:
        ProtocolDecodeError: the bytes do not match the schema.
        CorruptBatchError: the bytes of a batch in it are corrupt.
    """
    reader = Reader(written, SIZE_BYTES)
    header = _header(reader)
    return _decoded(_REQUESTS, reader, header.api_key, header.version)


def response_correlation_id(frame: bytes) -> int:
    """Decode a response's correlation id.

    Args:
        frame: the bytes read from the socket, without the length in front.

    Raises:
        ProtocolDecodeError: it is too short for a response.
    """
    return Reader(frame).int32()


def response_fields(api_key: int, version: int, frame: bytes) -> Fields:
    """Decode the fields of a response to a transaction's request, errors by Kafka's names; empty for any other.

    Args:
        api_key, version: of the request.
        frame: as for `response_correlation_id`.

    Raises:
        ProtocolDecodeError: the bytes do not match the schema.
    """
    return _decoded(_RESPONSES, Reader(frame, SIZE_BYTES), api_key, version)


_Decoder = Callable[[Reader, int], Fields]


def _header(reader: Reader) -> Header:
    return Header(reader.int16(), reader.int16(), reader.int32(), reader.string())


def _decoded(decoders: dict[int, _Decoder], reader: Reader, api_key: int, version: int) -> Fields:
    if version not in VERSIONS.get(api_key, ()):
        return {}
    fields = decoders[api_key](reader, version)
    if reader.left:
        raise ProtocolDecodeError(f"{reader.left} bytes are left after {API_NAMES[api_key]} v{version}")
    return fields


def _error(reader: Reader) -> str:
    code = reader.int16()
    return NO_ERROR if code == 0 else str(for_code(code).message)


def _producer(reader: Reader) -> Fields:
    return {"producer_id": reader.int64(), "producer_epoch": reader.int16()}


def _by_partition(reader: Reader, value: Callable[[], Any]) -> Fields:
    """Read an array of topics, each with an array of partitions; `value` reads what follows each partition's number."""

    def partition() -> tuple[int, Any]:
        return reader.int32(), value()

    def topic() -> Fields:
        name = reader.string()
        return {f"{name}:{number}": read for number, read in reader.array(partition)}

    return {target: read for found in reader.array(topic) for target, read in found.items()}


def _find_coordinator(reader: Reader, version: int) -> Fields:
    fields: Fields = {"key": reader.string()}
    kind = reader.int8() if version >= 1 else 0
    return fields | {"key_type": COORDINATOR_TYPES[kind] if kind in {0, 1} else str(kind)}


def _coordinator_found(reader: Reader, version: int) -> Fields:
    if version >= 1:
        reader.int32()  # the throttle time
    error = _error(reader)
    if version >= 1:
        reader.string()  # repeats the error
    return {"error": error, "node_id": reader.int32(), "address": f"{reader.string()}:{reader.int32()}"}


def _init_producer_id(reader: Reader, _version: int) -> Fields:
    return {"transactional_id": reader.string(), "transaction_timeout_ms": reader.int32()}


def _producer_id_given(reader: Reader, _version: int) -> Fields:
    reader.int32()
    return {"error": _error(reader)} | _producer(reader)


def _add_partitions(reader: Reader, _version: int) -> Fields:
    fields = {"transactional_id": reader.string()} | _producer(reader)
    return fields | {"partitions": list(_by_partition(reader, lambda: None))}


def _errors_by_partition(reader: Reader, _version: int) -> Fields:
    reader.int32()
    return {"errors": _by_partition(reader, lambda: _error(reader))}


def _produce(reader: Reader, _version: int) -> Fields:
    fields: Fields = {"transactional_id": reader.string(), "acks": reader.int16()}
    reader.int32()  # timeout for the replicas' acknowledgement
    sent = _by_partition(reader, lambda: decode_batches(reader.nullable_bytes() or b""))
    batches = [batch for found in sent.values() for batch in found]
    producers = {(batch.producer_id, batch.producer_epoch) for batch in batches}
    if len(producers) != 1:
        raise ProtocolDecodeError(f"one request with batches of {len(producers)} producers")
    [(fields["producer_id"], fields["producer_epoch"])] = producers
    fields[BATCHES] = {
        target: [
            {
                "base_sequence": batch.base_sequence,
                "records": batch.last_offset - batch.base_offset + 1,
                "size_bytes": len(batch.data),
            }
            for batch in found
        ]
        for target, found in sent.items()
    }
    return fields


def _produced(reader: Reader, version: int) -> Fields:
    def partition() -> tuple[str, int]:
        read = _error(reader), reader.int64()
        reader.int64()  # the append time, where the topic uses it
        if version >= 5:
            reader.int64()  # the log's start
        if version >= 8:
            reader.array(lambda: (reader.int32(), reader.string()))  # the refused records
            reader.string()
        return read

    answered = _by_partition(reader, partition)
    reader.int32()
    return {
        "errors": {target: error for target, (error, _) in answered.items()},
        "base_offsets": {target: offset for target, (_, offset) in answered.items()},
    }


def _add_offsets(reader: Reader, _version: int) -> Fields:
    return {"transactional_id": reader.string()} | _producer(reader) | {"group": reader.string()}


def _plain_error(reader: Reader, _version: int) -> Fields:
    reader.int32()
    return {"error": _error(reader)}


def _txn_offset_commit(reader: Reader, version: int) -> Fields:
    def offset() -> int:
        committed = reader.int64()
        if version >= 2:
            reader.int32()  # the leader's epoch
        reader.string()  # metadata: the client's own
        return committed

    fields: Fields = {"transactional_id": reader.string(), "group": reader.string()}
    return fields | _producer(reader) | {"offsets": _by_partition(reader, offset)}


def _end_txn(reader: Reader, _version: int) -> Fields:
    fields = {"transactional_id": reader.string()} | _producer(reader)
    return fields | {"result": "COMMIT" if reader.boolean() else "ABORT"}


# The versions before the flexible ones, and before those for several transactions
VERSIONS: Final[dict[int, range]] = {
    PRODUCE: range(3, 9),
    FIND_COORDINATOR: range(3),
    INIT_PRODUCER_ID: range(2),
    ADD_PARTITIONS_TO_TXN: range(3),
    ADD_OFFSETS_TO_TXN: range(3),
    END_TXN: range(3),
    TXN_OFFSET_COMMIT: range(3),
}
"""The versions that are decoded, of requests and responses alike."""

_REQUESTS: Final[dict[int, _Decoder]] = {
    PRODUCE: _produce,
    FIND_COORDINATOR: _find_coordinator,
    INIT_PRODUCER_ID: _init_producer_id,
    ADD_PARTITIONS_TO_TXN: _add_partitions,
    ADD_OFFSETS_TO_TXN: _add_offsets,
    END_TXN: _end_txn,
    TXN_OFFSET_COMMIT: _txn_offset_commit,
}

_RESPONSES: Final[dict[int, _Decoder]] = {
    PRODUCE: _produced,
    FIND_COORDINATOR: _coordinator_found,
    INIT_PRODUCER_ID: _producer_id_given,
    ADD_PARTITIONS_TO_TXN: _errors_by_partition,
    ADD_OFFSETS_TO_TXN: _plain_error,
    END_TXN: _plain_error,
    TXN_OFFSET_COMMIT: _errors_by_partition,
}
