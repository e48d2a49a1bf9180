"""A network of requests and answers between processes and nodes: late, cut and partitioned as the seed says.

A connection delivers in order, and connections are independent of one another: what leaves later by another one may
arrive first. Like TCP it takes bytes until its writer learns that the other end is gone, and what left before a close
still arrives.
"""

import asyncio
import random
import struct
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from tests.simulation.loop import PROCESS, Process, VirtualLoop, outside
from tests.simulation.trouble import Calm, Trouble

Address = tuple[str, int]
DELAY_S: Final = (0.0002, 0.002)
"""One way, from and to."""
RESENT_S: Final = 0.5
"""What is under way when a cut begins is sent again at this interval, seconds."""
CONNECT_TIMEOUT_S: Final = 127.0
"""Until a connection to a host that does not answer is given up, as Linux does; callers give up sooner."""

_LENGTH: Final = struct.Struct(">i")


class Node(Protocol):
    """A broker, as the network sees it.

    Attributes:
        name: for the history, and for cuts.
    """

    name: str

    @property
    def up(self) -> bool:
        """Whether it takes connections."""

    async def answer(self, request: bytes, client: str) -> bytes | None:
        """Answer a request, both without their length; None where none is due."""


class Frame(NamedTuple):
    """One request, or the answer to it, as it leaves.

    Attributes:
        at_s: virtual time.
        answer: None for the request itself.
    """

    at_s: float
    client: str
    node: str
    request: bytes
    answer: bytes | None


class Network:
    """All connections of a history.

    Attributes:
        nodes: by the address at which each listens.
        frames: every request and answer, in the order in which they left.
        trouble: asked for each request and answer.
        cut: pairs of names between which nothing passes, either way.
    """

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.loop = loop
        self.nodes: dict[Address, Node] = {}
        self.frames: list[Frame] = []
        self.trouble: Trouble = Calm()
        self.cut: set[frozenset[str]] = set()
        self._chance = chance
        self._connections: dict[Connection, None] = {}
        loop.connect = self.connect

    def delay_s(self) -> float:
        """One way, this time."""
        return self._chance.uniform(*DELAY_S)

    def passes(self, one: str, other: str) -> bool:
        """Whether anything gets from one to the other."""
        return frozenset((one, other)) not in self.cut

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> "tuple[Connection, asyncio.BaseProtocol]":
        """Open a connection from the running process.

        Raises:
            ConnectionRefusedError: nothing listens there.
            TimeoutError: no answer came from there.
        """
        process = PROCESS.get()
        client = "-" if process is None else process.name
        await asyncio.sleep(self.delay_s())
        node = self.nodes.get((host, port))
        if node is not None and not self.passes(client, node.name):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise TimeoutError(f"no answer from {host}:{port}")
        if node is None or not node.up:
            raise ConnectionRefusedError(f"nothing listens on {host}:{port}")
        await asyncio.sleep(self.delay_s())
        protocol = factory()
        made = Connection(self, process, client, node, protocol)
        self._connections[made] = None
        made.serve()
        protocol.connection_made(made)
        return made, protocol

    def closed(self, connection: "Connection") -> None:
        """Forget a connection whose node has done all its work."""
        self._connections.pop(connection, None)

    def down(self, node: Node) -> None:
        """Reset a node's connections: its process ended."""
        for connection in list(self._connections):
            if connection.node is node:
                connection.reset()


class _Way:
    """One direction of a connection: all that is sent arrives, in order, through a cut after its end."""

    def __init__(
        self, loop: VirtualLoop, passes: Callable[[], bool], deliver: Callable[[Any], object], context: Context
    ) -> None:
        self._loop = loop
        self._passes = passes
        self._deliver = deliver
        self._context = context
        self._under_way: deque[tuple[float, object]] = deque()
        self._last_s = 0.0

    def send(self, item: object, takes_s: float) -> None:
        self._last_s = max(self._last_s, self._loop.time() + takes_s)
        self._under_way.append((self._last_s, item))
        self._loop.call_at(self._last_s, self._arrive, context=self._context)

    def _arrive(self) -> None:
        while self._under_way and self._under_way[0][0] <= self._loop.time():
            if not self._passes():
                self._loop.call_later(RESENT_S, self._arrive, context=self._context)
                return
            self._deliver(self._under_way.popleft()[1])


