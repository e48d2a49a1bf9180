"""A view in a real database for tests: fed by the real ledger's handlers in memory, asked over real HTTP.

Postings wait until the test lets the view take them, so the test controls the lag. Every answer is checked against the
OpenAPI document.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp
import msgspec
import sqlalchemy
import yarl
from aiohttp import web

from services.balances.api import openapi
from services.balances.api.access import Admission
from services.balances.api.reader import Reader, Waiting
from services.balances.api.routes import Api, admitting
from services.balances.projection import database
from services.balances.projection.domain import Page, plan
from services.balances.projection.progress import PartitionFreshness
from services.balances.projection.store import Store
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.headers import Headers
from shared.events.postings import LedgerEvent, encode_ledger_event
from shared.events.transfers import AccountOpened
from shared.http.hosts import Hosts
from shared.http.serving import runner_of
from tests.json_schema import Checker
from tests.ledgers import DEBTOR, Ledger, P, transfer
from tests.partitions import PARTITIONS
from tests.postgres import Postgres

ALL = range(PARTITIONS)
STEP = 2
"""Offsets from one record to the next: each is followed by a marker."""
HOUR_MS = 3_600_000


_numbers = count()


def database_in_english(server: Postgres) -> sqlalchemy.URL:
    """An empty database that sorts text by English rules, not by bytes."""
    name = f"view{next(_numbers)}"
    engine = sqlalchemy.create_engine(server.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'"
        )
    engine.dispose()
    return server.url(name)


class View:
    """A ledger, its topic, and a view that reads on demand and reports its progress as the worker does.

    Args:
        url: of the view's database.

    Attributes:
        ledger: to send payments to.
        knows_ends: whether the brokers report the end offsets.
        alone: whether it knows its positions; False as if another instance wrote them.
        waiting: number of callers in `reached`.
    """

    def __init__(self, url: sqlalchemy.URL) -> None:
        self.url = url
        self.ledger = Ledger()
        self.knows_ends = True
        self.alone = True
        self.waiting = 0
        self._store = Store(url, PARTITIONS)
        self._store.open("cluster")
        self._known = dict.fromkeys(ALL, 0)  # as the worker has it in memory
        self._written = 0
        self._logs: list[list[Record]] = [[] for _ in ALL]
        self._moved = asyncio.Event()

    def end(self, partition: int) -> int:
        """The end offset of a partition, its last marker included."""
        self._collect()
        return STEP * len(self._logs[partition])

    def fund(self) -> None:
        """Let the debtor overdraw without limit."""
        self.ledger.send(AccountOpened(DEBTOR, None))

    def book(self, payment_id: str = "p-1") -> int:
        """Book the debit leg of a payment of the debtor's; its offset."""
        self.ledger.send(transfer(payment_id))
        return self.end(P) - STEP

    def post(self, partition: int, event: LedgerEvent, headers: Headers = ()) -> int:
        """Append an event that the ledger would not post now; returns its offset."""
        self._collect()
        return self._append(partition, event, headers)

    def take(self, partitions: Iterable[int] = ALL) -> None:
        """Let the view read all postings of these partitions."""
        self._collect()
        positions = self._store.positions()
        pages = []
        for partition in partitions:
            start = positions[partition].next_offset
            new = [record for record in self._logs[partition] if record.offset >= start]
            pages.append(Page(partition, start, self.end(partition), new))
        self._store.write(plan(pages, positions))
        self._known |= {page.partition: page.next_offset for page in pages}
        self._moved.set()
        self._moved = asyncio.Event()

    def _collect(self) -> None:
        for partition, event in self.ledger.events[self._written :]:
            source = b"ledger.transfers:%d:%d" % (partition, STEP * len(self._logs[partition]))
            self._append(partition, event, (("origin", b"payments.raw:0:7"), ("source", source)))
        self._written = len(self.ledger.events)

    def _append(self, partition: int, event: LedgerEvent, headers: Headers) -> int:
        log = self._logs[partition]
        offset = STEP * len(log)
        log.append(
            Record(LEDGER_POSTINGS, partition, offset, HOUR_MS + offset, None, encode_ledger_event(event), headers)
        )
        return offset

    async def freshness(self) -> Sequence[PartitionFreshness]:
        """Freshness as in `Progress`; one second of lag per offset."""
        found = []
        for partition, at in self._known.items():
            end = self.end(partition)
            found.append(
                PartitionFreshness(
                    partition, at, *((end, float(end - at), 0.0) if self.knows_ends else (None, None, None))
                )
            )
        return found

    async def reached(self, partition: int, offset: int, timeout_s: float) -> bool:
        """Wait as `Progress.reached` does."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self.alone or self._known[partition] <= offset:
            moved = self._moved
            self.waiting += 1
            try:
                async with asyncio.timeout_at(deadline):
                    await moved.wait()
            except TimeoutError:
                return False
            finally:
                self.waiting -= 1
        return True

    def change(self, *changes: sqlalchemy.Executable) -> None:
        """Change the database without the view."""
        engine = database.writing(self.url)
        with engine.begin() as connection:
            for change in changes:
                connection.execute(change)
        engine.dispose()

    def add(self, table: sqlalchemy.Table, rows: Sequence[dict[str, object]]) -> None:
        """Insert rows without the view."""
        engine = database.writing(self.url)
        with engine.begin() as connection:
            connection.execute(sqlalchemy.insert(table), rows)
        engine.dispose()

    def close(self) -> None:
        """Close the connections."""
        self._store.close()


class Site:
    """A view's API that listens.

    Attributes:
        view: of the API.
        reader: of the view's database.
        origin: its address.
    """

    def __init__(self, view: View, reader: Reader, session: aiohttp.ClientSession, origin: str) -> None:
        self.view = view
        self.reader = reader
        self.origin = origin
        self._session = session
        self._checker = Checker(openapi.document(PARTITIONS))

    async def ask(
        self, path: str, method: str = "GET", sent: Mapping[str, str] | None = None
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, body and headers; the body decoded, and checked against the document, where it is JSON.

        Args:
            sent: headers of the request.
        """
        async with self._session.request(
            method, yarl.URL(self.origin + path, encoded=True), headers=sent or {}
        ) as answer:
            text = await answer.read()
            headers = dict(answer.headers)
            if answer.content_type not in {"application/json", "application/problem+json"} or not text:
                return answer.status, text, headers
            body = msgspec.json.decode(text)
            if path.startswith(("/api/", "/v1/")):
                self._checker.check(body, _schema(path.partition("?")[0], answer.status))
            return answer.status, body, headers

    async def refused(self, path: str, status: int, error: str, *says: str) -> dict[str, Any]:
        """Send a request that is refused; returns the body."""
        answered, body, headers = await self.ask(path)
        assert isinstance(body, dict)
        assert (answered, body["error"]) == (status, error), body
        assert all(text in body["detail"] for text in says), body["detail"]
        assert ("Retry-After" in headers) == (status in {503, 504})
        assert headers["Cache-Control"] == "no-store"
        return body

    async def get(self, path: str) -> Any:
        """The body of a 200."""
        status, body, _ = await self.ask(path)
        assert status == 200, body
        return body


