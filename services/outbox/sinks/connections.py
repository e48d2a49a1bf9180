"""A bounded pool of connections to one mail server.

What holds: a mail is tried on kept connections only up to the envelope; one that proves dead there is replaced, so that
a server's habit of closing idle connections is no failure. A message is handed over once.
"""

import asyncio
from collections import deque
from time import monotonic as monotonic_s

from services.outbox.sinks.smtp import Connection, NoConnectionError, NotTakenError, Server

IDLE_S = 10.0
"""Seconds that an unused connection is kept; servers close them after minutes (RFC 5321, section 4.5.3.2.7: five)."""


class Connections:
    """The pool.

    Args:
        server: which mail server.
        connections_max: connections at once.
        prelude_s: seconds until a message must be handed over, waiting for a free connection included.
        answer_s: seconds that the answer to a message may take.
    """

    def __init__(self, server: Server, connections_max: int, prelude_s: float, answer_s: float) -> None:
        self._server = server
        self._prelude_s = prelude_s
        self._answer_s = answer_s
        self._places = asyncio.Semaphore(connections_max)
        self._idle: deque[tuple[Connection, asyncio.TimerHandle]] = deque()

    async def send(self, sender: str, recipient: str, data: bytes) -> str:
        """Send one mail, and return the server's answer.

        Args:
            sender, recipient: addresses, ASCII.
            data: as it follows DATA.

        Raises:
            NotTakenError: refused.
            NoConnectionError: not handed over in time.
            AnswerLostError: handed over, and not answered.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._prelude_s
        latest_s = monotonic_s() + self._prelude_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._places.acquire()
        except TimeoutError as error:
            raise NoConnectionError(f"no connection became free within {self._prelude_s:g} s") from error
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self._prepared(sender, recipient)
            except TimeoutError as error:
                raise NoConnectionError(
                    f"the mail server did not take the envelope in {self._prelude_s:g} s"
                ) from error
            # A process that was stopped comes here late, and before the timeout was noticed: its claim may be another's
            if monotonic_s() >= latest_s:
                connection.close()
                raise NoConnectionError("the time to hand the message over has passed")
            return await self._over(connection, data)
        finally:
            self._places.release()

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            connection, expiry = self._idle.pop()
            expiry.cancel()
            connection.close()

    async def _prepared(self, sender: str, recipient: str) -> Connection:
        """A connection whose server waits for the message."""
        while self._idle:
            connection, expiry = self._idle.pop()
            expiry.cancel()
            try:
                await self._address(connection, sender, recipient, kept=True)
            except NoConnectionError:
                continue
            except NotTakenError as refusal:
                if refusal.closing:
                    continue
                raise
            return connection
        connection = await Connection.open(self._server, self._prelude_s)
        await self._address(connection, sender, recipient, kept=False)
        return connection

    async def _address(self, connection: Connection, sender: str, recipient: str, *, kept: bool) -> None:
        usable = False
        try:
            if kept:
                await connection.reset()
            await connection.envelope(sender, recipient)
            usable = True
        except NotTakenError as refusal:
            if not refusal.closing:
                self._keep(connection)
                usable = True
            raise
        finally:
            if not usable:
                connection.close()

    async def _over(self, connection: Connection, data: bytes) -> str:
        usable = False
        try:
            answer = await connection.message(data, self._answer_s)
            usable = True
        except NotTakenError as refusal:
            usable = not refusal.closing
            raise
        finally:
            if usable:
                self._keep(connection)
            else:
                connection.close()
        return answer

    def _keep(self, connection: Connection) -> None:
        self._idle.append((connection, asyncio.get_running_loop().call_later(IDLE_S, self._expire)))

    def _expire(self) -> None:
        connection, _ = self._idle.popleft()  # the last one kept is the first one taken: the oldest expires first
        connection.close()
