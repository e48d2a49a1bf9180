"""Ask one broker, by a raw Metadata request, what it knows of the cluster.

A client library would pick a broker by itself, and the question here is whether *this* one answers and whether it
sees all the others. Metadata version 1 is the oldest that names the controller; Kafka 4 still answers it (KIP-896).
"""

import socket
import ssl
import struct
from dataclasses import dataclass

from deploy.local.ports import LOOPBACK

_METADATA_KEY, _METADATA_VERSION = 3, 1
_RESPONSE_BYTES_MAX = 16 * 1024 * 1024


class BrokerNotAnsweringError(RuntimeError):
    """The broker refused the connection, broke it, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition as a broker sees it. leader is -1 when there is none; replicas and isr are node ids."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A broker's answer: the live brokers' node ids, the controller's, and all partitions."""

    brokers: frozenset[int]
    controller: int
    partitions: tuple[PartitionView, ...]

    @property
    def in_sync(self) -> bool:
        """Whether every partition has a leader and all its replicas in sync."""
        return all(p.leader >= 0 and set(p.isr) == set(p.replicas) for p in self.partitions)


class _Reader:
    """Reads Kafka's primitive types from a response, in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, code: str) -> int:
        value: int = struct.unpack_from(f">{code}", self._data, self._at)[0]
        self._at += struct.calcsize(f">{code}")
        return value

    def string(self) -> str:
        length = self.number("h")
        if length < 0:
            return ""
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def numbers(self) -> tuple[int, ...]:
        return tuple(self.number("i") for _ in range(self.number("i")))


def encode_metadata_request(correlation_id: int) -> bytes:
    """A Metadata v1 request for all topics, with its length prefix."""
    client_id = b"once-probe"
    body = struct.pack(">hhih", _METADATA_KEY, _METADATA_VERSION, correlation_id, len(client_id)) + client_id
    body += struct.pack(">i", -1)  # a null array: all topics
    return struct.pack(">i", len(body)) + body


def decode_metadata_response(data: bytes) -> ClusterView:
    """Read a Metadata v1 response without its length prefix.

    Raises:
        struct.error: the response is shorter than it says.
    """
    reader = _Reader(data)
    reader.number("i")  # correlation id
    brokers = set()
    for _ in range(reader.number("i")):
        brokers.add(reader.number("i"))
        reader.string()  # host
        reader.number("i")  # port
        reader.string()  # rack
    controller = reader.number("i")
    partitions: list[PartitionView] = []
    for _ in range(reader.number("i")):
        reader.number("h")  # error
        topic = reader.string()
        reader.number("b")  # is internal
        for _ in range(reader.number("i")):
            reader.number("h")  # error
            index, leader = reader.number("i"), reader.number("i")
            partitions.append(PartitionView(topic, index, leader, reader.numbers(), reader.numbers()))
    return ClusterView(frozenset(brokers), controller, tuple(partitions))


def ask(port: int, timeout_s: float = 1.0, context: ssl.SSLContext | None = None) -> ClusterView:
    """Ask the broker on this loopback port.

    Args:
        port: its clients' port.
        timeout_s: for each step.
        context: for TLS; None for a broker without.

    Raises:
        BrokerNotAnsweringError: it gave no whole answer; each step may take `timeout_s` seconds.
    """
    try:
        with _connect(port, timeout_s, context) as connection:
            connection.sendall(encode_metadata_request(correlation_id=1))
            (size,) = struct.unpack(">i", _exactly(connection, 4))
            if not 0 < size <= _RESPONSE_BYTES_MAX:
                raise BrokerNotAnsweringError(f"{LOOPBACK}:{port} sent a response of {size} bytes")
            return decode_metadata_response(_exactly(connection, size))
    except (OSError, struct.error) as error:
        raise BrokerNotAnsweringError(f"{LOOPBACK}:{port}: {error}") from error


def _connect(port: int, timeout_s: float, context: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection((LOOPBACK, port), timeout=timeout_s)
    if context is None:
        return connection
    try:
        return context.wrap_socket(connection, server_hostname=LOOPBACK)
    except BaseException:
        connection.close()
        raise


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise BrokerNotAnsweringError("the connection was closed")
        data += chunk
    return data
