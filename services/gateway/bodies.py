"""Bodies of requests, bounded in size and time.

Invariant: a body is kept as it was received: it is neither decompressed nor decoded.
"""

import asyncio
from typing import Final

from aiohttp import web

from services.gateway import domain
from services.gateway.domain import Refusal, RefusedError
from services.gateway.writing import SEND_AGAIN

TIMEOUT_S: Final = 5.0  # a slow client holds a place that others want


async def read_body(request: web.Request, bytes_max: int) -> bytes:
    """Read the body; RefusedError if it has another form than JSON, is too large or does not come."""
    encoding = request.headers.get("Content-Encoding")
    domain.check_form(*_content_type(request), encoding, request.content_length, bytes_max)
    body = bytearray()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            async for chunk in request.content.iter_any():
                body += chunk
                domain.check_size(len(body), bytes_max)
    except TimeoutError as error:
        detail = f"the body did not come within {TIMEOUT_S:g} s; {SEND_AGAIN}"
        raise RefusedError(Refusal.BODY_INCOMPLETE, detail) from error
    except (web.RequestPayloadError, ConnectionError) as error:
        raise RefusedError(Refusal.BODY_INCOMPLETE, f"the body broke off; {SEND_AGAIN}") from error
    return bytes(body)


def _content_type(request: web.Request) -> tuple[str, str | None]:
    """Return media type and charset; an empty media type if the header cannot be read."""
    try:
        return request.content_type, request.charset
    except ValueError:  # of some parameters that are not ASCII
        return "", None