class Connection(asyncio.Transport):
    """The client's end, and the node's behind it.

    A node takes the requests of a connection one after the other: the next one when the answer has left.
    """

    def __init__(
        self, network: Network, process: Process | None, client: str, node: Node, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__()
        self.node = node
        self.client = client
        self._network = network
        self._loop = network.loop
        self._process = process
        self._protocol: Any = protocol
        self._owner = copy_context()  # what arrives at a process waits while that is paused
        self._written = bytearray()
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._open = True  # at the client's end
        self._cut = False  # by a reset
        self._lost = False
        if process is not None:
            process.sockets[self] = None
        self._beyond = beyond = outside()  # the node's work outlives the client
        passes = partial(network.passes, client, node.name)
        self._there = _Way(self._loop, passes, self._requests.put_nowait, beyond)
        self._back = _Way(self._loop, passes, self._deliver, beyond)

    def serve(self) -> None:
        """Have the node take requests."""
        serving = self._loop.create_task(self._serve(), context=self._beyond)
        serving.add_done_callback(self._served, context=self._beyond)

    def _served(self, serving: asyncio.Task[None]) -> None:
        self._network.closed(self)
        if not serving.cancelled() and serving.exception() is not None:
            self._loop.failure = serving.exception()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._open:
            return
        self._written += data
        while len(self._written) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._written)
            end = _LENGTH.size + length
            if len(self._written) < end:
                return
            request = bytes(self._written[_LENGTH.size : end])
            del self._written[:end]
            self._send(request)

    def _send(self, request: bytes) -> None:
        self._note(request, None)
        fate = self._network.trouble.of_request(self.client, request)
        if not fate.arrives:
            self.reset()
            return
        if fate.held is not None:
            self._end()
            fate.held(partial(self._send_last, request))
        else:
            self._there.send(request, self._network.delay_s() + fate.more_s)
            if not fate.resets:
                return
            self.die()
        self._lose(ConnectionResetError("Connection reset by peer"), self._network.delay_s())

    def _send_last(self, request: bytes) -> None:
        """Send a request that was held back, and the close behind it."""
        for item in (request, None):
            self._there.send(item, self._network.delay_s())

    def _note(self, request: bytes, answer: bytes | None) -> None:
        self._network.frames.append(Frame(self._loop.time(), self.client, self.node.name, request, answer))

    async def _serve(self) -> None:
        while (request := await self._requests.get()) is not None and not self._cut:
            answer = await self.node.answer(request, self.client)
            if answer is None:
                continue
            self._note(request, answer)
            fate = self._network.trouble.of_answer(self.client, request)
            if not fate.arrives:
                self.reset()
                return
            if not self._cut:  # meanwhile
                self._back.send(_LENGTH.pack(len(answer)) + answer, self._network.delay_s() + fate.more_s)

    def _deliver(self, frame: bytes) -> None:
        self._loop.call_soon(self._received, frame, context=self._owner)

    def _received(self, frame: bytes) -> None:
        if self._open:
            self._protocol.data_received(frame)

    def reset(self) -> None:
        """Cut it between the ends: what is under way is lost, and the client learns of it.

        What the node has begun it ends, without an answer.
        """
        self._cut = True
        self._requests.put_nowait(None)
        self._end()
        self._lose(ConnectionResetError("Connection reset by peer"), self._network.delay_s())

    def close(self) -> None:
        """Close the client's end; what was written before still arrives."""
        self.die()
        self._lose(None, 0.0)

    def abort(self) -> None:
        self.close()

    def die(self) -> None:
        """Close the client's end as the kernel does for a process that was killed."""
        if self._open:
            self._end()
            self._there.send(None, self._network.delay_s())

    def _lose(self, error: Exception | None, later_s: float) -> None:
        """Tell the owner, once, that the connection is gone."""
        if not self._lost:
            self._lost = True
            self._loop.call_later(later_s, self._protocol.connection_lost, error, context=self._owner)

    def _end(self) -> None:
        self._open = False
        if self._process is not None:
            self._process.sockets.pop(self, None)

    def get_write_buffer_size(self) -> int:
        """Nothing is kept back."""
        return 0

    def is_closing(self) -> bool:
        return not self._open
