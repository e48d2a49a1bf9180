"""The page's HTTP side, over real connections: its files, its stream, and the life of the collector."""

import asyncio
import logging
import re
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy

from services.balances.api.access import Admission
from services.balances.dashboard import collector, evidence, probes, site
from services.balances.dashboard.collector import Collector
from services.balances.dashboard.probes import Monitor, MonitorUnavailableError
from services.balances.dashboard.tables import Look, Looking
from services.balances.projection import database
from shared.events.clients import Scope
from shared.http.hosts import Hosts
from shared.http.keys import Keys, key_of
from shared.http.monitor import Step
from shared.telemetry import catalogue
from tests.harness import eventually
from tests.live_site import Page, answering, page
from tests.views import View

FIRST_S = 5.0
WITHIN_S = 2.0


@pytest.fixture
async def view(tmp_path: Path) -> AsyncIterator[View]:
    made = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    yield made
    made.close()


@pytest.fixture
async def shown(view: View) -> AsyncIterator[Page]:
    async with page(view) as made:
        yield made


@pytest.mark.parametrize("path", site.FILES)
async def test_each_file_has_its_type_and_the_policy(shown: Page, path: str) -> None:
    status, body, headers = await shown.get(path)
    assert status == 200
    assert body
    assert headers["Content-Type"].startswith(site.FILES[path][1])
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


async def test_nothing_else_is_served(shown: Page) -> None:
    for path in ("/static/", "/static/index.html", "/static/../api.py", "/static/%2e%2e/api.py", "/api.py"):
        assert (await shown.get(path))[0] == 404


