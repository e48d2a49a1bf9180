"""A substitute for the view's answers by identity; tests/contract/test_gateway_view.py holds it to the view itself."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web

from tests.ledgers import CREDITOR, DAY


class Substitute:
    """Outcomes in memory.

    Attributes:
        origin: its address.
        waiting: requests that wait for an outcome.
    """

    def __init__(self) -> None:
        self.origin = ""
        self.waiting = 0
        self._outcomes: dict[tuple[str, str], dict[str, Any]] = {}
        self._changed = asyncio.Event()

    def decide(self, debtor: str, payment_id: str, state: str, reason: str | None = None) -> None:
        """Set an outcome; a payment is over 10.00 EUR."""
        moved = state in {"posted", "completed"}
        self._outcomes[debtor, payment_id] = {
            "payment_id": payment_id,
            "debtor": debtor,
            "creditor": CREDITOR if moved else None,
            "state": state,
            "reason": reason,
            "amount_minor": 1000 if moved else None,
            "currency": "EUR" if moved else None,
            "value_date": DAY,
            "at": "ledger.postings:0:1",
        }
        self._changed.set()
        self._changed = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        identity = request.query["debtor"], request.query["payment_id"]
        deadline = asyncio.get_running_loop().time() + float(request.query["wait"])
        self.waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                while identity not in self._outcomes:
                    await self._changed.wait()
        except TimeoutError:
            return web.json_response({"payments": []})
        finally:
            self.waiting -= 1
        return web.json_response({"payments": [self._outcomes[identity]]})


@asynccontextmanager
async def substituting() -> AsyncIterator[Substitute]:
    """A substitute that listens."""
    made = Substitute()
    app = web.Application()
    app.router.add_get("/v1/payments", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


@contextmanager
def substituting_by_thread() -> Iterator[str]:
    """The address of a substitute without outcomes, which a thread of its own serves."""
    origins: list[str] = []
    listening, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with substituting() as made:
            origins.append(made.origin)
            listening.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert listening.wait(30)
        yield origins[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
