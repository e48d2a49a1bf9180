"""The page over real HTTP: a view of a ledger in memory, and services with set answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from deploy.local.ports import free_ports
from services.balances.api.access import Admission
from services.balances.api.reader import Reader
from services.balances.api.routes import Api, admitting
from services.balances.dashboard.observed import Watched
from services.balances.dashboard.site import Live
from services.balances.projection import database
from shared.http.hosts import Hosts
from shared.telemetry.server import Health
from tests.live import Series, text
from tests.partitions import PARTITIONS
from tests.views import View

HOST = "127.0.0.1"


class Answering:
    """A service's telemetry on a port of its own.

    Attributes:
        health: the answer of /readyz.
        series: the metrics of /metrics.
        open: while cleared, requests are not answered, as by a stopped process.
        asked: number of requests.
    """

    def __init__(self, service: str) -> None:
        self.watched = Watched(service, HOST, free_ports(1)[0])
        self.health = Health()
        self.series: Series = {}
        self.open = asyncio.Event()
        self.open.set()
        self.asked = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.add_routes([web.get("/readyz", self._readyz), web.get("/metrics", self._metrics)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self.watched.port).start()

    async def end(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _readyz(self, _: web.Request) -> web.Response:
        self.asked += 1
        await self.open.wait()
        return web.json_response({"reasons": self.health.reasons}, status=200 if self.health.ready else 503)

    async def _metrics(self, _: web.Request) -> web.Response:
        await self.open.wait()
        return web.Response(text=text(self.series))


class Stream:
    """An event stream that is read line by line."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def lines(self) -> list[str]:
        """Lines up to the next empty one; empty at the stream's end."""
        found: list[str] = []
        while line := await self.answer.content.readline():
            if line == b"\n":
                return found
            found.append(line.decode().rstrip("\n"))
        return found

    async def next(self) -> Any:
        """The next snapshot."""
        while lines := await self.lines():
            if lines[0].startswith("data: "):
                return msgspec.json.decode(lines[0].removeprefix("data: "))
        raise EOFError

    async def until(self, service: str, state: str, deadline_s: float) -> Any:
        """The first snapshot in which a service is in that state."""
        async with asyncio.timeout(deadline_s):
            while True:
                snapshot = await self.next()
                if snapshot["services"][service]["state"] == state:
                    return snapshot


class Page:
    """A page that listens."""

    def __init__(self, live: Live, view: View, session: aiohttp.ClientSession, origin: str) -> None:
        self.live = live
        self.view = view
        self.origin = origin
        self._session = session

    @asynccontextmanager
    async def stream(self, sent: Mapping[str, str] | None = None) -> AsyncIterator[Stream]:
        """Open the event stream with these headers."""
        timeout = aiohttp.ClientTimeout(total=60)
        async with self._session.get(
            f"{self.origin}/events", timeout=timeout, read_bufsize=1 << 20, headers=sent or {}
        ) as answer:
            assert answer.status == 200, await answer.text()
            yield Stream(answer)

    async def get(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        async with self._session.get(self.origin + path) as answer:
            return answer.status, await answer.read(), dict(answer.headers)


@asynccontextmanager
async def page(
    view: View, watched: Sequence[Watched] = (), *, health: Health | None = None, admission: Admission | None = None
) -> AsyncIterator[Page]:
    """A page of a view, with its API. Without an admission, it admits every request."""
    reader = Reader(database.reading(view.url))
    admission = admission or Admission(None, Hosts(["page"]))
    live = Live(
        watched,
        admission=admission,
        reader=reader,
        progress=view,
        health=health or Health(),
        partitions=PARTITIONS,
    )
    app = web.Application(middlewares=[admitting(admission)])
    app.add_routes([*live.routes(), *Api(reader, view, PARTITIONS).routes()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        async with aiohttp.ClientSession() as session:
            yield Page(live, view, session, f"http://{HOST}:{runner.addresses[0][1]}")
    finally:
        await live.stop()
        await runner.cleanup()
        await reader.close()


@asynccontextmanager
async def answering(*services: str) -> AsyncIterator[list[Answering]]:
    """Services that answer."""
    made = [Answering(service) for service in services]
    async with contextlib.AsyncExitStack() as stack:
        for one in made:
            stack.push_async_callback(one.end)
            await one.start()
        yield made
