"""What the page asks of the monitor, over real connections: to the monitor's own interface, and to faulty ones."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from deploy.local.ports import free_ports
from services.balances.dashboard import probes
from services.balances.dashboard.observed import MONITOR, Watched
from services.balances.dashboard.probes import Monitor, MonitorUnavailableError
from services.balances.projection import database
from services.monitor import interface
from services.monitor.domain import Partition, Picture
from services.monitor.interface import Interface
from shared.events.catalogue import LEDGER_POSTINGS, PAYMENTS_RAW
from shared.events.headers import Coordinates
from shared.http.hosts import Hosts
from shared.http.monitor import ClusterState, Step, Steps
from shared.kafka.client.access import Bootstrap
from shared.telemetry.server import Health, TelemetryServer
from tests.ledgers import P
from tests.live import run, state
from tests.live_site import HOST, page
from tests.views import View

FIRST_S = 5.0
POSTING = Coordinates(LEDGER_POSTINGS, 1, 7)
RAW = Coordinates(PAYMENTS_RAW, 1, 3)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def step(at: Coordinates, source: Coordinates | None) -> Step:
    return Step("a record", *at, str(at), 1_000, None if source is None else str(source), found=True)


@asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[Watched]:
    """A monitor that answers every request by one handler."""
    app = web.Application()
    app.add_routes([web.get("/{rest:.*}", handler)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        yield Watched(MONITOR, HOST, runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def body(_: web.Request, *, text: str | bytes, status: int = 200) -> web.StreamResponse:
    return web.Response(body=text, status=status)


async def silent(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def slow(request: web.Request) -> web.StreamResponse:
    """Begin an answer, and send a byte now and then."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 65_536)


async def redirecting(request: web.Request) -> web.StreamResponse:
    """Send the page to another place; that place would answer as a monitor does."""
    if request.path == "/elsewhere":
        return web.Response(body=msgspec.json.encode(state()))
    raise web.HTTPFound("/elsewhere")


REFUSAL = json.dumps({"error": "busy", "detail": "too many ways are being read: ask again"})
FAULTY: list[tuple[Handler, str]] = [
    (silent, "does not answer in time"),
    (slow, "does not answer in time"),
    (endless, "answer cannot be read"),
    (redirecting, "answer, 302, is not understood"),
    (partial(body, text=b"\xff\x00 no JSON"), "answer, 200, is not understood"),
    (partial(body, text=""), "answer, 200, is not understood"),
    (partial(body, text="[]"), "answer, 200, is not understood"),
    (partial(body, text='{"failure": 1, "steps": 2}'), "answer, 200, is not understood"),
    (partial(body, text='{"x": ' + "[" * 100_000), "answer, 200, is not understood"),
    (partial(body, text="Not Found", status=404), "answer, 404, is not understood"),
    (partial(body, text=REFUSAL, status=503), "answers 503: too many ways are being read: ask again"),
    (partial(body, text=json.dumps({"error": "", "detail": "x" * 9_999}), status=421), "answers 421: x"),
    (partial(body, text="500 Internal Server Error", status=500), "answer, 500, is not understood"),
]


@pytest.mark.parametrize(("handler", "failure"), FAULTY)
async def test_a_faulty_answer_is_a_failure_in_words(
    monkeypatch: pytest.MonkeyPatch, handler: Handler, failure: str
) -> None:
    monkeypatch.setattr(probes, "INSTANCE_ANSWER_S", 0.3)
    monkeypatch.setattr(probes, "STEPS_ANSWER_S", 0.3)
    monkeypatch.setattr(probes, "BODY_MAX", 1_000_000)
    async with answering(handler) as watched, asyncio.timeout(10):
        with pytest.raises(MonitorUnavailableError, match=failure) as refused:
            await Monitor([watched]).steps([POSTING])
        assert len(str(refused.value)) < 300
        assert (await first_state(watched))[0] is None
        assert failure in (await first_state(watched))[1]


async def first_state(*watched: Watched) -> tuple[ClusterState | None, str]:
    """The first state, or failure, that a watch reports."""
    seen: asyncio.Queue[tuple[ClusterState | None, str]] = asyncio.Queue()
    async with probes.session() as client:
        watch = asyncio.create_task(Monitor(watched).watch(client, lambda *found: seen.put_nowait(found)))
        try:
            return await seen.get()
        finally:
            watch.cancel()


