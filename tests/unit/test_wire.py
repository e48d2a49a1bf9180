"""The tap: it records a client's bytes and does not change the client."""

from collections.abc import Iterator
from typing import Any

import pytest

from shared.kafka.protocol.codec import encode
from shared.kafka.protocol.headers import encode_request_header, encode_response, framed
from shared.kafka.txntrace import wire
from shared.kafka.txntrace.frames import END_TXN, UNDECODED
from shared.kafka.txntrace.wire import Direction, TapInUseError, tapped

CLIENT = "once.trace.0"


def end_txn(correlation_id: int, client_id: str | None = CLIENT, *, body: bytes | None = None) -> bytes:
    header = encode_request_header("EndTxn", 0, correlation_id=correlation_id, client_id=client_id)
    values = {"TransactionalId": "id", "ProducerId": 4001, "ProducerEpoch": 7, "Committed": True}
    return framed(header + (encode("EndTxnRequest", 0, values) if body is None else body))


def answer(correlation_id: int, error_code: int = 0) -> bytes:
    return encode_response("EndTxn", 0, {"ErrorCode": error_code}, correlation_id=correlation_id)


class Writer:
    """A stand-in for a socket's writer."""

    def __init__(self, *, broken: bool = False) -> None:
        self.data = b""
        self.broken = broken
        self.closed = False

    def write(self, data: bytes) -> None:
        if self.broken:
            raise OSError("broken pipe")
        self.data += data

    def close(self) -> None:
        self.closed = True


class Connection:
    """The part of a client's connection that the tap sees."""

    def __init__(self, writer: Writer | None) -> None:
        self.host, self.port = "127.0.0.1", 9092
        self._writer: Any = writer
        self.handled: list[bytes] = []

    def send(self, request: bytes, expect_response: bool = True) -> str:
        """As the client does: writes, and closes the connection when that fails."""
        if self._writer is None:
            raise ConnectionError("no connection")
        try:
            self._writer.write(request)
        except OSError:
            self._writer.close()
            self._writer = None
            raise
        return f"sent, {expect_response}"

    def _handle_frame(self, frame: bytes) -> None:
        self.handled.append(frame)


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client's connection class, replaced by the one above; the tap must leave it as it was."""
    monkeypatch.setattr(wire, "AIOKafkaConnection", Connection)
    before = dict(vars(Connection))
    yield
    assert dict(vars(Connection)) == before


def test_a_request_and_its_response_are_recorded() -> None:
    writer = Writer()
    connection = Connection(writer)
    with tapped(CLIENT) as tap:
        before_ms = tap.now_ms()
        assert connection.send(end_txn(5), expect_response=False) == "sent, False"
        assert connection._writer is writer
        connection._handle_frame(answer(5, 51))
        after_ms = tap.now_ms()
    assert (writer.data, connection.handled) == (end_txn(5), [answer(5, 51)])
    request, response = tap.frames
    assert (request.direction, response.direction) == (Direction.REQUEST, Direction.RESPONSE)
    for frame in tap.frames:
        assert (frame.broker, frame.connection, frame.correlation_id) == ("127.0.0.1:9092", 1, 5)
        assert (frame.api_key, frame.api, frame.version) == (END_TXN, "EndTxn", 0)
    assert (request.size_bytes, response.size_bytes) == (len(writer.data), 4 + len(answer(5)))
    assert request.fields == {"transactional_id": "id", "producer_id": 4001, "producer_epoch": 7, "result": "COMMIT"}
    assert response.fields == {"error": "CONCURRENT_TRANSACTIONS"}
    assert before_ms <= request.at_ms <= response.at_ms <= after_ms


@pytest.mark.parametrize("client_id", ["another", "", None])
def test_other_clients_are_not_recorded(client_id: str | None) -> None:
    connection = Connection(Writer())
    with tapped(CLIENT) as tap:
        connection.send(end_txn(5, client_id))
        connection._handle_frame(answer(5))
    assert tap.frames == []
    assert connection.handled == [answer(5)]


def test_responses_belong_to_their_own_connection() -> None:
    first, second = Connection(Writer()), Connection(Writer())
    with tapped(CLIENT) as tap:
        first.send(end_txn(5))
        second._handle_frame(answer(5))
        second.send(end_txn(5))
        second._handle_frame(answer(6))
        second._handle_frame(answer(5))
        first._handle_frame(b"\x00")
    assert [(frame.connection, frame.direction) for frame in tap.frames] == [
        (1, Direction.REQUEST),
        (2, Direction.REQUEST),
        (2, Direction.RESPONSE),
    ]


def test_a_failed_write_is_not_recorded() -> None:
    writer = Writer(broken=True)
    connection = Connection(writer)
    with tapped(CLIENT) as tap:
        with pytest.raises(OSError, match="broken pipe"):
            connection.send(end_txn(5))
        assert writer.closed
        assert connection._writer is None
        with pytest.raises(ConnectionError):
            connection.send(end_txn(6))
    assert tap.frames == []


@pytest.mark.parametrize("written", [b"", b"\x00\x00", end_txn(5)[:-1], end_txn(5) + b"\x00"])
def test_an_invalid_request_is_ignored(written: bytes) -> None:
    connection = Connection(Writer())
    with tapped(CLIENT) as tap:
        connection.send(written)
    assert tap.frames == []


def test_an_undecodable_message_is_recorded_with_its_header() -> None:
    connection = Connection(Writer())
    with tapped(CLIENT) as tap:
        connection.send(end_txn(5, body=b"\x00"))
        connection._handle_frame(answer(5)[:-1])
    request, response = tap.frames
    assert (request.api, request.correlation_id, list(request.fields)) == ("EndTxn", 5, [UNDECODED])
    assert list(response.fields) == [UNDECODED]


def test_one_tap_at_a_time() -> None:
    with tapped(CLIENT), pytest.raises(TapInUseError), tapped("another"):
        pass
    with tapped("another") as tap:
        assert tap.frames == []


def test_the_tap_is_removed_when_the_work_fails() -> None:
    with pytest.raises(RuntimeError, match="work"), tapped(CLIENT):
        raise RuntimeError("the work failed")
    with tapped(CLIENT):
        pass