def _schema(path: str, status: int) -> dict[str, Any]:
    """The document's schema of an answer; that of a refusal for unknown paths and other methods than GET."""
    for template, methods in openapi.document(PARTITIONS)["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) and status != 405:
            [content] = methods["get"]["responses"][str(status)]["content"].values()
            found: dict[str, Any] = content["schema"]
            return found
    assert status in {401, 403, 404, 405, 421}
    return {"$ref": f"#/components/schemas/{'Problem' if path.startswith('/v1/') else 'Refused'}"}


@asynccontextmanager
async def serving(
    view: View, *, waiters: tuple[int, int] = (256, 64), pending_max: int = 256, admission: Admission | None = None
) -> AsyncIterator[Site]:
    """The API of a view, on a free loopback port, for so many waiters, in all and of one client.

    Without an admission, it admits every request.
    """
    reader = Reader(database.reading(view.url), pending_max=pending_max)
    waiting = Waiting(reader, view, waiters_max=waiters[0], of_client_max=waiters[1])
    app = web.Application(middlewares=[admitting(admission or Admission(None, Hosts([])))])
    app.add_routes(Api(reader, view, PARTITIONS, waiting).routes())
    runner = runner_of(app, idle_timeout_s=75, shutdown_timeout_s=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession() as session:
            yield Site(view, reader, session, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
        await reader.close()