async def test_no_connection_and_no_monitor_are_failures_in_words() -> None:
    nowhere = Watched(MONITOR, HOST, free_ports(1)[0])
    for watched, failure in (([nowhere], "the monitor does not answer at its address"), ([], probes.UNWATCHED)):
        assert await first_state(*watched) == (None, failure)
        with pytest.raises(MonitorUnavailableError, match=failure):
            await Monitor(watched).steps([POSTING])


async def test_brokers_that_do_not_answer_the_monitor_are_a_failure() -> None:
    text = msgspec.json.encode(state(failure="broker 2: no answer within 2 s"))
    async with answering(partial(body, text=text)) as watched:
        failure = "the brokers do not answer all: broker 2: no answer within 2 s"
        assert await first_state(watched) == (None, failure)


async def test_an_answer_that_lacks_a_posting_is_a_failure() -> None:
    text = msgspec.json.encode(Steps((step(RAW, None),)))
    async with answering(partial(body, text=text)) as watched:
        with pytest.raises(MonitorUnavailableError, match=f"does not answer for {POSTING}"):
            await Monitor([watched]).steps([POSTING])


class Served:
    """The monitor's own interface, and what it answers from."""

    def __init__(self) -> None:
        self.picture = Picture()
        self.failure = "not asked yet"
        made = Interface("127.0.0.1:1", lambda: self.picture, lambda: self.failure, Hosts([]))
        self.server = TelemetryServer(0, Health(), more=made.routes())

    @property
    def watched(self) -> Watched:
        return Watched(MONITOR, HOST, self.server.port)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    async with made.server:
        yield made


@pytest.fixture
async def view(tmp_path: Path) -> AsyncIterator[View]:
    made = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    yield made
    made.close()


async def test_the_monitors_word_is_shown_and_its_silence_too(view: View, served: Served) -> None:
    async def until(what: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(FIRST_S):
            while not what(snapshot := await stream.next()):
                pass
        return snapshot

    async with page(view, [served.watched]) as shown, shown.stream() as stream:
        snapshot = await until(lambda now: now["cluster_failure"])
        assert snapshot["cluster_failure"] == "the brokers do not answer all: not asked yet"
        assert (snapshot["brokers"], snapshot["runs_known"]) == (None, False)
        assert MONITOR not in snapshot["services"]
        parts = {(PAYMENTS_RAW, 0): Partition(10, 13), (PAYMENTS_RAW, 1): Partition(4, 5)}
        behind = {"ingest": {(PAYMENTS_RAW, 0): 6}}
        served.picture = Picture(asked=True, brokers=3, partitions=parts, behind=behind, run=run())
        served.failure = ""
        snapshot = await until(lambda now: now["brokers"] == 3)
        hop = snapshot["hops"][PAYMENTS_RAW]
        assert (hop["lso_lag"], hop["lag"], hop["lag_with_markers"]) == (4, 6, True)
        assert snapshot["reconciliation"]["cut_id"] == run().outcome.cut_id
        assert (snapshot["cluster_failure"], snapshot["runs_known"]) == ("", True)
        served.failure = "broker 0: no answer within 2 s"
        snapshot = await until(lambda now: now["cluster_failure"])
        assert snapshot["events"][0]["text"] == "the brokers do not answer all: broker 0: no answer within 2 s"
        assert snapshot["reconciliation"]["cut_id"] == run().outcome.cut_id


async def test_a_payments_way_comes_from_the_monitor(
    view: View, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(_: Bootstrap, postings: Iterable[Coordinates]) -> Steps:
        return Steps((*(step(at, RAW) for at in postings), step(RAW, None)))

    monkeypatch.setattr(interface, "steps_of", steps)
    view.fund()
    offset = view.book("p-1")
    view.take()
    async with page(view, [served.watched]) as shown:
        status, text, _ = await shown.get("/api/payments/p-1/way")
    [way] = json.loads(text)["ways"]
    assert status == 200
    assert [each["at"] for each in way["steps"]] == [str(RAW), f"{LEDGER_POSTINGS}:{P}:{offset}"]
    assert set(way["steps"][0]) == {"what", "topic", "partition", "offset", "at", "timestamp_ms", "source", "found"}


async def test_the_api_works_without_a_monitor(view: View) -> None:
    view.fund()
    view.book("p-1")
    view.take()
    async with page(view, [Watched(MONITOR, HOST, free_ports(1)[0])]) as shown:
        assert (await shown.get("/api/payments/p-1"))[0] == 200
        status, text, headers = await shown.get("/api/payments/p-1/way")
    refused = json.loads(text)
    assert (status, refused["error"], headers["Retry-After"]) == (503, "kafka_unavailable", "1")
    assert refused["detail"] == "the monitor does not answer at its address; ask again later"
