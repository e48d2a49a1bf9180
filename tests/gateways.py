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
from services.gateway.answers import Outcome
from services.gateway.audit import Audit
from services.gateway.domain import Refusal, RefusedError
from services.gateway.service import Gateway
from shared.eos.records import Record
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.clients import OWNER_UNNAMED
from shared.events.headers import SUBMITTED_BY, Coordinates, Headers
from shared.events.postings import AccountTerms
from shared.http.hosts import Hosts
from shared.http.keys import Keys
from shared.http.problems import PROBLEM
from shared.http.serving import runner_of
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import RecordMetadata
from shared.kafka.lineage import outcome
from shared.kafka.lineage.outcome import RecordNotFoundError, State
from tests.keys import AUTHORIZATION, KEYS
from tests.partitions import PARTITIONS, partition_for

BODY_BYTES_MAX = 64 * 1024
BATCH_BYTES_MAX = 1024 * 1024
JSON = {"Content-Type": "application/json"}


class Log:
    """A writer that keeps its records; it waits while `open` is cleared, and refuses with `failing`."""

    def __init__(self) -> None:
        self.records: list[tuple[str, int, bytes | None, bytes | None]] = []
        self.headers: list[Headers] = []  # of the records
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.tried = 0
        self.failing = False

    def add(self, value: bytes, debtor: str, submitted_by: str) -> None:
        """Add a record that another process has written."""
        self.records.append((PAYMENTS_RAW, partition_for(debtor), debtor.encode(), value))
        self.headers.append(((SUBMITTED_BY, submitted_by.encode()),))

    async def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> RecordMetadata:
        self.waiting += 1
        self.tried += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        if self.failing:
            raise KafkaUnavailableError("no broker answers")
        self.records.append((topic, partition, key, value))
        self.headers.append(headers)
        return RecordMetadata(topic, partition, len(self.records) - 1, 1_700_000_000_000)


class Outcomes:
    """A lookup over the records of a Log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.answer = outcome.Outcome(State.RECEIVED, Coordinates(PAYMENTS_RAW, 0, 0))
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0
        self.failing = False

    async def find(self, partition: int, offset: int, is_meant: Callable[[Record], bool]) -> outcome.Outcome:
        self.waiting += 1
        await self.open.wait()
        if self.failing:
            raise KafkaUnavailableError("no broker answers")
        if offset >= len(self._log.records):
            raise RecordNotFoundError(offset)
        topic, _, key, value = self._log.records[offset]
        if not is_meant(Record(topic, partition, offset, 0, key, value, self._log.headers[offset])):
            raise RecordNotFoundError(offset)
        return self.answer


class Accounts:
    """Owners in memory; `unnamed` is that of every account without terms."""

    def __init__(self, unnamed: str = OWNER_UNNAMED) -> None:
        self.opened: dict[str, AccountTerms] = {}
        self.pending: set[tuple[str, str]] = set()
        self.unnamed = unnamed

    def terms(self, account: str) -> AccountTerms | None:
        return self.opened.get(account)

    def owner_of(self, account: str) -> str:
        terms = self.opened.get(account)
        return self.unnamed if terms is None else terms.owner

    def is_opening(self, account: str, client: str) -> bool:
        return account not in self.opened and (account, client) in self.pending

    def opens(self, account: str, owner: str) -> None:
        self.pending.add((account, owner))


class Decided:
    """A view in memory; it fails with `failing`, and waits while `may_answer` is cleared."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str], Outcome] = {}
        self.asked: list[tuple[str, str, float, str]] = []
        self.failing = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def outcome(self, debtor: str, payment_id: str, wait_s: float, authorization: str) -> Outcome | None:
        self.asked.append((debtor, payment_id, wait_s, authorization))
        if self.failing:
            raise RefusedError(Refusal.VIEW_UNAVAILABLE, "it does not answer: ask again")
        await self.may_answer.wait()
        return self.outcomes.get((debtor, payment_id))


class Site:
    """A gateway that listens, and what it is connected to."""

    def __init__(
        self, session: aiohttp.ClientSession, url: URL, log: Log, outcomes: Outcomes, owners: Accounts, view: Decided
    ) -> None:
        self._session = session
        self.url = url
        self.log = log
        self.outcomes = outcomes
        self.owners = owners
        self.view = view

    async def ask(self, method: str, path: str, **arguments: Any) -> tuple[int, Any, dict[str, str]]:
        target = URL(str(self.url) + path, encoded=True)
        async with self._session.request(method, target, allow_redirects=False, **arguments) as answer:
            text = await answer.read()
            is_json = answer.content_type in {"application/json", PROBLEM}
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
    owner: str = OWNER_UNNAMED,
) -> AsyncIterator[Site]:
    """A gateway to which every account without terms belongs to `owner`."""
    log = Log()
    outcomes, owners, view = Outcomes(log), Accounts(owner), Decided()
    made = Gateway(
        log,
        outcomes.find,
        access or let_in(),
        owners,
        view,
        Hosts(["pay.example"]),
        accept_timeout_s=accept_timeout_s,
        requests_in_flight_max=requests_in_flight_max,
        body_bytes_max=body_bytes_max,
        batch_bytes_max=BATCH_BYTES_MAX,
        partitions=PARTITIONS,
    )
    runner = runner_of(made.app(), idle_timeout_s=idle_timeout_s, shutdown_timeout_s=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        # A test of keys sends its own, or none
        async with aiohttp.ClientSession(headers=AUTHORIZATION if access is None else None) as session:
            yield Site(session, URL(f"http://127.0.0.1:{runner.addresses[0][1]}"), log, outcomes, owners, view)
    finally:
        await runner.cleanup()
