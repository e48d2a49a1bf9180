"""A tap on the client's connections: every request and response of one client, as bytes on the wire.

The client has no extension point for it, so two methods of its connection class are replaced while the tap is open.

Invariant: the recorded bytes are those written to the socket and read from it, and the client's own code runs
unchanged. No payload is kept. A message that cannot be decoded is recorded as such and causes no error.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import msgspec
from aiokafka.conn import AIOKafkaConnection

from shared.kafka.client.batches import CorruptBatchError
from shared.kafka.protocol.headers import RequestHeader, decode_correlation_id
from shared.kafka.protocol.primitives import ProtocolDecodeError
from shared.kafka.txntrace.frames import (
    SIZE_BYTES,
    UNDECODED,
    Fields,
    api_name,
    request_fields,
    request_header,
    response_fields,
)


class Direction(StrEnum):
    """The direction of a message."""

    REQUEST = "request"
    RESPONSE = "response"


class Frame(msgspec.Struct, frozen=True):
    """One message as it went over the wire.

    Attributes:
        at_ms: milliseconds since 1970 UTC. Of a request just before it is handed to the socket, of a response just
            after it is read: the broker works in between.
        broker: the address of the broker, host:port.
        connection: which of the client's connections, numbered from 1; correlation ids are unique within one.
        size_bytes: total size, including the length in front.
        fields: decoded fields; empty where only the header is shown.
    """

    direction: Direction
    at_ms: float
    broker: str
    connection: int
    api_key: int
    api: str
    version: int
    correlation_id: int
    size_bytes: int
    fields: Fields


class TapInUseError(Exception):
    """Another tap is open in this process."""


class Tap:
    """The recorded frames.

    Args:
        client_id: the client whose requests are recorded, as in each request's header.

    Attributes:
        frames: in order of time.
    """

    def __init__(self, client_id: str) -> None:
        self.frames: list[Frame] = []
        self._client_id = client_id
        self._connections: dict[Any, int] = {}
        self._unanswered: dict[tuple[int, int], RequestHeader] = {}

    def now_ms(self) -> float:
        """Return milliseconds since 1970 UTC, by the clock that brokers' timestamps are compared with."""
        return time.time() * 1000

    def written(self, connection: Any, data: bytes, at_ms: float) -> None:
        """Record a request.

        Args:
            connection: the connection that it was sent on.
            data: all bytes that were handed to the socket for it.
            at_ms: time of the write, by `now_ms`.
        """
        try:
            header = request_header(data)
        except ProtocolDecodeError:
            return  # the client cannot be identified
        if header.client_id == self._client_id:
            number = self._connections.setdefault(connection, len(self._connections) + 1)
            self._unanswered[number, header.correlation_id] = header
            self._record(Direction.REQUEST, at_ms, connection, header, len(data), lambda: request_fields(data))

    def read(self, connection: Any, frame: bytes) -> None:
        """Record a response, if it answers a recorded request.

        Args:
            connection: the connection that it was received on.
            frame: its bytes, without the length in front.
        """
        at_ms = self.now_ms()
        try:
            correlation_id = decode_correlation_id(frame)
        except ProtocolDecodeError:
            return
        header = self._unanswered.pop((self._connections.get(connection, 0), correlation_id), None)
        if header is not None:
            self._record(
                Direction.RESPONSE,
                at_ms,
                connection,
                header,
                SIZE_BYTES + len(frame),
                lambda: response_fields(header.api_key, header.version, frame),
            )

    def _record(
        self,
        direction: Direction,
        at_ms: float,
        connection: Any,
        header: RequestHeader,
        size_bytes: int,
        decode: Callable[[], Fields],
    ) -> None:
        try:
            fields = decode()
        except (ProtocolDecodeError, CorruptBatchError) as error:
            fields = {UNDECODED: str(error)}
        address = f"{connection.host}:{connection.port}"
        self.frames.append(
            Frame(
                direction,
                at_ms,
                address,
                self._connections[connection],
                header.api_key,
                api_name(header.api_key),
                header.version,
                header.correlation_id,
                size_bytes,
                fields,
            )
        )


class _CopyingWriter:
    """Replaces a connection's writer while one request is written: passes the data on and keeps a copy."""

    def __init__(self, writer: Any, now_ms: Callable[[], float]) -> None:
        self.writer = writer
        self.copy = b""
        self.at_ms = 0.0
        self._now_ms = now_ms

    def write(self, data: bytes) -> None:
        self.at_ms = self._now_ms()
        self.writer.write(data)
        self.copy += data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)


@contextmanager
def tapped(client_id: str) -> Iterator[Tap]:
    """Record the messages on the connections of one client of this process, until the context is left.

    Args:
        client_id: of the client; other clients' requests are not recorded.

    Raises:
        TapInUseError: another tap is open: closing two taps would restore the wrong methods.
    """
    send, handle_frame = AIOKafkaConnection.send, AIOKafkaConnection._handle_frame  # noqa: SLF001 # no public access
    if getattr(send, "__module__", "") == __name__:
        raise TapInUseError("the wire is tapped already")
    tap = Tap(client_id)

    def tapped_send(connection: Any, request: Any, expect_response: bool = True) -> Any:
        writer = connection._writer  # noqa: SLF001 # where the client writes to
        if writer is None:
            return send(connection, request, expect_response)
        copying = connection._writer = _CopyingWriter(writer, tap.now_ms)  # noqa: SLF001
        try:
            return send(connection, request, expect_response)
        finally:
            # The client sets it to None when it closes a broken connection
            if connection._writer is copying:  # noqa: SLF001
                connection._writer = writer  # noqa: SLF001
            if copying.copy:
                tap.written(connection, copying.copy, copying.at_ms)

    def tapped_handle_frame(connection: Any, frame: bytes) -> None:
        tap.read(connection, frame)
        handle_frame(connection, frame)

    AIOKafkaConnection.send = tapped_send
    AIOKafkaConnection._handle_frame = tapped_handle_frame  # noqa: SLF001
    try:
        yield tap
    finally:
        AIOKafkaConnection.send = send
        AIOKafkaConnection._handle_frame = handle_frame  # noqa: SLF001
