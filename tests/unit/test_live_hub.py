"""The hub of watching clients and the messages that they receive."""

import asyncio

import pytest

from services.balances.dashboard.collector import Hub, TooManyClientsError


class Watched:
    """A hub that records whether any client watches."""

    def __init__(self, clients_max: int = 3) -> None:
        self.changes: list[bool] = []
        self.hub = Hub(clients_max, self.changes.append)


async def test_a_slow_client_gets_only_the_newest_message() -> None:
    hub = Watched().hub
    with hub.client() as quick, hub.client() as slow:
        for number in range(100):
            hub.publish(b"%d" % number)
            assert await quick.next(1) == b"%d" % number
        assert await slow.next(1) == b"99"
        assert await slow.next(0.01) is None


async def test_a_client_that_joins_others_gets_the_last_message_at_once() -> None:
    hub = Watched().hub
    with hub.client():
        hub.publish(b"now")
        with hub.client() as late:
            assert await late.next(1) == b"now"


async def test_the_first_client_gets_no_old_message() -> None:
    hub = Watched().hub
    with hub.client():
        hub.publish(b"then")
    with hub.client() as later:
        assert await later.next(0.01) is None


async def test_a_message_wakes_a_waiting_client() -> None:
    hub = Watched().hub
    with hub.client() as client:
        waiting = asyncio.create_task(client.next(5))
        await asyncio.sleep(0)
        hub.publish(b"here")
        assert await waiting == b"here"


async def test_clients_are_bounded_and_a_disconnect_frees_a_place() -> None:
    hub = Watched(2).hub
    with hub.client():
        with hub.client(), pytest.raises(TooManyClientsError, match="2 clients"), hub.client():
            pytest.fail("the hub is full")
        with hub.client():
            assert hub.clients == 2
    assert hub.clients == 0


async def test_the_first_client_and_the_last_disconnect_are_reported() -> None:
    watched = Watched()
    with watched.hub.client():
        with watched.hub.client():
            assert watched.changes == [True]
        assert watched.changes == [True]
    assert watched.changes == [True, False]


async def test_a_closed_hub_releases_all_clients() -> None:
    hub = Watched().hub
    with hub.client() as client:
        waiting = asyncio.create_task(client.next(5))
        await asyncio.sleep(0)
        hub.close()
        assert await waiting is None
        assert client.closed


async def test_the_first_client_after_a_close_is_reported_though_a_closed_one_keeps_its_place() -> None:
    watched = Watched(2)
    with watched.hub.client() as stalled:
        watched.hub.publish(b"then")
        watched.hub.close()
        assert (watched.changes, watched.hub.clients) == ([True, False], 1)
        with watched.hub.client() as again:
            assert watched.changes == [True, False, True]
            assert await again.next(0.01) is None
            with pytest.raises(TooManyClientsError), watched.hub.client():
                pytest.fail("the hub is full")
        assert watched.changes == [True, False, True, False]
        assert stalled.closed
    assert watched.changes == [True, False, True, False]
