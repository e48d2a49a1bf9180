"""E-mail: an effect as one message to one address, over SMTP.

What holds: a mail server knows no keys, so the same message sent twice is two mails. Only what was certainly not taken
is Retriable; a message without an answer is Unknown, and is never sent again from here.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown
from services.outbox.sinks.answers import printable
from services.outbox.sinks.connections import Connections
from services.outbox.sinks.message import encode_data, encode_message, recipient_of
from services.outbox.sinks.smtp import AnswerLostError, NoConnectionError, NotTakenError, Server
from shared.events.effects import EffectRequest

_CREDENTIALS = frozenset({530, 534, 535, 538})
"""Answers that concern the sender's credentials and no mail (RFC 4954, section 6): an operator mends them."""


class EmailSink:
    """Sends mails over a bounded pool of connections.

    Args:
        server: the mail server.
        sender: the address that they come from.
        timeout_s: seconds that one call may take: half of them until the message is handed over, half for its answer,
            since a message that is not answered in time costs a person's attention.
        connections_max: connections at once.
        clock: seconds since 1970 UTC.
    """

    takes_keys = False

    def __init__(
        self, server: Server, sender: str, timeout_s: float, connections_max: int, clock: Callable[[], float]
    ) -> None:
        self.calls_max = connections_max
        self._server = server
        self._sender = sender
        self._clock = clock
        self._connections = Connections(server, connections_max, timeout_s / 2, timeout_s / 2)

    def circuit(self, destination: str) -> str:
        """The mail server, whatever the address: `smtp://host:port`."""
        del destination
        return f"smtp://{self._server.host}:{self._server.port}"

    async def deliver(self, request: EffectRequest) -> Outcome:
        """Send one mail."""
        try:
            recipient = recipient_of(request.destination)
        except ValueError as error:
            return Refused(str(error))
        data = encode_data(encode_message(request, self._sender, recipient, self._clock()))
        try:
            answer = await self._connections.send(self._sender, recipient, data)
        except NotTakenError as refusal:
            detail = printable(str(refusal))
            permanent = refusal.code >= 500 and refusal.code not in _CREDENTIALS
            return Refused(detail) if permanent else Retriable(detail)
        except NoConnectionError as error:
            return Retriable(printable(str(error)))
        except AnswerLostError as error:
            return Unknown(printable(str(error)))
        return Delivered(printable(answer))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connections.close()