async def test_the_page_needs_nothing_but_its_own_files(shown: Page) -> None:
    bodies = {path: (await shown.get(path))[1].decode() for path in site.FILES}
    named = set(re.findall(r'(?:href|src)="(/static/[^"]+)"', bodies["/"]))
    named |= {f"/static/{name}" for body in bodies.values() for name in re.findall(r'from "\./([^"]+)"', body)}
    assert named == site.FILES.keys() - {"/"}
    for path, body in bodies.items():
        assert set(re.findall(r"https?://[^\s\"']+", body)) <= {"http://www.w3.org/2000/svg"}, path
    assert not re.search(r"\sstyle=|\son[a-z]+=|<style|<script(?! type=\"module\" src=)", bodies["/"])
    assert not any(
        word in body for body in bodies.values() for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval(")
    )


async def test_a_stream_begins_with_the_retry_time_before_its_first_snapshot(view: View) -> None:
    view.fund()
    view.book()
    view.take()
    async with answering("ledger") as [ledger], page(view, [ledger.watched]) as shown, shown.stream() as stream:
        ledger.series = {catalogue.RECORDS_LAG: {("ledger.transfers", "0"): 7}}
        assert await stream.lines() == ["retry: 1000"]
        assert stream.answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert stream.answer.headers["Cache-Control"] == "no-store"
        snapshot = await stream.until("ledger", "ready", FIRST_S)
        assert snapshot["services"]["ingest"]["state"] == "unwatched"
        assert (snapshot["view"]["debits"], snapshot["view"]["credits"]) == (1, 0)
        assert snapshot["hops"]["ledger.transfers"]["lag"] == 7


async def test_a_stopped_service_and_its_return_are_shown_in_time(view: View) -> None:
    async with (
        answering("ingest", "ledger") as [ingest, ledger],
        page(view, [ingest.watched, ledger.watched]) as shown,
        shown.stream() as stream,
    ):
        await stream.until("ledger", "ready", FIRST_S)
        await ledger.end()
        snapshot = await stream.until("ledger", "silent", WITHIN_S)
        assert snapshot["services"]["ledger"]["reasons"] == ["address: no connection"]
        assert snapshot["services"]["ingest"]["state"] == "ready"
        assert snapshot["events"][0]["text"] == "ledger does not answer"
        await ledger.start()
        await stream.until("ledger", "ready", WITHIN_S)


async def test_a_blocked_service_and_its_recovery_are_shown_in_time(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probes.INSTANCE_PERIOD_S + probes.INSTANCE_ANSWER_S < WITHIN_S
    monkeypatch.setattr(probes, "INSTANCE_PERIOD_S", 0.1)  # leave room for the delays of a busy machine
    monkeypatch.setattr(probes, "INSTANCE_ANSWER_S", 0.3)
    async with answering("ledger") as [ledger], page(view, [ledger.watched]) as shown, shown.stream() as stream:
        await stream.until("ledger", "ready", FIRST_S)
        ledger.open.clear()
        snapshot = await stream.until("ledger", "silent", WITHIN_S)
        assert snapshot["services"]["ledger"]["reasons"] == ["address: no answer within 0.3 s"]
        ledger.open.set()
        await stream.until("ledger", "ready", WITHIN_S)


async def test_the_reason_why_a_service_is_not_ready_is_shown(view: View) -> None:
    async with answering("outbox") as [outbox], page(view, [outbox.watched]) as shown, shown.stream() as stream:
        outbox.health.missing("redis", "was restarted")
        snapshot = await stream.until("outbox", "not_ready", FIRST_S)
        assert snapshot["services"]["outbox"]["reasons"] == ["redis: was restarted"]


async def test_an_unavailable_database_is_shown_and_other_sources_go_on(view: View, tmp_path: Path) -> None:
    async with answering("ledger") as [ledger], page(view, [ledger.watched]) as shown, shown.stream() as stream:
        assert (await stream.until("ledger", "ready", FIRST_S))["view"] is not None
        view.change(*(sqlalchemy.text(f"DROP TABLE {table}") for table in ("totals", "positions", "events")))
        async with asyncio.timeout(WITHIN_S):
            while (snapshot := await stream.next())["view"] is not None:
                pass
        assert snapshot["view_failure"]
        assert snapshot["services"]["ledger"]["state"] == "ready"


async def test_a_database_that_hangs_is_shown_without_its_former_figures(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert collector.VIEW_ANSWER_S + collector.ROUND_S < evidence.REST_S
    look = Looking.look
    hangs, go_on = threading.Event(), threading.Event()

    def hanging(looking: Looking, connection: sqlalchemy.Connection) -> Look:
        if hangs.is_set():
            assert go_on.wait(30)
        return look(looking, connection)

    monkeypatch.setattr(Looking, "look", hanging)
    async with page(view) as shown, shown.stream() as stream:
        try:
            async with asyncio.timeout(FIRST_S):
                while (await stream.next())["view"] is None:
                    pass
            hangs.set()
            async with asyncio.timeout(FIRST_S):
                while (snapshot := await stream.next())["view"] is not None:
                    pass
            assert snapshot["view_failure"] == "no answer within 1.5 s"
        finally:
            go_on.set()
        async with asyncio.timeout(FIRST_S):
            while (await stream.next())["view"] is None:
                pass


async def test_a_page_without_a_monitor_says_so(shown: Page) -> None:
    async with shown.stream() as stream, asyncio.timeout(FIRST_S):
        snapshot = await stream.next()
    assert (snapshot["brokers"], snapshot["cluster_failure"]) == (None, probes.UNWATCHED)
    assert snapshot["runs_known"] is False


async def test_all_streams_share_one_collector_that_stops_without_clients(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "LINGER_S", 0.2)
    async with answering("ledger") as [ledger], page(view, [ledger.watched]) as shown:
        await asyncio.sleep(0.7)
        assert ledger.asked == 0
        async with shown.stream() as one, shown.stream() as two:
            snapshot = await one.until("ledger", "ready", FIRST_S)
            begun, asked = snapshot["at_ms"], ledger.asked
            while (snapshot := await two.next())["at_ms"] < begun + 2000:
                pass
            assert 3 <= ledger.asked - asked <= 6, "twice a second, for both"

        async def stopped() -> bool:
            collecting = shown.live._collecting
            return collecting is not None and collecting.done()

        await eventually(stopped, "the collector stops")
        asked = ledger.asked
        await asyncio.sleep(1)
        assert ledger.asked == asked
        async with shown.stream() as again:
            await again.until("ledger", "ready", FIRST_S)


async def test_one_client_too_many_is_refused_with_retry_after(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "CLIENTS_MAX", 1)
    async with page(view) as shown, shown.stream():
        status, body, headers = await shown.get("/events")
        assert (status, headers["Retry-After"]) == (503, "5")
        assert b'"busy"' in body


async def test_a_slow_client_skips_messages(shown: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    async def idle(_: Collector) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Collector, "run", idle)
    host, port = shown.origin.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(slow, b"GET /events HTTP/1.1\r\nHost: page\r\n\r\n")
        while not shown.live._hub.clients:
            await asyncio.sleep(0.01)
        for number in range(2000):
            shown.live._hub.publish(b"%06d" % number * 1000)
            await asyncio.sleep(0)
        received = b""
        async with asyncio.timeout(10):
            while b"001999" not in received:
                received += await loop.sock_recv(slow, 1 << 20)
    assert received.count(b"data: ") < 200


async def test_a_client_that_reads_nothing_is_disconnected(shown: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "STALLED_S", 0.3)
    host, port = shown.origin.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as stalled:
        stalled.sendall(b"GET /events HTTP/1.1\r\nHost: page\r\n\r\n")
        async with asyncio.timeout(20):
            while not shown.live._hub.clients:
                await asyncio.sleep(0.01)
            while shown.live._hub.clients:
                shown.live._hub.publish(b"x" * 200_000)
                await asyncio.sleep(0.01)


async def test_an_idle_stream_sends_comments(shown: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "HEARTBEAT_S", 0.05)
    async with shown.stream() as stream:
        assert await stream.lines() == ["retry: 1000"]
        while (lines := await stream.lines()) != [": alive"]:
            assert lines[0].startswith("data: ")  # the first snapshot, which may come sooner


@pytest.mark.parametrize("revoked", [True, False])
async def test_a_stream_ends_when_its_key_is_revoked_or_expires(view: View, *, revoked: bool) -> None:
    now_ms = 0
    keys = Keys([key_of("staff", "staff-key", {Scope.READ, Scope.HOUSE}, 1000)])
    admission = Admission(keys, Hosts([]), lambda: now_ms * 1_000_000)
    sent = {"Authorization": "Bearer staff-key"}
    async with page(view, admission=admission) as shown, shown.stream(sent) as stream:
        await stream.next()
        if revoked:
            admission.use(Keys([key_of("staff", "another-key", {Scope.READ, Scope.HOUSE})]))
        else:
            now_ms = 1000
        async with asyncio.timeout(FIRST_S):
            while await stream.lines():
                pass


async def test_a_stop_ends_all_streams_at_once(shown: Page) -> None:
    async with shown.stream() as stream:
        await stream.next()
        async with asyncio.timeout(2):
            await shown.live.stop()
            while await stream.lines():
                pass


async def test_a_collector_that_fails_is_logged_and_restarted_by_the_next_client(
    view: View, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("a defect")

    async with page(view) as shown:
        with monkeypatch.context() as defect, caplog.at_level(logging.ERROR):
            defect.setattr(Looking, "look", fail)
            async with shown.stream() as stream, asyncio.timeout(FIRST_S):
                with pytest.raises(EOFError):
                    await stream.next()
        assert "the collector ended" in caplog.text
        async with shown.stream() as again, asyncio.timeout(FIRST_S):
            await again.next()


async def test_a_collector_that_fails_is_restarted_though_a_stalled_client_keeps_its_place(
    shown: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("a defect")

    with monkeypatch.context() as defect:
        defect.setattr(Looking, "look", fail)
        with shown.live._hub.client() as stalled:
            while not stalled.closed:
                await stalled.next(FIRST_S)
            defect.undo()
            async with shown.stream() as again, asyncio.timeout(FIRST_S):
                await again.next()


async def test_a_client_that_comes_while_the_collector_is_being_cancelled_gets_another(shown: Page) -> None:
    async with shown.stream() as stream:
        await stream.next()
        cancelled = shown.live._collecting
        assert cancelled is not None
        shown.live._cancel()
        async with asyncio.timeout(FIRST_S):
            await asyncio.wait([cancelled])
            assert shown.live._collecting is not cancelled
            await stream.next()


@pytest.mark.parametrize(
    ("asked", "status", "error"),
    [
        ("never-sent/way", 404, "not_found"),
        ("p-1/way?debtor=another", 404, "not_found"),
        (f"{'x' * 200}/way", 400, "parameter_invalid"),
        ("p-1/way?debter=2378", 400, "parameter_unknown"),
        ("p-1/way", 503, "kafka_unavailable"),
    ],
)
async def test_a_way_that_cannot_be_shown_is_answered_with_the_reason(
    view: View, asked: str, status: int, error: str
) -> None:
    view.fund()
    view.book("p-1")
    view.take()
    async with page(view) as shown:
        answered, body, headers = await shown.get(f"/api/payments/{asked}")
        assert answered == status
        assert f'"{error}"'.encode() in body
        assert ("Retry-After" in headers) == (status == 503)


async def test_failures_of_ways_are_logged_once_for_each_outage(
    view: View, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = False

    async def steps(*_: object) -> dict[str, Step]:
        if failing:
            raise MonitorUnavailableError("no monitor answers")
        return {}

    monkeypatch.setattr(Monitor, "steps", steps)
    caplog.set_level(logging.INFO, "services.balances.dashboard.site")
    view.fund()
    view.book("p-1")
    view.take()
    async with page(view) as shown:
        for failing in (False, True, True, False, False, True):
            assert (await shown.get("/api/payments/p-1/way"))[0] == (503 if failing else 200)
    logged = [(line.getMessage(), vars(line).get("reason")) for line in caplog.records]
    lost, found = ("ways cannot be read", "no monitor answers"), ("ways can be read again", None)
    assert logged == [lost, found, lost]
