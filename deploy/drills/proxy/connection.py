"""One client's connection and the broker's connection behind it.

Requests are forwarded in their order, and answers are matched with them in that order. So a late request or answer
keeps back what follows it, as a TCP stream does. After a lost request no request of the connection is forwarded, and
after a lost answer no answer. A request that was forwarded is carried out although its client is gone: the broker's
connection stays open until it is answered.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from deploy.drills.proxy.addresses import Address
from deploy.drills.proxy.frames import NotAKafkaFrameError, read_frame, write_frame
from deploy.drills.proxy.injection import Injection
from deploy.drills.proxy.requests import Request
from deploy.drills.proxy.rules import Acknowledge, Act, Close, Delay, Drop, Hold, Part, Repeat, RepeatLate
from shared.kafka.protocol.codec import Values
from shared.kafka.protocol.headers import decode_correlation_id, decode_response, encode_response

LAST_ANSWERS_S: Final = 10.0
"""How long the connection to the broker stays open for each answer after the client is gone, unless a rule needs it."""


class Fault(NamedTuple):
    """A rule's act on one request."""

    injection: Injection
    act: Act

    def finish(self, answer: Values | None = None) -> None:
        """Note that the act is done."""
        self.injection.finish(self.act, answer)

    async def due(self) -> None:
        """Wait as long as the rule's action says."""
        action = self.injection.rule.action
        await self.injection.due(action.seconds if isinstance(action, Delay | RepeatLate) else None)


class Traffic(NamedTuple):
    """Callbacks of a connection.

    Attributes:
        inspect: counts a request, and returns the act of a rule on it.
        rewrite: replaces the addresses in a response.
        spawn: runs something in the background, until the proxy is closed.
    """

    inspect: Callable[[Request], Fault | None]
    rewrite: Callable[[Request, bytes], Awaitable[bytes]]
    spawn: Callable[[Awaitable[None]], None]


class _Expected(NamedTuple):
    """An answer that the broker owes.

    Attributes:
        fault: of the request; None without one, or where the act does not concern the answer.
        is_delivered: whether the client gets it.
    """

    request: Request
    fault: Fault | None
    is_delivered: bool = True


