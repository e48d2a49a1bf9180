"""Connections to brokers: after a reset, a connection is replaced before its end is read."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from shared.kafka.client.connections import Client

KEY = (0, 0)


class Connection:
    """A connection that the library takes for a live one."""

    def __init__(self, *, closing: bool) -> None:
        self._writer = SimpleNamespace(transport=SimpleNamespace(is_closing=lambda: closing))
        self.closed: list[object] = []

    def connected(self) -> bool:
        return not self.closed

    def close(self, reason: object = None) -> None:
        self.closed.append(reason)


@pytest.mark.parametrize("closing", [False, True])
async def test_a_connection_whose_reset_is_not_read_yet_is_replaced(
    closing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = Client(bootstrap_servers="127.0.0.1:1")
    known, other = Connection(closing=closing), Connection(closing=False)
    client._conns[KEY] = known

    async def opened(*_: object) -> Connection:
        return other

    monkeypatch.setattr(client, "_open", opened)
    async with asyncio.timeout(5):
        assert await client._get_conn(0) is (other if closing else known)
    assert bool(known.closed) is closing
