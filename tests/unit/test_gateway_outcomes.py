"""The gateway's client of the view, with a server of the test's own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from deploy.local.ports import free_ports
from services.gateway import outcomes
from services.gateway.domain import RefusedError
from services.gateway.outcomes import View

DECIDED: dict[str, Any] = {
    "payment_id": "p-1",
    "debtor": "2378",
    "creditor": "576",
    "state": "completed",
    "reason": None,
    "reversal": False,
    "amount_minor": 1250,
    "currency": "EUR",
    "fee_minor": 0,
    "credit_minor": 1250,
    "credit_currency": "EUR",
    "value_date": "2026-11-26",
    "version": None,
    "at": "ledger.postings:1:9",
    "origin": "payments.raw:1:7",
    "of a later version": {"unknown": 1},
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def view(handler: Handler) -> AsyncIterator[View]:
    """A client of a view that answers by this handler."""
    app = web.Application()
    app.router.add_get("/v1/payments", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with View(f"http://127.0.0.1:{runner.addresses[0][1]}") as made:
            yield made
    finally:
        await runner.cleanup()


def answering(*payments: dict[str, Any]) -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.json_response({"debtor": "2378", "payments": payments, "next": None, "as_of": []})

    return handler


async def test_the_question_is_passed_on_with_the_clients_key() -> None:
    asked: list[tuple[dict[str, str], str]] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append((dict(request.query), request.headers["Authorization"]))
        return web.json_response({"payments": [DECIDED]})

    async with view(handler) as made:
        found = await made.outcome("2378", "a/é ?", 12.5, "Bearer key")
    assert asked == [({"debtor": "2378", "payment_id": "a/é ?", "limit": "1", "wait": "12.5"}, "Bearer key")]
    assert found is not None
    assert (found.state, found.amount_minor, found.at) == ("completed", 1250, "ledger.postings:1:9")


async def test_an_answer_is_read_to_its_end() -> None:
    """One that does not fit into a packet comes in parts."""
    async with view(answering(DECIDED | {"of a later version": "x" * 600_000})) as made:
        found = await made.outcome("2378", "p-1", 0, "")
    assert found is not None
    assert found.payment_id == "p-1"


@pytest.mark.parametrize(
    ("state", "final"), [("posted", False), ("completed", True), ("declined", True), ("opened", True)]
)
async def test_a_state_that_never_changes_is_final(state: str, final: bool) -> None:
    async with view(answering(DECIDED | {"state": state})) as made:
        found = await made.outcome("2378", "p-1", 0, "")
    assert found is not None
    assert (found.state, found.final) == (state, final)


async def test_an_identity_without_outcome_is_none() -> None:
    async with view(answering()) as made:
        assert await made.outcome("2378", "p-1", 0, "") is None


async def _refuses(_: web.Request) -> web.Response:
    return web.json_response({"error": "busy", "payments": []}, status=503)


async def _nonsense(_: web.Request) -> web.Response:
    return web.Response(text="<html>")


async def _breaks_off(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "100"})
    await answer.prepare(request)
    assert request.transport is not None
    request.transport.abort()
    return answer


@pytest.mark.parametrize(
    "handler",
    [
        _refuses,
        _nonsense,
        _breaks_off,
        answering({"payment_id": 1}),
        answering(DECIDED | {"state": "lost"}),
        answering(DECIDED | {"of a later version": "x" * 1024 * 1024}),
    ],
)
async def test_an_answer_that_is_none_is_not_an_unknown_payment(handler: Handler) -> None:
    async with view(handler) as made:
        with pytest.raises(RefusedError, match="ask again") as caught:
            await made.outcome("2378", "p-1", 0, "")
    assert (caught.value.status, caught.value.reason.value) == (503, "view_unavailable")


async def test_a_silent_view_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "TIMEOUT_S", 0.1)

    async def silent(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("not reached")

    async with view(silent) as made:
        with pytest.raises(RefusedError, match="does not answer") as caught:
            await made.outcome("2378", "p-1", 0, "")
    # Of a view that is away, another error is the cause
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_a_view_that_is_away_is_refused() -> None:
    async with View(f"http://127.0.0.1:{free_ports(1)[0]}") as made:
        with pytest.raises(RefusedError, match="does not answer"):
            await made.outcome("2378", "p-1", 0, "")
