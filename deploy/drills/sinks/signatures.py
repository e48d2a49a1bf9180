"""How a receiver verifies webhooks, written against their specifications and not with the sender's code. Pure."""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

TOLERANCE_S: Final = 300
"""Between the signature's time and the receiver's, either way."""

_TIMESTAMP = re.compile(r"[0-9]{1,12}")


def verify(
    secret: bytes, headers: Mapping[str, str], body: bytes, now_s: float, tolerance_s: float = TOLERANCE_S
) -> bool:
    """Whether a webhook was signed with this secret, at most `tolerance_s` from `now_s`, in either format.

    Args:
        headers: as received; their names in lower case, or in a mapping that ignores case.
        body: as received, before any parsing.
    """
    if "webhook-signature" in headers:
        return _verify_standard(secret, headers, body, now_s, tolerance_s)
    return _verify_once(secret, headers.get("once-signature", ""), body, now_s, tolerance_s)


def _verify_standard(secret: bytes, headers: Mapping[str, str], body: bytes, now_s: float, tolerance_s: float) -> bool:
    timestamp = headers.get("webhook-timestamp", "")
    signed = f"{headers.get('webhook-id', '')}.{timestamp}.".encode("utf-8", "replace") + body
    expected = "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return _is_recent(timestamp, now_s, tolerance_s) and _is_one_of(expected, headers["webhook-signature"].split(" "))


def _verify_once(secret: bytes, header: str, body: bytes, now_s: float, tolerance_s: float) -> bool:
    parts = [part.strip().partition("=") for part in header.split(",")]
    timestamp = next((value for name, _, value in parts if name == "t"), "")
    signed = f"{timestamp}.".encode("utf-8", "replace") + body
    expected = hmac.digest(secret.hex().encode(), signed, hashlib.sha256).hex()
    return _is_recent(timestamp, now_s, tolerance_s) and _is_one_of(
        expected, [value for name, _, value in parts if name == "v1"]
    )


def _is_recent(timestamp: str, now_s: float, tolerance_s: float) -> bool:
    return _TIMESTAMP.fullmatch(timestamp) is not None and abs(now_s - int(timestamp)) <= tolerance_s


def _is_one_of(expected: str, signatures: list[str]) -> bool:
    # every signature is compared, so that the time does not depend on which one fits
    return sum([hmac.compare_digest(expected.encode(), each.encode("utf-8", "replace")) for each in signatures]) > 0