class Connection:
    """Passes requests and answers on, until either side closes."""

    def __init__(
        self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter], broker: Address, traffic: Traffic
    ) -> None:
        self._reader, self._writer = client
        self._broker = broker
        self._traffic = traffic
        self._expected: deque[_Expected] = deque()
        self._lost_request: Act | None = None
        self._lost_answer: Act | None = None
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Work until both sides are closed.

        Raises:
            NotAKafkaFrameError: either side does not speak Kafka's protocol, or answers out of order.
            ProtocolDecodeError: a message does not match its definition.
        """
        try:
            from_broker, to_broker = await asyncio.open_connection(*self._broker)
        except OSError:  # as by the broker itself, the client is disconnected
            self._writer.close()
            return
        try:
            async with asyncio.TaskGroup() as group:
                answers = group.create_task(self._answers(from_broker))
                await self._requests(to_broker)
                self._writer.close()
                await self._last_answers()
                answers.cancel()
        finally:
            self._writer.close()
            to_broker.close()

    async def _last_answers(self) -> None:
        """Wait until what was forwarded is carried out: the client is gone, and acts on its requests are not done."""
        while self._expected:
            has_fault = any(expected.fault is not None for expected in self._expected)
            self._answered.clear()
            try:
                await asyncio.wait_for(self._answered.wait(), None if has_fault else LAST_ANSWERS_S)
            except TimeoutError:
                return

    async def _requests(self, to_broker: asyncio.StreamWriter) -> None:
        while (frame := await read_frame(self._reader)) is not None:
            request = Request(frame)
            fault = self._traffic.inspect(request)
            if self._lost_request is not None:
                self._lost_request.followers += 1  # an act on it is never done: the rule changes nothing
            elif fault is None:
                await self._forward(to_broker, _Expected(request, None))
            elif not await self._forward_faulty(to_broker, request, fault):
                return

    async def _forward_faulty(self, to_broker: asyncio.StreamWriter, request: Request, fault: Fault) -> bool:
        """Apply an act to a request; return whether the client's connection goes on."""
        match fault.injection.rule.action:
            case Drop(Part.REQUEST, closes=closes):
                self._lost_request = fault.act
                fault.finish()
                return not closes
            case Close(forwards=False):
                fault.finish()
                return False
            case Close(forwards=True):
                await self._forward(to_broker, _Expected(request, fault, is_delivered=False))
                self._writer.close()
                return False
            case Acknowledge():
                await self._acknowledge(request, fault)
            case Delay(Part.REQUEST) | Hold(Part.REQUEST):
                await fault.due()
                await self._forward(to_broker, _Expected(request, fault))
            case Repeat():
                await self._forward(to_broker, _Expected(request, None))
                await self._forward(to_broker, _Expected(request, fault, is_delivered=False))
            case RepeatLate():
                self._traffic.spawn(send_copy(self._broker, request, fault))
                await self._forward(to_broker, _Expected(request, None))
            case _:
                await self._forward(to_broker, _Expected(request, fault))
        return True

    async def _acknowledge(self, request: Request, fault: Fault) -> None:
        """Answer Produce without the broker, after the answers to what was forwarded before."""
        while self._expected:
            self._answered.clear()
            await self._answered.wait()
        answer = acknowledgement(request)
        fault.finish(answer)
        frame = encode_response(request.api, request.version, answer, correlation_id=request.correlation_id)
        await write_frame(self._writer, frame)

    async def _forward(self, to_broker: asyncio.StreamWriter, expected: _Expected) -> None:
        if expected.request.is_answered:
            self._expected.append(expected)
        await write_frame(to_broker, expected.request.frame)
        if not expected.request.is_answered and expected.fault is not None:
            expected.fault.finish()

    async def _answers(self, from_broker: asyncio.StreamReader) -> None:
        while (frame := await read_frame(from_broker)) is not None:
            if not self._expected or decode_correlation_id(frame) != self._expected[0].request.correlation_id:
                raise NotAKafkaFrameError(f"{self._broker} answered out of order")
            await self._deliver(self._expected[0], frame)
            self._expected.popleft()
            self._answered.set()
        self._expected.clear()
        self._answered.set()
        self._writer.close()

    async def _deliver(self, expected: _Expected, frame: bytes) -> None:
        fault = expected.fault
        action = None if fault is None else fault.injection.rule.action
        if fault is not None:
            if isinstance(action, Delay | Hold) and action.part is Part.ANSWER:
                await fault.due()
            elif isinstance(action, Drop):
                self._lost_answer = fault.act
            fault.finish(decoded(expected.request, frame))
        if self._lost_answer is not None:
            self._lost_answer.followers += fault is None
            if isinstance(action, Drop) and action.closes:
                self._writer.close()
        elif expected.is_delivered:
            await write_frame(self._writer, await self._traffic.rewrite(expected.request, frame))


async def send_copy(broker: Address, request: Request, fault: Fault) -> None:
    """Send a request by a connection of its own when it is due, and keep the answer as evidence.

    Where the broker is gone by then, or closes the connection, the act is never done.
    """
    await fault.due()
    try:
        reader, writer = await asyncio.open_connection(*broker)
    except OSError:
        return
    try:
        await write_frame(writer, request.frame)
        frame = await read_frame(reader) if request.is_answered else None
    finally:
        writer.close()
    if frame is not None or not request.is_answered:
        fault.finish(None if frame is None else decoded(request, frame))


def acknowledgement(request: Request) -> Values:
    """Return the answer to a Produce request whose batches were all written, at offset 0."""
    rows = [
        {name: topic[name] for name in ("Name", "TopicId") if name in topic}
        | {"PartitionResponses": [{"Index": one["Index"], "BaseOffset": 0} for one in topic["PartitionData"]]}
        for topic in request.values["TopicData"]
    ]
    return {"Responses": rows}


def decoded(request: Request, frame: bytes) -> Values | None:
    """Decode an answer; None where its API has no definition."""
    return decode_response(request.api, request.version, frame) if request.is_defined else None
