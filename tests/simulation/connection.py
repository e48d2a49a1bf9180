"""A connection to a broker without a client: requests out, answers in, by Kafka's definitions of both."""

import asyncio
from collections import deque
from typing import Any, Final

from shared.kafka.protocol.codec import Values
from shared.kafka.protocol.headers import decode_response, encode_request, framed
from tests.simulation.network import Address

ANSWER_S: Final = 8.0
"""Until a broker that does not answer has failed, seconds."""


class Connection(asyncio.Protocol):
    """A connection to a broker, without a client's logic."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._received = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            self._waiting.popleft().set_result(bytes(self._received[4:end]))
            del self._received[:end]

    def connection_lost(self, error: Exception | None) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(error or ConnectionResetError("the broker has closed the connection"))

    def send(self, api: str, version: int, values: Values) -> None:
        """Send a request whose answer is not read."""
        self._transport.write(framed(encode_request(api, version, values, client_id="differential")))

    def close(self) -> None:
        self._transport.close()

    async def ask(self, api: str, version: int, values: Values) -> Values:
        """The broker's answer."""
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self.send(api, version, values)
        try:
            answer = await asyncio.wait_for(waiting, ANSWER_S)
        except TimeoutError:
            raise AssertionError(f"no answer to {api} v{version} {values}") from None
        return decode_response(api, version, answer)


async def connected(address: Address) -> Connection:
    """Open a connection, through the network of the running loop."""
    return (await asyncio.get_running_loop().create_connection(Connection, *address))[1]


def codes(answer: Any) -> set[int]:
    """All error codes in an answer."""
    if isinstance(answer, list):
        return set().union(*map(codes, answer))
    if not isinstance(answer, dict) or "LastSequence" in answer:  # a producer among thousands
        return set()
    own = {value for name, value in answer.items() if name.endswith("ErrorCode")}
    return own.union(*map(codes, answer.values()))
