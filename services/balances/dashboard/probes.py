"""Requests of the page: /readyz and /metrics of each watched instance, and what the monitor knows; read-only.

Invariant: each request has a bound, in time and bytes, and follows no redirect. A silent instance delays no other; one
that was killed or stopped is known to be silent within INSTANCE_PERIOD_S + INSTANCE_ANSWER_S. A monitor that does not
answer, or not as it should, is a failure in words.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from services.balances.dashboard.observed import MONITOR, Answer, Instance, Scrape, Watched, parse_scrape
from shared.events.headers import Coordinates
from shared.http.monitor import AT, CLUSTER_PATH, STEPS_PATH, ClusterState, Step, Steps
from shared.http.problems import Refused

# A busy service on a busy machine answers in a few tenths of a second, and a loss must show within two seconds
INSTANCE_PERIOD_S: Final = 0.5
INSTANCE_ANSWER_S: Final = 1.0
BODY_MAX: Final = 4 * 1024 * 1024
_REASON_MAX: Final = 200

OnInstance = Callable[[Instance], None]


def session(answer_s: float | None = None) -> aiohttp.ClientSession:
    """Make a session whose requests have `answer_s` seconds each, INSTANCE_ANSWER_S by default."""
    timeout = aiohttp.ClientTimeout(total=INSTANCE_ANSWER_S if answer_s is None else answer_s)
    return aiohttp.ClientSession(timeout=timeout, auto_decompress=False)


async def watch(client: aiohttp.ClientSession, watched: Watched, on_instance: OnInstance) -> None:
    loop = asyncio.get_running_loop()
    while True:
        begun_s = loop.time()
        on_instance(await ask(client, watched))
        await asyncio.sleep(max(begun_s + INSTANCE_PERIOD_S - loop.time(), 0.0))


async def ask(client: aiohttp.ClientSession, watched: Watched) -> Instance:
    base = f"http://{watched.host}:{watched.port}"
    (answer, reasons), scrape = await asyncio.gather(_readyz(client, base), _metrics(client, base))
    return Instance(watched, answer, reasons, scrape)


async def _readyz(client: aiohttp.ClientSession, base: str) -> tuple[Answer, dict[str, str]]:
    try:
        status, body = await _get(client, f"{base}/readyz")
    except (aiohttp.ClientError, TimeoutError) as error:
        why = f"no answer within {INSTANCE_ANSWER_S:g} s" if isinstance(error, TimeoutError) else "no connection"
        return Answer.SILENT, {"address": why}
    if status == 200:
        return Answer.READY, {}
    return Answer.NOT_READY, _reasons(body)


def _reasons(body: bytes) -> dict[str, str]:
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return {}
    reasons = answer.get("reasons") if isinstance(answer, dict) else None
    if not isinstance(reasons, dict):
        return {}
    return {str(name): str(reason)[:_REASON_MAX] for name, reason in reasons.items()}


async def _metrics(client: aiohttp.ClientSession, base: str) -> Scrape | None:
    try:
        status, body = await _get(client, f"{base}/metrics")
        return parse_scrape(body.decode()) if status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError):  # the text is not what Prometheus reads
        return None


async def _get(client: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    """Status and body, bounded in size and time."""
    async with client.get(url, allow_redirects=False) as response:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > BODY_MAX:
                raise aiohttp.ClientPayloadError(f"{url} has more than {BODY_MAX} bytes")
        return response.status, bytes(body)


STEPS_ANSWER_S: Final = 7.0  # the monitor's own deadline is 5 s
UNWATCHED: Final = "no monitor is watched: name one in ONCE_VIEW_WATCHED"

OnState = Callable[[ClusterState | None, str], None]
S = TypeVar("S", bound=msgspec.Struct)


class MonitorUnavailableError(Exception):
    """The monitor did not give what it was asked for; the message says why."""


class Monitor:
    """The monitor among the watched instances, or none."""

    def __init__(self, watched: Iterable[Watched]) -> None:
        self._watched = next((one for one in watched if one.service == MONITOR), None)

    async def watch(self, client: aiohttp.ClientSession, on_state: OnState) -> None:
        """Ask for the cluster's state again and again; `on_state` takes each, or None and the failure."""
        loop = asyncio.get_running_loop()
        while True:
            begun_s = loop.time()
            try:
                on_state(await self._state(client), "")
            except MonitorUnavailableError as error:
                on_state(None, str(error))
            await asyncio.sleep(max(begun_s + INSTANCE_PERIOD_S - loop.time(), 0.0))

    async def _state(self, client: aiohttp.ClientSession) -> ClusterState:
        state = await self._ask(client, CLUSTER_PATH, ClusterState)
        if state.failure:
            raise MonitorUnavailableError(f"the brokers do not answer all: {state.failure[:_REASON_MAX]}")
        return state

    async def steps(self, postings: Iterable[Coordinates]) -> dict[str, Step]:
        """The records that postings go back to, by their coordinates; MonitorUnavailableError if one lacks."""
        places = [str(at) for at in postings]
        query = urlencode([(AT, place) for place in places])
        async with session(STEPS_ANSWER_S) as client:
            found = await self._ask(client, f"{STEPS_PATH}?{query}", Steps)
        steps = {step.at: step for step in found.steps}
        if missing := [place for place in places if place not in steps]:
            raise MonitorUnavailableError(f"the monitor does not answer for {missing[0]}")
        return steps

    async def _ask(self, client: aiohttp.ClientSession, path: str, kind: type[S]) -> S:
        if self._watched is None:
            raise MonitorUnavailableError(UNWATCHED)
        try:
            status, body = await _get(client, f"http://{self._watched.host}:{self._watched.port}{path}")
        except TimeoutError as error:
            raise MonitorUnavailableError("the monitor does not answer in time") from error
        except aiohttp.ClientConnectionError as error:
            raise MonitorUnavailableError("the monitor does not answer at its address") from error
        except aiohttp.ClientError as error:
            raise MonitorUnavailableError("the monitor's answer cannot be read") from error
        try:
            if status == 200:
                return msgspec.json.decode(body, type=kind)
            refused = msgspec.json.decode(body, type=Refused).detail
        except (msgspec.DecodeError, RecursionError) as error:
            raise MonitorUnavailableError(f"the monitor's answer, {status}, is not understood") from error
        raise MonitorUnavailableError(f"the monitor answers {status}: {refused[:_REASON_MAX]}")
