"""Mail over SMTP: one mail over one connection, and a bounded pool of connections to one mail server.

Invariant: a mail that was certainly not taken is distinguished from one that may have been. Until the server answers
DATA with 354, it has taken nothing. Once the message is written, only the answer to it tells. aiosmtplib's `sendmail`
and `data` do not keep the two apart, so DATA is sent in two steps here, and a message is handed over once. A kept
connection that proves dead before that is replaced, because servers close idle connections.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from dataclasses import dataclass, field
from time import monotonic as monotonic_s

from aiosmtplib import (
    SMTP,
    SMTPAuthenticationError,
    SMTPException,
    SMTPRecipientRefused,
    SMTPResponse,
    SMTPResponseException,
    SMTPSenderRefused,
    SMTPServerDisconnected,
    SMTPTimeoutError,
)

IDLE_S = 10.0
"""Seconds that an unused connection is kept; servers close them after minutes (RFC 5321, section 4.5.3.2.7: five)."""

_GO_AHEAD = 354
_CLOSING = 421


class NotTakenError(Exception):
    """The server refused the mail: it was certainly not taken.

    Attributes:
        code: 4xx for later and 5xx for never (RFC 5321, section 4.2.1).
    """

    def __init__(self, command: str, code: int, answer: str) -> None:
        super().__init__(f"{command} was answered with {code} {answer}")
        self.code = code


class AddressUnsupportedError(Exception):
    """The server cannot take mail for such an address; it was certainly not taken."""


class NoConnectionError(Exception):
    """No connection, or it was lost before the message was handed over: the mail was certainly not taken."""


class AnswerLostError(Exception):
    """The message was handed over and no answer came: it may have been taken."""


@dataclass(frozen=True, slots=True)
class Server:
    """A mail server's submission service (RFC 6409), and how to be let in."""

    host: str
    port: int
    helo: str  # the name to give in EHLO
    starttls: ssl.SSLContext | None = None  # verifies the server; None stays without TLS
    user: str = ""  # for AUTH; empty for none
    password: str = field(default="", repr=False)


class Connection:
    """One connection; `open` makes it.

    Attributes:
        usable: another mail can be sent over it.
    """

    def __init__(self, client: SMTP) -> None:
        self._client = client
        self._used = False
        self.usable = True

    @classmethod
    async def open(cls, server: Server, timeout_s: float) -> "Connection":
        """Connect, start TLS where it is asked for, and authenticate. Raises NoConnectionError in all other cases.

        Args:
            timeout_s: seconds that one answer may take, on this connection and for all of its life.
        """
        client = SMTP(
            hostname=server.host,
            port=server.port,
            username=server.user or None,
            password=server.password if server.user else None,
            local_hostname=server.helo,
            timeout=timeout_s,
            start_tls=server.starttls is not None,
            tls_context=server.starttls,
        )
        try:
            await client.connect()
        except SMTPAuthenticationError as error:
            raise NoConnectionError(
                f"the mail server refuses the credentials ({error.code} {error.message}): correct ONCE_SMTP_USER or "
                "the content of ONCE_SMTP_PASSWORD_FILE"
            ) from error
        except (SMTPException, OSError, ValueError) as error:  # ValueError: an impossible host name
            raise NoConnectionError(f"no connection to the mail server: {_shown(error)}") from error
        return cls(client)

    async def envelope(self, sender: str, recipient: str) -> None:
        """Give sender (ASCII) and recipient, until the server waits for the message.

        Raises:
            AddressUnsupportedError: the recipient is not ASCII, and the server does not offer SMTPUTF8 (RFC 6531).
            NotTakenError: refused.
            NoConnectionError: lost, or an answer that makes no sense.
        """
        options: list[str] = []
        if not recipient.isascii():
            if not self._client.supports_extension("smtputf8"):
                raise AddressUnsupportedError(
                    f"the mail server does not offer SMTPUTF8, which the address at {recipient.rpartition('@')[2]} "
                    "needs: its name has characters beyond ASCII"
                )
            options = ["SMTPUTF8", "BODY=8BITMIME"]
        self.usable = False
        try:
            if self._used:  # forgets a half-made envelope, and shows that the connection is alive
                await self._client.rset()
            self._used = True
            await self._client.mail(sender, options=options)
            await self._client.rcpt(recipient, encoding="utf-8")
            answer = await self._client.execute_command(b"DATA")
        except SMTPSenderRefused as error:
            raise self._refusal("MAIL", error.code, error.message) from error
        except SMTPRecipientRefused as error:
            raise self._refusal("RCPT", error.code, error.message) from error
        except (SMTPException, OSError) as error:
            raise NoConnectionError(f"lost before the message: {_shown(error)}") from error
        if answer.code != _GO_AHEAD:
            raise self._refusal("DATA", answer.code, answer.message)

    async def message(self, data: bytes, timeout_s: float) -> str:
        """Hand the message over, and return the server's answer, which may take `timeout_s` seconds.

        Args:
            data: as it follows DATA, see `email.encode_data`.

        Raises:
            NotTakenError: refused.
            NoConnectionError: the connection was gone before anything was written, or ends with this refusal.
            AnswerLostError: no answer, or none that makes sense.
        """
        protocol = self._client.protocol
        if protocol is None:
            raise NoConnectionError("lost before the message")
        try:
            protocol.write(data)
        except SMTPServerDisconnected as error:
            raise NoConnectionError(f"lost before the message: {_shown(error)}") from error
        try:
            answer: SMTPResponse = await protocol.read_response(timeout=timeout_s)
        except SMTPTimeoutError as error:
            raise AnswerLostError(f"no answer to the message within {timeout_s:g} s") from error
        except (SMTPException, OSError) as error:
            raise AnswerLostError(f"no answer to the message: {_shown(error)}") from error
        if 400 <= answer.code < 600:
            raise self._refusal("the message", answer.code, answer.message)
        if not 200 <= answer.code < 300:
            raise AnswerLostError(f"the message was answered with {answer.code} {answer.message}")
        self.usable = True
        return f"{answer.code} {answer.message}"

    def _refusal(self, command: str, code: int, answer: str) -> Exception:
        refusal = NotTakenError(command, code, answer)
        if code == _CLOSING:
            return NoConnectionError(str(refusal))
        if 400 <= code < 600:
            self.usable = True
            return refusal
        return NoConnectionError(f"{refusal}, which makes no sense")

    def close(self) -> None:
        """Send QUIT without waiting for the answer, and close."""
        protocol = self._client.protocol
        if protocol is not None and protocol.is_connected:
            protocol.write(b"QUIT\r\n")
        self._client.close()


