"""A gateway's handlers over real HTTP, with a writer and a lookup in memory that a test can hold back."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from services.gateway.access import Access, RateLimiter
from services.gateway.audit import Audit
from services.gateway.service import Gateway
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.headers import Coordinates, Headers
from shared.http.keys import Keys
from shared.http.serving import SERVER_LOG
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import RecordMetadata
from shared.kafka.lineage.outcome import Outcome, RecordNotFoundError, State
from tests.keys import AUTHORIZATION, KEYS
from tests.partitions import PARTITIONS

BODY_BYTES_MAX = 64 * 1024
JSON = {"Content-Type": "application/json"}


class Log:
    """A writer that keeps its records; it waits while `open` is cleared, and refuses with `failing`."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int, bytes | None, bytes | None]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.tried = 0
        self.failing = False

    async def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> RecordMetadata:
        assert not headers
        self.waiting += 1
        self.tried += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        if self.failing:
            raise KafkaUnavailableError("no broker answers")
        self.records.append((topic, partition, key, value))
        return RecordMetadata(topic, partition, len(self.records) - 1, 1_700_000_000_000)


class Outcomes:
    """A lookup over the records of a Log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.answer = Outcome(State.RECEIVED, Coordinates(PAYMENTS_RAW, 0, 0))
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.failing = False

    async def find(self, partition: int, offset: int, is_meant: Callable[[Record], bool]) -> Outcome:
        self.waiting += 1
        await self.open.wait()
        if self.failing:
            raise KafkaUnavailableError("no broker answers")
        if offset >= len(self._log.records):
            raise RecordNotFoundError(offset)
        topic, _, key, value = self._log.records[offset]
        if not is_meant(Record(topic, partition, offset, 0, key, value, ())):
            raise RecordNotFoundError(offset)
        return self.answer


class Site:
    """A gateway that listens, its writer and its lookup."""

    def __init__(self, session: aiohttp.ClientSession, url: URL, log: Log, outcomes: Outcomes) -> None:
        self._session = session
        self.url = url
        self.log = log
        self.outcomes = outcomes

    async def ask(self, method: str, path: str, **arguments: Any) -> tuple[int, Any, dict[str, str]]:
        target = URL(str(self.url) + path, encoded=True)
        async with self._session.request(method, target, allow_redirects=False, **arguments) as answer:
            text = await answer.read()
            is_json = answer.content_type == "application/json"
            return answer.status, msgspec.json.decode(text) if is_json else text, dict(answer.headers)

    async def post(self, data: Any, headers: dict[str, str] | None = None) -> tuple[int, Any, dict[str, str]]:
        return await self.ask("POST", "/payments", data=data, headers=headers or JSON)


def let_in(keys: Keys = KEYS, limiter: RateLimiter | None = None, audit: Audit | None = None) -> Access:
    """Access with these keys and limits."""
    return Access(keys, limiter, audit or Audit("0"), time.monotonic_ns, time.time_ns)


@asynccontextmanager
async def gateway(
    accept_timeout_s: float = 5.0,
    requests_in_flight_max: int = 100,
    body_bytes_max: int = BODY_BYTES_MAX,
    access: Access | None = None,
    idle_timeout_s: float = 75.0,
) -> AsyncIterator[Site]:
    log = Log()
    outcomes = Outcomes(log)
    made = Gateway(
        log,
        outcomes.find,
        access or let_in(),
        accept_timeout_s=accept_timeout_s,
        requests_in_flight_max=requests_in_flight_max,
        body_bytes_max=body_bytes_max,
        partitions=PARTITIONS,
    )
    runner = web.AppRunner(
        made.app(),
        access_log=None,
        auto_decompress=False,
        keepalive_timeout=idle_timeout_s,
        logger=SERVER_LOG,
        shutdown_timeout=1,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        # A test of keys sends its own, or none
        async with aiohttp.ClientSession(headers=AUTHORIZATION if access is None else None) as session:
            yield Site(session, URL(f"http://127.0.0.1:{runner.addresses[0][1]}"), log, outcomes)
    finally:
        await runner.cleanup()
