"""Webhooks: an effect as one HTTP POST. The only importer of the HTTP client among the sinks.

What holds: every try of an effect carries the same body and the same Idempotency-Key, its effect_id; only the signature
is the call's own. A call fails as Retriable only when it certainly was not taken: before the request left, or by an
answer that says so. Redirects, proxies and cookies are not followed, because each could take the call elsewhere than
where it is signed for.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    InvalidURL,
    TCPConnector,
)

from services.outbox.outcomes import Outcome, Refused, Retriable, Unknown
from services.outbox.sinks.answers import judge, printable
from services.outbox.sinks.body import MEDIA_TYPE, encode_body
from services.outbox.sinks.signature import HEADER, sign
from services.outbox.sinks.urls import origin_of
from shared.events.effects import EffectRequest

ANSWER_BYTES_MAX = 64 * 1024
IDEMPOTENCY_KEY = "Idempotency-Key"
_KEEPALIVE_S = 10.0  # below what servers commonly keep an idle connection for, so that few are found closed


class WebhookSink:
    """Calls webhooks over a bounded pool of connections.

    Args:
        secret_of: the signing secret of a destination, see `signature.derive_secret`.
        timeout_s: seconds that one call may take. Half of them at most go by until there is a connection, so that what
            was sent has the other half to be answered.
        connections_max: connections at once, to all destinations.
        user_agent: the User-Agent header.
        clock: seconds since 1970 UTC.
    """

    takes_keys = True

    def __init__(
        self,
        secret_of: Callable[[str], str],
        timeout_s: float,
        connections_max: int,
        user_agent: str,
        clock: Callable[[], float],
    ) -> None:
        self._secret_of = secret_of
        # The client rounds timeouts from its threshold on up to whole seconds; this one is to be kept
        self._timeout = ClientTimeout(total=timeout_s, connect=timeout_s / 2, ceil_threshold=2 * timeout_s)
        self.calls_max = connections_max
        self._user_agent = user_agent
        self._clock = clock
        self._session: ClientSession | None = None

    def circuit(self, destination: str) -> str:
        """The origin: `https://host:443`. A destination that is no URL is its own."""
        try:
            return origin_of(destination)
        except ValueError:
            return destination

    async def deliver(self, request: EffectRequest) -> Outcome:
        """Make one POST.

        Raises:
            RuntimeError: the sink is not open.
        """
        if self._session is None:
            raise RuntimeError("open the sink before delivering: async with sink")
        body = encode_body(request)
        try:
            secret = self._secret_of(request.destination)
        except ValueError as error:
            return Refused(str(error))
        headers = {IDEMPOTENCY_KEY: request.effect_id, HEADER: sign(secret, int(self._clock()), body)}
        try:
            async with self._session.post(
                request.destination, data=body, headers=headers, allow_redirects=False
            ) as response:
                said = await _beginning(response)
                return judge(
                    response.status, response.reason or "", response.headers.get("Retry-After"), said, self._clock()
                )
        except (InvalidURL, UnicodeError):  # UnicodeError: a host with an empty or an overlong label
            return Refused("the destination is no URL that can be called")
        except (ClientConnectorError, ConnectionTimeoutError) as error:
            return Retriable(_shown("no connection", error))
        except TimeoutError:
            return Unknown(f"no answer within {self._timeout.total} s")
        except (ClientError, OSError) as error:
            return Unknown(_shown("no answer", error))

    async def __aenter__(self) -> Self:
        self._session = ClientSession(
            connector=TCPConnector(limit=self.calls_max, keepalive_timeout=_KEEPALIVE_S),
            timeout=self._timeout,
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            headers={"User-Agent": self._user_agent, "Content-Type": MEDIA_TYPE, "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _beginning(response: ClientResponse) -> bytes:
    """At most ANSWER_BYTES_MAX of an answer's body, or less where the rest is lost: the status has decided by then."""
    read = bytearray()
    try:
        while chunk := await response.content.read(ANSWER_BYTES_MAX - len(read)):
            read += chunk
    except (ClientError, OSError):
        pass
    return bytes(read)


def _shown(what: str, error: Exception) -> str:
    said = printable(str(error))
    return f"{what}: {type(error).__name__}" + (f": {said}" if said else "")