class Connections:
    """A pool of at most `connections_max` connections.

    Args:
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
        """Send one mail, and return the server's answer. Arguments and errors as for `Connection`."""
        deadline_s = asyncio.get_running_loop().time() + self._prelude_s
        latest_s = monotonic_s() + self._prelude_s
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise NoConnectionError(f"no connection became free within {self._prelude_s:g} s") from error
        try:
            try:
                async with asyncio.timeout_at(deadline_s):
                    connection = await self._prepared(sender, recipient)
            except TimeoutError as error:
                raise NoConnectionError(
                    f"the mail server did not take the envelope in {self._prelude_s:g} s"
                ) from error
            try:
                # A process that was stopped resumes here before it notices the timeout. Its claim may be another's
                if monotonic_s() >= latest_s:
                    raise NoConnectionError("the time to hand the message over has passed")
                return await connection.message(data, self._answer_s)
            finally:
                self._put_back(connection)
        finally:
            self._places.release()

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._take().close()

    async def _prepared(self, sender: str, recipient: str) -> Connection:
        """A connection whose server waits for the message."""
        while self._idle:
            with contextlib.suppress(NoConnectionError):  # it proved dead
                return await self._addressed(self._take(), sender, recipient)
        return await self._addressed(await Connection.open(self._server, self._prelude_s), sender, recipient)

    async def _addressed(self, connection: Connection, sender: str, recipient: str) -> Connection:
        try:
            await connection.envelope(sender, recipient)
        except BaseException:
            self._put_back(connection)
            raise
        return connection

    def _take(self) -> Connection:
        connection, expiry = self._idle.pop()
        expiry.cancel()
        return connection

    def _put_back(self, connection: Connection) -> None:
        if connection.usable:
            self._idle.append((connection, asyncio.get_running_loop().call_later(IDLE_S, self._expire)))
        else:
            connection.close()

    def _expire(self) -> None:
        connection, _ = self._idle.popleft()  # the last one kept is the first one taken: the oldest expires first
        connection.close()


def _shown(error: Exception) -> str:
    if isinstance(error, SMTPResponseException):
        return f"{error.code} {error.message}"
    return str(error) or type(error).__name__
