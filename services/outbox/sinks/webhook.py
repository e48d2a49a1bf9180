"""Webhooks: an effect as one HTTP POST, signed, so that its receiver can verify its origin, integrity and age.

Invariant: every try of an effect carries the same body and the same id, its effect_id; only timestamp and signature are
the call's own. A call is Retriable only if it certainly was not accepted: it failed before the request left, or an
answer says so. Redirects, proxies of the environment and cookies are not followed, because each could take the call
elsewhere than where it is signed for.

The format is that of Standard Webhooks (https://www.standardwebhooks.com); docs/webhooks.md describes it for receivers.
The former one, `once`, can be chosen. Each destination has a secret derived from one key, so a subscriber can forge
messages only to itself, and no secret has to be stored.
"""

import base64
import hmac
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Final, Self

import msgspec
from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientHttpProxyError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    InvalidURL,
)
from yarl import URL

from services.outbox.lanes import endpoint_of
from services.outbox.outcomes import Outcome, Refused, Retriable, Unknown, judge, printable
from services.outbox.sinks.egress import DestinationRefusedError, Egress
from shared.events.effects import EffectRequest

MEDIA_TYPE: Final = "application/json"


class EffectBody(msgspec.Struct, frozen=True):
    """One effect as its receiver sees it: fields of EffectRequest, always all of them.

    The others are left out: a receiver knows its own address, and the order is the one in which it receives.
    """

    effect_id: str
    kind: str
    event: str
    account: str
    payment_id: str
    debtor: str
    creditor: str
    amount_minor: int | None
    currency: str | None
    fee_minor: int
    value_date: str
    reason: str | None
    reversal: bool
    reference: str


class Envelope(msgspec.Struct, frozen=True):
    """The body of Standard Webhooks.

    Attributes:
        type: `payment.debited`, `payment.credited` or `payment.declined`.
        timestamp: the start of the value date, UTC. A request has no other time that is the same at every try.
    """

    type: str
    timestamp: str
    data: EffectBody


_TYPES: Final = {"debit": "payment.debited", "credit": "payment.credited", "decline": "payment.declined"}
_encoder = msgspec.json.Encoder()


def _data(request: EffectRequest) -> EffectBody:
    return msgspec.convert(request, EffectBody, from_attributes=True)


def encode_body(request: EffectRequest) -> bytes:
    """Encode the request as one JSON object on one line, without a line end: a line of a file, and the former body."""
    return _encoder.encode(_data(request))


def encode_envelope(request: EffectRequest) -> bytes:
    """Encode the request in an envelope, likewise on one line."""
    kind = _TYPES.get(request.event, f"payment.{request.event}")
    return _encoder.encode(Envelope(kind, f"{request.value_date}T00:00:00Z", _data(request)))


SECRET_PREFIX: Final = "whsec_"  # noqa: S105 # the prefix of secrets
IDEMPOTENCY_KEY: Final = "Idempotency-Key"


def derive_secret(key: bytes, destination: str) -> bytes:
    """The signing secret of a destination: HMAC-SHA256 of its `endpoint_of` under the outbox's key.

    Raises ValueError if the destination is no URL with a host.
    """
    return hmac.digest(key, endpoint_of(destination).encode(), "sha256")


@lru_cache(maxsize=4096)
def derive_secrets(keys: tuple[bytes, ...], destination: str) -> tuple[bytes, ...]:
    """The secret for each key. Raises as `derive_secret`."""
    return tuple(derive_secret(key, destination) for key in keys)


