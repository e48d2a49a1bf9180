"""One connection to a mail server, and one mail over it. The only importer of the SMTP client.

What holds: a mail that was certainly not taken is told from one that may have been. The point of no return is the
message itself: until the server says that it waits for it (354), nothing can have been taken; after it is written, only
an answer tells. The client's own `sendmail` and `data` do not keep these apart, so DATA goes in its two halves here.
This module must not know what is in a message.
"""

import ssl
from dataclasses import dataclass, field

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

_GO_AHEAD = 354
_CLOSING = 421


class NotTakenError(Exception):
    """The server answered with a refusal; the mail was certainly not taken.

    Attributes:
        code: 4xx for later and 5xx for never (RFC 5321, section 4.2.1).
    """

    def __init__(self, command: str, code: int, answer: str) -> None:
        super().__init__(f"{command} was answered with {code} {answer}")
        self.code = code

    @property
    def closing(self) -> bool:
        """Whether the server ends the connection with it (RFC 5321, section 3.8)."""
        return self.code == _CLOSING


class NoConnectionError(Exception):
    """No usable connection, or lost before the message was handed over; the mail was certainly not taken."""


class AnswerLostError(Exception):
    """The message was handed over and no answer came: it may have been taken."""


@dataclass(frozen=True, slots=True)
class Server:
    """A mail server and how to be let in.

    Attributes:
        host, port: of its submission service (RFC 6409).
        helo: the name to give in EHLO.
        starttls: a TLS context that verifies it, or None to stay without TLS.
        user, password: for AUTH; an empty user is none.
    """

    host: str
    port: int
    helo: str
    starttls: ssl.SSLContext | None = None
    user: str = ""
    password: str = field(default="", repr=False)


class Connection:
    """One connection; `open` makes it.

    Args:
        client: connected and let in.
    """

    def __init__(self, client: SMTP) -> None:
        self._client = client

    @classmethod
    async def open(cls, server: Server, timeout_s: float) -> "Connection":
        """Connect, start TLS where asked for, and authenticate.

        Args:
            server: where to.
            timeout_s: seconds that one answer may take, on this connection and for all of its life.

        Raises:
            NoConnectionError: in all other cases.
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
        except (SMTPException, OSError, ValueError) as error:  # ValueError: a host that can be none
            raise NoConnectionError(f"no connection to the mail server: {_shown(error)}") from error
        return cls(client)

    async def reset(self) -> None:
        """Forget a half-made envelope; shows too that the connection is still there (RFC 5321, section 4.1.1.5).

        Raises:
            NoConnectionError: it is not.
        """
        try:
            await self._client.rset()
        except (SMTPException, OSError) as error:
            raise NoConnectionError(_shown(error)) from error

    async def envelope(self, sender: str, recipient: str) -> None:
        """Sender and recipient, up to the server's word that it waits for the message.

        Raises:
            NotTakenError: refused.
            NoConnectionError: lost, or an answer that makes no sense.
        """
        try:
            await self._client.mail(sender)
            await self._client.rcpt(recipient)
            answer = await self._client.execute_command(b"DATA")
        except SMTPSenderRefused as error:
            raise _refused("MAIL", error.code, error.message) from error
        except SMTPRecipientRefused as error:
            raise _refused("RCPT", error.code, error.message) from error
        except (SMTPException, OSError) as error:
            raise NoConnectionError(f"lost before the message: {_shown(error)}") from error
        if answer.code != _GO_AHEAD:
            raise _refused("DATA", answer.code, answer.message)

    async def message(self, data: bytes, timeout_s: float) -> str:
        """Hand the message over, and return the server's answer.

        Args:
            data: as it follows DATA, see `message.encode_data`.
            timeout_s: seconds that the answer may take.

        Raises:
            NotTakenError: refused.
            NoConnectionError: the connection was gone before anything was written.
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
        if 200 <= answer.code < 300:
            return f"{answer.code} {answer.message}"
        if 400 <= answer.code < 600:
            raise NotTakenError("the message", answer.code, answer.message)
        raise AnswerLostError(f"the message was answered with {answer.code} {answer.message}")

    def close(self) -> None:
        """Say goodbye without waiting for the answer, and close."""
        protocol = self._client.protocol
        if protocol is not None and protocol.is_connected:
            protocol.write(b"QUIT\r\n")
        self._client.close()


def _refused(command: str, code: int, answer: str) -> Exception:
    if 400 <= code < 600:
        return NotTakenError(command, code, answer)
    return NoConnectionError(f"{command} was answered with {code} {answer}, which makes no sense")


def _shown(error: Exception) -> str:
    if isinstance(error, SMTPResponseException):
        return f"{error.code} {error.message}"
    return str(error) or type(error).__name__
