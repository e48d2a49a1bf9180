"""Asking the watched instances: /readyz and /metrics of each, twice a second, each with a bound of its own.

What holds: an instance that is silent delays nobody; one that was killed or stopped is known to be silent within
PERIOD_S + ANSWER_S. It must not know what the figures mean.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import aiohttp

from services.balances.dashboard.observed import Answer, Instance
from services.balances.dashboard.scrape import Scrape, parse
from services.balances.dashboard.watched import Watched

PERIOD_S: Final = 0.5
ANSWER_S: Final = 1.0
"""A busy service on a busy machine answers within a few tenths of a second; together less than the two seconds within
which a loss must show."""
BODY_MAX: Final = 4 * 1024 * 1024
_REASON_MAX: Final = 200

OnInstance = Callable[[Instance], None]


def session() -> aiohttp.ClientSession:
    """A client for asking; the caller closes it."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S), auto_decompress=False)


async def watch(client: aiohttp.ClientSession, watched: Watched, tell: OnInstance) -> None:
    """Ask one instance for ever, and tell each time."""
    loop = asyncio.get_running_loop()
    while True:
        begun_s = loop.time()
        tell(await ask(client, watched))
        await asyncio.sleep(max(begun_s + PERIOD_S - loop.time(), 0.0))


async def ask(client: aiohttp.ClientSession, watched: Watched) -> Instance:
    """Ask one instance once."""
    base = f"http://{watched.host}:{watched.port}"
    (answer, reasons), scrape = await asyncio.gather(_readyz(client, base), _metrics(client, base))
    return Instance(watched, answer, reasons, scrape)


async def _readyz(client: aiohttp.ClientSession, base: str) -> tuple[Answer, dict[str, str]]:
    try:
        status, body = await _get(client, f"{base}/readyz")
    except (aiohttp.ClientError, TimeoutError) as error:
        why = f"no answer within {ANSWER_S:g} s" if isinstance(error, TimeoutError) else "no connection"
        return Answer.SILENT, {"address": why}
    if status == 200:
        return Answer.READY, {}
    return Answer.NOT_READY, _reasons(body)


def _reasons(body: bytes) -> dict[str, str]:
    try:
        told: Any = json.loads(body)
    except ValueError:
        return {}
    reasons = told.get("reasons") if isinstance(told, dict) else None
    if not isinstance(reasons, dict):
        return {}
    return {str(name): str(reason)[:_REASON_MAX] for name, reason in reasons.items()}


async def _metrics(client: aiohttp.ClientSession, base: str) -> Scrape | None:
    try:
        status, body = await _get(client, f"{base}/metrics")
        return parse(body.decode()) if status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):  # the text is not what Prometheus reads
        return None


async def _get(client: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    """Status and body, bounded in size and time."""
    async with client.get(url) as response:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > BODY_MAX:
                raise aiohttp.ClientPayloadError(f"{url} has more than {BODY_MAX} bytes")
        return response.status, bytes(body)
