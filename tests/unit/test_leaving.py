"""Closing a client: within a deadline, and with its errors logged, not raised."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from shared.kafka.client.leaving import abandon, close_connections


class Client:
    """A stand-in for the client library's client, which closes when `closing` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closing = asyncio.Event()
        self.error = error
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        try:
            await self.closing.wait()
        except asyncio.CancelledError:
            self.ended.set_result("cancelled")
            raise
        self.ended.set_result("by itself")
        if self.error is not None:
            raise self.error


def consumer(client: Client, error: Exception | None = None) -> Any:
    async def stop() -> None:
        if error is not None:
            raise error

    return SimpleNamespace(_client=client, _closed=False, stop=stop)


async def test_closing_goes_on_in_the_background_when_a_broker_is_silent() -> None:
    client = Client()
    await close_connections(client, timeout_s=0)
    assert not client.ended.done()
    client.closing.set()
    assert await client.ended == "by itself"


async def test_a_failure_to_close_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(ConnectionError("reset"))
    client.closing.set()
    with caplog.at_level(logging.DEBUG, "shared.kafka.client.leaving"):
        await close_connections(client)
    [line] = caplog.records
    assert "reset" in line.__dict__["reason"]


async def test_an_abandoned_member_is_not_stopped() -> None:
    client = Client()
    client.closing.set()
    member = consumer(client, AssertionError("stop() would wait for the coordination"))
    await abandon(member)
    assert member._closed
    assert client.ended.done()
