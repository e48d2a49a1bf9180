"""Attempts of a principal on the brokers, each one real request, and the brokers' answers.

Invariant: an attempt that is let through changes nothing but its own transactional.ids: records go to a partition that
no topic has. The brokers check the rules first, so every answer but a denial means that the attempt was let through. It
shares the codec with the clients, and no connection.
"""

import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

from deploy.local.ports import LOOPBACK
from shared.kafka.admin.rules import Kind, Operation, Rule
from shared.kafka.client.access import Tls
from shared.kafka.protocol.codec import Values
from shared.kafka.protocol.headers import LENGTH, decode_response, encode_request, framed

DENIALS: Final = frozenset({29, 30, 31, 53})
"""TOPIC, GROUP, CLUSTER and TRANSACTIONAL_ID_AUTHORIZATION_FAILED."""
NO_PARTITION: Final = 999
_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_ANSWER_S: Final = 10.0


class Caller:
    """A connection to one broker under the identity of the TLS files; a context manager.

    Args:
        port: the broker's.
        tls: the files.
    """

    def __init__(self, port: int, tls: Tls) -> None:
        self._port, self._context = port, tls.context()

    def __enter__(self) -> Self:
        raw = socket.create_connection((LOOPBACK, self._port), timeout=_ANSWER_S)
        self._connection: ssl.SSLSocket = self._context.wrap_socket(raw, server_hostname=LOOPBACK)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, name: str, version: int, values: Values) -> Values:
        """Send a request, such as Produce, and wait for the answer."""
        self._connection.sendall(framed(encode_request(name, version, values)))
        (size,) = LENGTH.unpack(self._exactly(LENGTH.size))
        return decode_response(name, version, self._exactly(size))

    def denied(self, wanted: Rule) -> bool:
        """Try the operation of a rule; returns whether it is denied."""
        codes = set(_codes(self.ask(*_attempt(wanted))))
        assert codes, f"{wanted}: the answer has no error code"
        return bool(codes & DENIALS)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self._connection.recv(size - len(data))
            assert chunk, "the broker closed the connection"
            data += chunk
        return data


def _codes(value: Any) -> Iterator[int]:
    """Every error code in an answer, however deep."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "ErrorCode":
                yield inner
            else:
                yield from _codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _codes(inner)


Request = tuple[str, int, Values]
"""Name, version and values."""


def _attempt(wanted: Rule) -> Request:
    return _ATTEMPTS[wanted.kind, wanted.operation](wanted.name)


def _produce(name: str) -> Request:
    data = {"Name": name, "PartitionData": [{"Index": NO_PARTITION, "Records": b""}]}
    return "Produce", 7, {"Acks": -1, "TimeoutMs": 5000, "TopicData": [data]}


def _fetch(name: str) -> Request:
    part = {"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1}
    return "Fetch", 4, {"ReplicaId": -1, "MaxBytes": 1, "Topics": [{"Topic": name, "Partitions": [part]}]}


def _list_offsets(name: str) -> Request:
    part = {"PartitionIndex": 0, "Timestamp": -1}
    return "ListOffsets", 1, {"ReplicaId": -1, "Topics": [{"Name": name, "Partitions": [part]}]}


def _configs(resource_type: int, name: str) -> Request:
    resource = {"ResourceType": resource_type, "ResourceName": name, "ConfigurationKeys": ["retention.ms"]}
    return "DescribeConfigs", 1, {"Resources": [resource]}


_ATTEMPTS: Final[dict[tuple[Kind, Operation], Callable[[str], Request]]] = {
    (Kind.TOPIC, Operation.WRITE): _produce,
    (Kind.TOPIC, Operation.READ): _fetch,
    (Kind.TOPIC, Operation.DESCRIBE): _list_offsets,
    (Kind.TOPIC, Operation.DESCRIBE_CONFIGS): lambda name: _configs(_TOPIC_RESOURCE, name),
    (Kind.GROUP, Operation.READ): lambda name: (
        "Heartbeat",
        0,
        {"GroupId": name, "GenerationId": 0, "MemberId": "unknown"},
    ),
    (Kind.GROUP, Operation.DESCRIBE): lambda name: ("FindCoordinator", 1, {"Key": name, "KeyType": 0}),
    (Kind.TRANSACTIONAL_ID, Operation.WRITE): lambda name: (
        "InitProducerId",
        0,
        {"TransactionalId": name, "TransactionTimeoutMs": 1000},
    ),
    (Kind.TRANSACTIONAL_ID, Operation.DESCRIBE): lambda name: ("FindCoordinator", 1, {"Key": name, "KeyType": 1}),
    (Kind.CLUSTER, Operation.DESCRIBE_CONFIGS): lambda _: _configs(_BROKER_RESOURCE, "0"),
    (Kind.CLUSTER, Operation.DESCRIBE): lambda _: (
        "DescribeQuorum",
        1,
        {"Topics": [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]},
    ),
}

OPERATOR_REQUESTS: Final[tuple[Request, ...]] = (
    ("CreateTopics", 2, {"Topics": [{"Name": "mine", "NumPartitions": 1, "ReplicationFactor": 1}], "timeoutMs": 5000}),
    (
        "DeleteRecords",
        0,
        {
            "Topics": [{"Name": "ledger.postings", "Partitions": [{"PartitionIndex": 0, "Offset": 0}]}],
            "TimeoutMs": 5000,
        },
    ),
    (
        "CreateAcls",
        1,
        {
            "Creations": [
                {
                    "ResourceType": 2,
                    "ResourceName": "ledger.postings",
                    "ResourcePatternType": 3,
                    "Principal": "User:ingest",
                    "Host": "*",
                    "Operation": 4,
                    "PermissionType": 3,
                }
            ]
        },
    ),
    (
        "WriteTxnMarkers",
        1,
        {
            "Markers": [
                {
                    "ProducerId": 0,
                    "ProducerEpoch": 0,
                    "TransactionResult": True,
                    "Topics": [{"Name": "ledger.postings", "PartitionIndexes": [0]}],
                    "CoordinatorEpoch": 0,
                }
            ]
        },
    ),
    ("DeleteGroups", 0, {"GroupsNames": ["ledger"]}),
)
"""Requests that no rule allows: administration, reserved for the operator."""


def is_refused(caller: Caller, request: Request) -> bool:
    """Try one of OPERATOR_REQUESTS; returns whether it is denied."""
    return bool(set(_codes(caller.ask(*request))) & DENIALS)
