"""The network: what it delays, loses and cuts, and what arrives all the same."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.loop import Process, virtual_time
from tests.simulation.network import Network
from tests.simulation.trouble import USUAL, Calm, Fate

ADDRESS = ("broker-0", 9092)


class Echo:
    """A node that answers with what it is asked.

    Attributes:
        seen: the requests, with the time of their arrival.
    """

    name = "broker-0"

    def __init__(self) -> None:
        self.up = True
        self.seen: list[tuple[bytes, float]] = []

    async def answer(self, request: bytes, client: str) -> bytes | None:
        self.seen.append((request, asyncio.get_running_loop().time()))
        await asyncio.sleep(0.01)
        return request + client.encode()


class Late(Calm):
    """Holds the first request."""

    def __init__(self, held_s: float) -> None:
        self.held_s = held_s

    def of_request(self, client: str, request: bytes) -> Fate:  # noqa: ARG002 # see Trouble
        return Fate(self.held_s) if request == b"one" else USUAL


class Unanswered(Calm):
    """Loses every answer."""

    def of_answer(self, client: str, request: bytes) -> Fate:  # noqa: ARG002 # likewise
        return Fate(arrives=False)


class Orphaned(Calm):
    """Loses connections as requests leave by them; those arrive later."""

    def of_request(self, client: str, request: bytes) -> Fate:  # noqa: ARG002 # likewise
        return Fate(3.0, resets=True)


async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.create_connection(lambda: protocol, *ADDRESS)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def send(writer: asyncio.StreamWriter, *requests: bytes) -> None:
    for request in requests:
        writer.write(len(request).to_bytes(4, "big") + request)


async def received(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def history(main: Callable[[Network, Echo], Coroutine[Any, Any, None]], seed: int = 0) -> Echo:
    """Run a history with one node; returns that."""
    with virtual_time() as loop:
        network, node = Network(loop, random.Random(seed)), Echo()
        network.nodes[ADDRESS] = node
        loop.run_until_complete(main(network, node))
    return node


def test_requests_and_answers_keep_their_order_on_a_connection() -> None:
    async def main(network: Network, _: Echo) -> None:
        network.trouble = Late(3)
        reader, writer = await opened()
        send(writer, b"one", b"two")
        assert [await received(reader), await received(reader)] == [b"one-", b"two-"]

    node = history(main)
    assert [request for request, _ in node.seen] == [b"one", b"two"]
    assert node.seen[0][1] > 3


def test_what_leaves_later_by_another_connection_may_arrive_first() -> None:
    async def main(network: Network, _: Echo) -> None:
        network.trouble = Late(3)
        (slow, held), (reader, writer) = await opened(), await opened()
        send(held, b"one")
        send(writer, b"two")
        assert await received(reader) == b"two-"
        assert await received(slow) == b"one-"

    assert [request for request, _ in history(main).seen] == [b"two", b"one"]


def test_a_request_arrives_after_its_client_gave_it_up() -> None:
    async def main(network: Network, node: Echo) -> None:
        network.trouble = Late(60)
        _, writer = await opened()
        send(writer, b"one")
        writer.close()
        await writer.wait_closed()
        assert node.seen == []
        await asyncio.sleep(70)

    assert [request for request, _ in history(main).seen] == [b"one"]


def test_a_request_arrives_after_its_connection_was_lost() -> None:
    async def main(network: Network, node: Echo) -> None:
        network.trouble = Orphaned()
        reader, writer = await opened()
        send(writer, b"one")
        with pytest.raises(ConnectionResetError):
            await received(reader)
        assert node.seen == []
        await asyncio.sleep(5)

    assert [request for request, _ in history(main).seen] == [b"one"]


def test_a_lost_answer_ends_the_connection_after_the_work() -> None:
    async def main(network: Network, node: Echo) -> None:
        network.trouble = Unanswered()
        reader, writer = await opened()
        send(writer, b"one")
        with pytest.raises(ConnectionResetError):
            await received(reader)
        assert len(node.seen) == 1

    history(main)


def test_a_cut_holds_everything_back_until_it_is_healed() -> None:
    async def main(network: Network, node: Echo) -> None:
        reader, writer = await opened()
        network.cut.add(frozenset(("-", node.name)))
        send(writer, b"one", b"two")
        await asyncio.sleep(5)
        assert node.seen == []
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(opened(), 2)
        network.cut.clear()
        assert [await received(reader), await received(reader)] == [b"one-", b"two-"]

    history(main)


def test_a_node_that_is_down_resets_its_connections_and_refuses_new_ones() -> None:
    async def main(network: Network, node: Echo) -> None:
        reader, writer = await opened()
        send(writer, b"one")
        node.up = False
        network.down(node)
        with pytest.raises(ConnectionResetError):
            await received(reader)
        with pytest.raises(ConnectionRefusedError):
            await opened()

    assert history(main).seen == []


def test_what_a_killed_process_has_sent_arrives() -> None:
    async def main(network: Network, node: Echo) -> None:
        network.trouble = Late(3)
        process = Process(network.loop, "ingest-0")

        async def client() -> None:
            reader, writer = await opened()
            send(writer, b"one")
            await received(reader)
            raise AssertionError("it was killed before")

        process.start(client())
        await asyncio.sleep(1)
        assert len(process.sockets) == 1
        process.kill()
        assert (len(process.sockets), node.seen) == (0, [])
        await asyncio.sleep(5)

    assert [request for request, _ in history(main).seen] == [b"one"]


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_gives_the_same_times(seed: int) -> None:
    async def main(_: Network, __: Echo) -> None:
        for _time in range(5):
            reader, writer = await opened()
            send(writer, b"one")
            await received(reader)

    assert history(main, seed).seen == history(main, seed).seen != history(main, seed + 1).seen


def test_an_error_of_the_simulation_itself_ends_the_history() -> None:
    class Broken(Echo):
        async def answer(self, request: bytes, client: str) -> bytes | None:
            raise NotImplementedError(f"{client} asks for {request!r}")

    async def main(network: Network, _: Echo) -> None:
        network.nodes[ADDRESS] = Broken()
        reader, writer = await opened()
        send(writer, b"one")
        await received(reader)

    with pytest.raises(NotImplementedError, match="asks for b'one'"):
        history(main)
