"""Requests that the read side's API refuses, over real HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client import REGISTRY
from sqlalchemy import Connection

from services.balances.api.parameters import ACCOUNT_CHARS_MAX, WAIT_S_MAX
from services.balances.api.reader import Snapshot
from services.balances.projection import database
from shared.events.payments import MAX_PAYMENT_ID_CHARS
from tests.ledgers import CREDITOR, DEBTOR, Q
from tests.views import Site, View, serving


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    view = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    async with serving(view) as made:
        yield made
    view.close()


@pytest.fixture
def funded(site: Site) -> Site:
    """The API after the debtor was funded and the view has read it."""
    site.view.fund()
    site.view.take()
    return site


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("totals?currency=EUR", "parameter_unknown", ["'currency'", "at_least, timeout"]),
        ("freshness?at_least=1:2", "parameter_unknown", ["its parameters are: none"]),
        ("totals?timeout=1&timeout=2", "parameter_invalid", ["timeout", "twice"]),
        ("totals?timeout=soon", "parameter_invalid", ["timeout", "'soon'", "seconds to wait"]),
        (f"totals?timeout={WAIT_S_MAX + 1}", "parameter_invalid", ["timeout", "<= 30"]),
        ("totals?at_least=6:1", "parameter_invalid", ["'6:1'", "0 to 5", "5:1207"]),
        ("totals?at_least=1:-1", "parameter_invalid", ["'1:-1'"]),
        ("totals?at_least=1", "parameter_invalid", ["'1'"]),
        ("totals?at_least=", "parameter_invalid", ["''"]),
        ("totals?at_least=1:9,", "parameter_invalid", ["''"]),
        ("totals?at_least=1:" + "9" * 19, "parameter_invalid", ["partition:offset"]),
        ("totals?at_least=payments.raw:1:2", "parameter_invalid", ["payments.raw:1:2", "?wait="]),
        ("accounts/2378/entries?limit=0", "parameter_invalid", ["limit", ">= 1"]),
        ("accounts/2378/entries?limit=201", "parameter_invalid", ["limit", "<= 200"]),
        ("accounts/2378/entries?order=x%20-%20at%20y", "parameter_invalid", ["'x - at y'", "newest or oldest"]),
        ("accounts/2378/entries?order=random", "parameter_invalid", ["order", "newest or oldest"]),
        ("accounts/2378/entries?currency=EUX", "parameter_invalid", ["currency", "'EUX'", "ISO 4217"]),
        ("accounts/2378/entries?after=abc", "parameter_invalid", ["after", "`next`"]),
        ("accounts/2378/entries?after=%C3%A9", "parameter_invalid", ["after", "`next`"]),
        ("accounts/2378/entries?after=" + "a" * 81, "parameter_invalid", ["after", "<= 80"]),
        ("accounts/" + "a" * (ACCOUNT_CHARS_MAX + 1), "account_invalid", ["64 characters"]),
        ("accounts/cash@6", "account_invalid", ["cash@6", "@0 to @5"]),
        ("payments/" + "a" * (MAX_PAYMENT_ID_CHARS + 1), "parameter_invalid", ["128 characters"]),
        ("payments/p-1?wait=31", "parameter_invalid", ["wait", "<= 30"]),
        ("payments/p-1?debtor=", "parameter_invalid", ["debtor", ">= 1"]),
        ("payments/p-1?until=paid", "parameter_invalid", ["until", "settled"]),
        ("payments/p-1?debtor=1%00", "parameter_invalid", ["U+0000"]),
        ("payments/p%00", "parameter_invalid", ["U+0000"]),
        ("accounts/%00/entries", "parameter_invalid", ["U+0000"]),
    ],
)
async def test_a_wrong_query_is_answered_with_what_to_change(
    site: Site, path: str, error: str, says: list[str]
) -> None:
    body = await site.refused(f"/api/{path}", 400, error, *says)
    assert body["as_of"] == []


async def test_a_cursor_is_valid_for_its_own_query_only(funded: Site) -> None:
    for number in range(3):
        funded.view.book(f"p-{number}")
    funded.view.take()
    path = f"/api/accounts/{DEBTOR}/entries?limit=1"
    after = (await funded.get(path))["next"]
    assert len((await funded.get(f"{path}&after={after}"))["entries"]) == 1
    for other in (
        f"{path}&order=oldest",
        f"{path}&currency=EUR",
        f"/api/accounts/{CREDITOR}/entries?limit=1",
    ):
        await funded.refused(f"{other}&after={after}", 400, "parameter_invalid", "`next`")
    await funded.refused(f"{path}&after={after}A", 400, "parameter_invalid", "`next`")


async def test_unknown_names_are_404_as_of_an_offset(funded: Site) -> None:
    body = await funded.refused(f"/api/accounts/{CREDITOR}", 404, "not_found", f"partition {Q}", "?at_least=")
    assert [(one["partition"], one["next_offset"]) for one in body["as_of"]] == [(Q, 0)]
    await funded.refused(f"/api/accounts/{CREDITOR}/entries", 404, "not_found", f"partition {Q}")
    await funded.refused("/api/accounts/cash", 404, "not_found", "cash@0")
    body = await funded.refused("/api/payments/p-9", 404, "not_found", "?wait=5", "202")
    assert len(body["as_of"]) == 6
    await funded.refused(f"/api/payments/p-9?debtor={DEBTOR}", 404, "not_found", "from this debtor")
    await funded.refused("/api/account", 404, "not_found", "/api/accounts/{account}")


@pytest.mark.parametrize("path", ["/api/totals", "/api/nothing", "/openapi.json", "/docs"])
async def test_the_api_is_read_only(site: Site, path: str) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        status, body, headers = await site.ask(path, method)
        assert (status, body["error"], headers["Allow"]) == (405, "method_not_allowed", "GET, HEAD")


async def test_head_is_get_without_its_body(funded: Site) -> None:
    status, text, headers = await funded.ask("/api/totals", "HEAD")
    assert (status, text) == (200, b"")
    assert int(headers["Content-Length"]) > 100


async def test_labels_do_not_grow_with_what_clients_send(funded: Site) -> None:
    await funded.ask("/api/accounts/a-4711")
    await funded.ask("/api/nothing-4711")
    await funded.ask("/api/totals", "BREW")
    labels = [sample.labels for metric in REGISTRY.collect() for sample in metric.samples]
    assert not any("4711" in value or value == "BREW" for label in labels for value in label.values())
    assert {"method": "GET", "route": "/api/accounts/{account}", "status": "404"} in labels


async def test_a_database_without_tables_is_503_until_they_are_there(tmp_path: Path) -> None:
    view = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    async with serving(view) as site:
        engine = database.writing(view.url)
        database.metadata.drop_all(engine)
        for path in ("/api/totals", "/api/accounts/2378", "/api/payments/p-1?wait=1", "/api/digest"):
            await site.refused(path, 503, "view_unavailable", "ask again")
        database.metadata.create_all(engine)
        assert (await site.ask("/api/totals"))[0] == 200
        engine.dispose()
    view.close()


async def test_concurrent_queries_are_bounded(tmp_path: Path) -> None:
    view = View(database.parse(f"sqlite:///{tmp_path / 'view.db'}"))
    async with serving(view, pending_max=2) as site:
        go = asyncio.Event()
        loop = asyncio.get_running_loop()

        def held(_: object) -> None:
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result()

        asked = [asyncio.create_task(site.reader.read(held)) for _ in range(2)]
        await asyncio.sleep(0)  # both are with the reader then
        await site.refused("/api/totals", 503, "busy", "ask again")
        go.set()
        await asyncio.gather(*asked)
        assert (await site.ask("/api/totals"))[0] == 200
    view.close()


async def test_a_digest_is_made_one_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()
    begun = asyncio.Event()
    freshness = site.view.freshness

    async def held() -> Any:
        begun.set()
        await go.wait()
        return await freshness()

    monkeypatch.setattr(site.view, "freshness", held)
    first = asyncio.create_task(site.ask("/api/digest"))
    await begun.wait()
    await site.refused("/api/digest", 503, "busy")
    go.set()
    assert (await first)[0] == 200
    assert (await site.ask("/api/digest"))[0] == 200


async def test_a_worker_that_does_not_answer_delays_no_answer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(site.view, "freshness", silent)
    monkeypatch.setattr("services.balances.api.snapshots.FRESHNESS_TIMEOUT_S", 0.05)
    answer = await site.get("/api/freshness")
    assert (answer["caught_up"], answer["seconds_behind"]) == (None, None)


async def test_the_age_includes_the_time_that_the_database_took(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = site.reader._ask

    def slow(question: Callable[[Connection], object]) -> Snapshot[object]:
        time.sleep(0.5)
        return ask(question)

    monkeypatch.setattr(site.reader, "_ask", slow)
    answer = await site.get("/api/freshness")
    assert answer["seconds_behind"] >= 0.5
    assert all(one["asked_s"] >= 0.5 for one in answer["as_of"])


@pytest.mark.parametrize("name", ["a/b", "é", "a b", "..", "%2F"])
async def test_names_are_taken_as_they_are(site: Site, name: str) -> None:
    answered, body, _ = await site.ask(f"/api/payments/{quote(name, safe='')}?wait=0")
    assert (answered, body["error"]) == (404, "not_found")
    assert "payment_id" in body["detail"]
