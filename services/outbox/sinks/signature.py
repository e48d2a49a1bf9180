"""The signature of a webhook: who receives one can tell that it is from here, whole and recent. Pure.

`Once-Signature: t=<unix seconds>,v1=<hex>` with v1 = HMAC-SHA256(secret, "<t>." + body). Each destination has a secret
of its own, derived from one key, so a subscriber can forge messages to nobody else and nothing has to be stored per
subscriber. This module must not know where the key comes from, nor any HTTP library.
"""

import hashlib
import hmac
import re

from services.outbox.sinks.urls import endpoint_of

HEADER = "Once-Signature"
SCHEME = "v1"
TOLERANCE_S = 300
"""Seconds that a receiver should let lie between the signature's time and its own, either way."""

_TIMESTAMP = re.compile(r"[0-9]{1,12}")


def derive_secret(key: bytes, destination: str) -> str:
    """The signing secret of one destination: HMAC-SHA256 of its scheme, host, port and path under the key.

    Args:
        key: the outbox's key, at least 32 bytes.
        destination: the webhook's URL; its query does not count.

    Returns:
        64 hex digits. These characters, as ASCII, are the HMAC key of `sign`.

    Raises:
        ValueError: the destination is no URL with a host.
    """
    return hmac.digest(key, endpoint_of(destination).encode(), hashlib.sha256).hex()


def sign(secret: str, timestamp_s: int, body: bytes) -> str:
    """The value of the header.

    Args:
        secret: from `derive_secret`.
        timestamp_s: when the call is made, seconds since 1970 UTC.
        body: the request's body, exactly as it is sent.
    """
    return f"t={timestamp_s},{SCHEME}={_digest(secret, str(timestamp_s), body)}"


def verify(secret: str, header: str, body: bytes, now_s: float, tolerance_s: float = TOLERANCE_S) -> bool:
    """Whether the header is a signature of the body under this secret. Takes the same time for every wrong digest.

    Args:
        secret: from `derive_secret`.
        header: as received. It may hold several v1 digests, of which one must fit: so a secret can be changed.
        body: as received, before any parsing.
        now_s: the receiver's time, seconds since 1970 UTC.
        tolerance_s: how far apart the two times may be; a message kept back for longer is refused.
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
