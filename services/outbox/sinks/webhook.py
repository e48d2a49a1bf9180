"""Webhooks: an effect as one HTTP POST, signed, so that its receiver can verify its origin, integrity and age.

Invariant: every try of an effect carries the same body and the same Idempotency-Key, its effect_id; only the signature
is the call's own. A call is Retriable only if it certainly was not accepted: it failed before the request left, or an
answer says so. Redirects, proxies and cookies are not followed, because each could take the call elsewhere than where
it is signed for.

`Once-Signature: t=<unix seconds>,v1=<hex>` with v1 = HMAC-SHA256(secret, "<t>." + body). Each destination has a secret
derived from one key, so a subscriber can forge messages only to itself, and no secret has to be stored.
"""

import hashlib
import hmac
import re
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

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

from services.outbox.outcomes import Outcome, Refused, Retriable, Unknown, judge, printable
from services.outbox.sinks.body import MEDIA_TYPE, encode_body
from shared.events.effects import EffectRequest

_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=4096)  # asked for at each call, for few destinations
def origin_of(destination: str) -> str:
    """The origin of a URL as `scheme://host:port`, always with its port (RFC 6454, section 4).

    Raises ValueError if it is no http or https URL with a host and a possible port.
    """
    parts = urlsplit(destination)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{destination!r} is no webhook's URL: give https://host/path")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = _PORTS[parts.scheme] if parts.port is None else parts.port
    return f"{parts.scheme}://{host}:{port}"


def endpoint_of(destination: str) -> str:
    """Origin and path of a URL, without its query: these identify a subscriber. Raises as `origin_of`."""
    return origin_of(destination) + (urlsplit(destination).path or "/")


HEADER = "Once-Signature"
SCHEME = "v1"
TOLERANCE_S = 300  # between the signature's time and the receiver's, either way

_TIMESTAMP = re.compile(r"[0-9]{1,12}")


def derive_secret(key: bytes, destination: str) -> str:
    """The signing secret of a destination: HMAC-SHA256 of its `endpoint_of` under the outbox's key.

    The 64 hex digits, as ASCII, are the HMAC key of `sign`. Raises ValueError if the destination is no URL with a host.
    """
    return hmac.digest(key, endpoint_of(destination).encode(), hashlib.sha256).hex()


def sign(secret: str, timestamp_s: int, body: bytes) -> str:
    """The header's value for a body exactly as it is sent, at `timestamp_s` since 1970 UTC."""
    return f"t={timestamp_s},{SCHEME}={_digest(secret, str(timestamp_s), body)}"


def verify(secret: str, header: str, body: bytes, now_s: float, tolerance_s: float = TOLERANCE_S) -> bool:
    """Whether the header is a signature of the body under this secret, made at most `tolerance_s` from `now_s`.

    The body is the one received, before any parsing. The header may have several v1 digests, of which one must fit, so
    that a secret can be changed. It takes the same time for every wrong digest.
    """
    timestamp = ""
    digests: list[str] = []
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name == "t":
            timestamp = value
        elif name == SCHEME:
            digests.append(value)
    if _TIMESTAMP.fullmatch(timestamp) is None or abs(now_s - int(timestamp)) > tolerance_s:
        return False
    expected = _digest(secret, timestamp, body).encode()
    # every digest is compared, so that the time tells nothing of which one fitted
    return sum([hmac.compare_digest(expected, digest.encode("utf-8", "replace")) for digest in digests]) > 0


def _digest(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.digest(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hex()


ANSWER_BYTES_MAX = 64 * 1024
IDEMPOTENCY_KEY = "Idempotency-Key"
_KEEPALIVE_S = 10.0  # below what servers commonly keep an idle connection for, so that few are found closed


class WebhookSink:
    """Calls webhooks over a pool of `connections_max` connections to all destinations.

    Args:
        timeout_s: seconds that one call may take. The connection has half of them at most, so that the answer has the
            other half.
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
        """Make one POST. The sink must be open."""
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
    """At most ANSWER_BYTES_MAX of the body, or less if the connection is lost: the status has decided by then."""
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
