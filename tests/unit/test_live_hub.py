"""Who watches, and what is handed to them."""

import asyncio

import pytest

from services.balances.dashboard.collector import Hub, TooManyClientsError


class Watched:
    """Notes when somebody watches and when nobody does."""

    def __init__(self, clients_max: int = 3) -> None:
        self.told: list[bool] = []
        self.hub = Hub(clients_max, self.told.append)


async def test_a_slow_client_gets_the_newest_and_nothing_of_what_it_missed() -> None:
    hub = Watched().hub
    with hub.client() as quick, hub.client() as slow:
        for number in range(100):
            hub.publish(b"%d" % number)
            assert await quick.next(1) == b"%d" % number
        assert await slow.next(1) == b"99"
        assert await slow.next(0.01) is None


async def test_who_comes_while_others_watch_gets_the_last_message_at_once() -> None:
    hub = Watched().hub
    with hub.client():
        hub.publish(b"now")
        with hub.client() as late:
            assert await late.next(1) == b"now"


async def test_who_comes_first_is_not_shown_what_was_long_ago() -> None:
    hub = Watched().hub
    with hub.client():
        hub.publish(b"then")
    with hub.client() as later:
        assert await later.next(0.01) is None


async def test_a_message_wakes_who_waits() -> None:
    hub = Watched().hub
    with hub.client() as client:
        waiting = asyncio.create_task(client.next(5))
        await asyncio.sleep(0)
        hub.publish(b"here")
        assert await waiting == b"here"


async def test_clients_are_bounded_and_a_place_that_is_left_is_free() -> None:
    hub = Watched(2).hub
    with hub.client():
        with hub.client(), pytest.raises(TooManyClientsError, match="2 clients"), hub.client():
            pytest.fail("there was no place")
        with hub.client():
            assert hub.clients == 2
    assert hub.clients == 0


async def test_the_first_to_come_and_the_last_to_go_are_told() -> None:
    watched = Watched()
    with watched.hub.client():
        with watched.hub.client():
            assert watched.told == [True]
        assert watched.told == [True]
    assert watched.told == [True, False]


async def test_all_are_let_go() -> None:
    hub = Watched().hub
    with hub.client() as client:
        waiting = asyncio.create_task(client.next(5))
        await asyncio.sleep(0)
        hub.close()
        assert await waiting is None
        assert client.closed
