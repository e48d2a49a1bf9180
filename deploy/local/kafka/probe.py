"""Ask one broker, by a raw Metadata request, what it knows of the cluster.

A client library would pick a broker by itself, and the question here is whether *this* one answers and whether it
sees all the others. Metadata version 1 is the oldest that names the controller; Kafka 4 still answers it (KIP-896).
"""

import socket
import ssl
from dataclasses import dataclass

from deploy.local.ports import LOOPBACK
from shared.kafka.protocol.headers import LENGTH, decode_response, encode_request, framed
from shared.kafka.protocol.primitives import ProtocolDecodeError

_VERSION = 1
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


def encode_metadata_request() -> bytes:
    """Return a Metadata v1 request for all topics, with its length in front."""
    return framed(encode_request("Metadata", _VERSION, {"Topics": None}, client_id="once-probe"))


def decode_metadata_response(data: bytes) -> ClusterView:
    """Decode a Metadata v1 response without its length.

    Raises:
        ProtocolDecodeError: the bytes are not exactly one such response.
    """
    response = decode_response("Metadata", _VERSION, data)
    return ClusterView(
        frozenset(broker["NodeId"] for broker in response["Brokers"]),
        response["ControllerId"],
        tuple(
            PartitionView(
                topic["Name"],
                partition["PartitionIndex"],
                partition["LeaderId"],
                tuple(partition["ReplicaNodes"]),
                tuple(partition["IsrNodes"]),
            )
            for topic in response["Topics"]
            for partition in topic["Partitions"]
        ),
    )


def ask(port: int, timeout_s: float = 1.0, context: ssl.SSLContext | None = None, host: str = LOOPBACK) -> ClusterView:
    """Ask the broker at an address.

    Args:
        port: its clients' port.
        timeout_s: for each step.
        context: for TLS; None for a broker without.

    Raises:
        BrokerNotAnsweringError: it gave no whole answer; each step may take `timeout_s` seconds.
    """
    try:
        with _connect(host, port, timeout_s, context) as connection:
            connection.sendall(encode_metadata_request())
            (size,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
            if not 0 < size <= _RESPONSE_BYTES_MAX:
                raise BrokerNotAnsweringError(f"{host}:{port} sent a response of {size} bytes")
            return decode_metadata_response(_exactly(connection, size))
    except (OSError, ProtocolDecodeError) as error:
        raise BrokerNotAnsweringError(f"{host}:{port}: {error}") from error


def _connect(host: str, port: int, timeout_s: float, context: ssl.SSLContext | None) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=timeout_s)
    if context is None:
        return connection
    try:
        return context.wrap_socket(connection, server_hostname=host)
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