def _sign_standard(secrets: Sequence[bytes], effect_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    signed = f"{effect_id}.{timestamp_s}.".encode() + body
    digests = [base64.b64encode(hmac.digest(secret, signed, "sha256")).decode() for secret in secrets]
    return {
        "webhook-id": effect_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join([f"v1,{digest}" for digest in digests]),
        IDEMPOTENCY_KEY: effect_id,
    }


def _sign_once(secrets: Sequence[bytes], effect_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    signed = f"{timestamp_s}.".encode() + body
    # The hex digits of a secret, as ASCII, are the key
    digests = [hmac.digest(secret.hex().encode(), signed, "sha256").hex() for secret in secrets]
    signature = ",".join([f"t={timestamp_s}", *(f"v1={digest}" for digest in digests)])
    return {IDEMPOTENCY_KEY: effect_id, "Once-Signature": signature}


@dataclass(frozen=True, slots=True)
class Format:
    """How an effect becomes a message.

    Attributes:
        encode: the body.
        sign: the headers, given the secrets, each of which makes a signature, the effect_id, the time in seconds since
            1970 UTC, and the body as it is sent.
        secret_text: a secret as its receiver is given it.
    """

    encode: Callable[[EffectRequest], bytes]
    sign: Callable[[Sequence[bytes], str, int, bytes], dict[str, str]]
    secret_text: Callable[[bytes], str]


FORMATS: Final = {
    "standard": Format(
        encode_envelope, _sign_standard, lambda secret: SECRET_PREFIX + base64.b64encode(secret).decode()
    ),
    "once": Format(encode_body, _sign_once, bytes.hex),
}
"""By the value of ONCE_WEBHOOK_FORMAT."""

ANSWER_BYTES_MAX: Final = 64 * 1024
_KEEPALIVE_S = 10.0  # below what servers commonly keep an idle connection for, so that few are found closed


class WebhookSink:
    """Calls webhooks over a pool of `connections_max` connections for each scheme.

    Args:
        secrets_of: the secrets of a destination; ValueError if it is no URL.
        timeout_s: seconds that one call may take. The connection has half of them at most, so that the answer has the
            other half.
        clock: seconds since 1970 UTC.
    """

    takes_keys = True

    def __init__(
        self,
        secrets_of: Callable[[str], Sequence[bytes]],
        message_format: Format,
        egress: Egress,
        timeout_s: float,
        connections_max: int,
        user_agent: str,
        clock: Callable[[], float],
    ) -> None:
        self._secrets_of = secrets_of
        self._format = message_format
        self._egress = egress
        # The client rounds timeouts from its threshold on up to whole seconds; this one is to be kept
        self._timeout = ClientTimeout(total=timeout_s, connect=timeout_s / 2, ceil_threshold=2 * timeout_s)
        self.calls_max = connections_max
        self._user_agent = user_agent
        self._clock = clock
        self._open = AsyncExitStack()
        self._sessions: dict[str, ClientSession] = {}
        self._target = lru_cache(maxsize=4096)(self._parse)

    async def deliver(self, request: EffectRequest) -> Outcome:
        """Make one POST. The sink must be open."""
        if not self._sessions:
            raise RuntimeError("open the sink before delivering: async with sink")
        try:
            secrets = self._secrets_of(request.destination)
            url, refusal = self._target(request.destination)
        except ValueError as error:
            refusal = printable(str(error))
        if refusal is not None:
            return Refused(refusal)
        body = self._format.encode(request)
        headers = self._format.sign(secrets, request.effect_id, int(self._clock()), body)
        try:
            async with self._sessions[url.scheme].post(
                url, data=body, headers=headers, allow_redirects=False, proxy=self._egress.proxy or None
            ) as response:
                said = await _beginning(response)
                return judge(
                    response.status, response.reason or "", response.headers.get("Retry-After"), said, self._clock()
                )
        except (ClientError, OSError, UnicodeError) as error:
            return self._without_answer(error)

    def _without_answer(self, error: Exception) -> Outcome:
        """The outcome of a call that failed: Unknown unless the request certainly did not leave."""
        if isinstance(error, InvalidURL | UnicodeError):  # UnicodeError: a host with an empty or an overlong label
            return Refused("the destination is no URL that can be called")
        if isinstance(error, ClientHttpProxyError):
            return Retriable(f"no connection: the proxy answered {error.status} {printable(error.message)}")
        if isinstance(error, ClientConnectorDNSError) and isinstance(error.os_error, DestinationRefusedError):
            return Refused(str(error.os_error))
        if isinstance(error, ClientConnectorError | ConnectionTimeoutError):
            return Retriable(_shown("no connection", error))
        if isinstance(error, TimeoutError):
            return Unknown(f"no answer within {self._timeout.total} s")
        return Unknown(_shown("no answer", error))

    def _parse(self, destination: str) -> tuple[URL, str | None]:
        """The URL that is called, and why it must not be; ValueError if it is none."""
        url = URL(destination)
        return url, self._egress.refusal(url)

    async def __aenter__(self) -> Self:
        for scheme in ("http", "https"):
            session = ClientSession(
                connector=self._egress.connector(scheme, self.calls_max, _KEEPALIVE_S),
                timeout=self._timeout,
                cookie_jar=DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                headers={"User-Agent": self._user_agent, "Content-Type": MEDIA_TYPE, "Accept-Encoding": "identity"},
            )
            self._sessions[scheme] = await self._open.enter_async_context(session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._sessions.clear()
        await self._open.aclose()


async def _beginning(response: ClientResponse) -> bytes:
    """At most ANSWER_BYTES_MAX of the body, or less if the connection is lost: the status has decided by then."""
    read = bytearray()
    content = response.content
    try:
        # An answer that came with its head is read at once, and need not be asked for its end
        while not content.at_eof() and (chunk := await content.read(ANSWER_BYTES_MAX - len(read))):
            read += chunk
    except (ClientError, OSError):
        pass
    return bytes(read)


def _shown(what: str, error: Exception) -> str:
    said = printable(str(error))
    return f"{what}: {type(error).__name__}" + (f": {said}" if said else "")
