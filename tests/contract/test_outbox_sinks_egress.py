"""Where webhooks may go, over real connections: the receiver's own journal says what reached it."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohappyeyeballs
import pytest
import pytest_asyncio
import trustme
from aiohttp import connector
from aiohttp.abc import AbstractResolver, ResolveResult

from deploy.drills.sinks.receiver import LOOPBACK, Receiver
from deploy.local.ports import LOOPBACK_NETWORK, free_ports
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Unknown
from services.outbox.sinks.egress import ANSWERS_MAX, LOOKUPS_MAX, Egress
from services.outbox.sinks.webhook import FORMATS, WebhookSink, derive_secrets
from shared.addresses import parse_networks
from tests.sinks.effects import effect
from tests.sinks.rigs import KEY, PATIENT_S

PUBLIC = "8.8.8.8"
ALLOWED = parse_networks(LOOPBACK_NETWORK)
HINT = "allow its network in ONCE_WEBHOOK_ALLOWED_NETWORKS"


def webhook(egress: Egress, calls_max: int = 8) -> WebhookSink:
    secrets = partial(derive_secrets, (KEY,))
    return WebhookSink(secrets, FORMATS["standard"], egress, PATIENT_S, calls_max, "once-test", time.time)


async def call(destination: str, egress: Egress) -> Outcome:
    async with webhook(egress) as sink:
        return await sink.deliver(effect(1, destination))


@pytest_asyncio.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    """A receiver on the loopback."""
    async with Receiver(tmp_path / "deliveries.jsonl", KEY) as running:
        yield running


class Names(AbstractResolver):
    """A DNS whose answers change: each is given once, the last one from then on."""

    def __init__(self, *answers: tuple[str, ...]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        del family
        self.asked.append(host)
        addresses = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [
            ResolveResult(hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=0)
            for each in addresses
        ]

    async def close(self) -> None:
        pass


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that connections were tried to. Those that are not this machine's are out of reach."""
    tried: list[str] = []
    start_connection = aiohappyeyeballs.start_connection

    async def start(addr_infos: list[Any], **options: Any) -> socket.socket:
        tried.extend(info[4][0] for info in addr_infos)
        if any(not info[4][0].startswith("127.") for info in addr_infos):
            raise OSError(113, "out of reach")
        return await start_connection(addr_infos, **options)

    monkeypatch.setattr(aiohappyeyeballs, "start_connection", start)
    return tried


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.1", "169.254.169.254", "10.1.2.3", "0x7f000001"],
)
async def test_no_address_of_a_network_of_ones_own_is_called(
    receiver: Receiver, connected: list[str], host: str
) -> None:
    outcome = await call(f"https://{host}:{receiver.port}/hook", Egress())
    assert isinstance(outcome, Refused)
    assert outcome.detail.endswith(f"address; {HINT}")
    assert connected == []


@pytest.mark.parametrize("host", ["127.1", "2130706433", "017700000001", "[1:2]", "[1:2.example.org]", "127.0.0.1."])
async def test_what_only_looks_like_an_address_is_refused(receiver: Receiver, connected: list[str], host: str) -> None:
    for egress in (Egress(), Egress(ALLOWED), Egress(proxy=receiver.url)):
        assert isinstance(await call(f"http://{host}:{receiver.port}/hook", egress), Refused)
    assert connected == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_allowed_network_is_called_over_plain_http(receiver: Receiver, host: str) -> None:
    other = Egress(parse_networks("10.0.0.0/8"))
    assert isinstance(await call(f"http://{host}:{receiver.port}/hook", other), Refused)
    assert receiver.counts().calls == 0
    assert isinstance(await call(f"http://{host}:{receiver.port}/hook", Egress(ALLOWED)), Delivered)


async def test_plain_http_goes_to_allowed_networks_only(receiver: Receiver, connected: list[str]) -> None:
    literal = await call(f"http://{PUBLIC}:{receiver.port}/hook", Egress(ALLOWED))
    named = await call(f"http://hooks.example:{receiver.port}/hook", Egress(ALLOWED, resolver=lambda: Names((PUBLIC,))))
    for outcome in (literal, named):
        assert isinstance(outcome, Refused)
        assert f"plain http to {PUBLIC}: use https" in outcome.detail
    assert connected == []


async def test_an_answer_of_the_dns_that_changes_reaches_no_other_address(
    receiver: Receiver, connected: list[str]
) -> None:
    names = Names((PUBLIC,), (LOOPBACK,))
    async with webhook(Egress(resolver=lambda: names)) as sink:
        destination = f"https://rebinding.example:{receiver.port}/hook"
        first = await sink.deliver(effect(1, destination))
        # The address that was checked is the one that is connected to: names were asked once
        assert (connected, names.asked) == ([PUBLIC], ["rebinding.example"])
        assert isinstance(first, Retriable)
        for session in sink._sessions.values():
            session.connector.clear_dns_cache()  # type: ignore[union-attr] # a TCPConnector
        second = await sink.deliver(effect(1, destination))
    assert second == Refused(f"rebinding.example: {LOOPBACK} is a loopback address; {HINT}")
    assert (connected, len(names.asked), receiver.counts().calls) == ([PUBLIC], 2, 0)


async def test_of_several_addresses_only_public_ones_are_tried(receiver: Receiver, connected: list[str]) -> None:
    egress = Egress(resolver=lambda: Names((LOOPBACK, PUBLIC, "10.0.0.1")))
    outcome = await call(f"https://several.example:{receiver.port}/hook", egress)
    assert isinstance(outcome, Retriable)
    assert connected == [PUBLIC]


async def test_names_whose_dns_hangs_hold_up_no_other(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    hang, resolve, asked = threading.Event(), socket.getaddrinfo, list[str]()

    def answer(host: str, *args: Any, **options: Any) -> Any:
        asked.append(host)
        if host.startswith("hangs"):
            hang.wait()
        return resolve(LOOPBACK, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    async with webhook(Egress(ALLOWED), calls_max=LOOKUPS_MAX) as sink:
        hanging = [
            asyncio.create_task(sink.deliver(effect(number, f"http://hangs-{number}.example:{receiver.port}/hook")))
            for number in range(LOOKUPS_MAX - 1)
        ]
        try:
            async with asyncio.timeout(PATIENT_S):
                while len(asked) < len(hanging):
                    await asyncio.sleep(0.01)
            assert isinstance(await sink.deliver(effect(100, f"http://fine.example:{receiver.port}/hook")), Delivered)
            [loop_asked] = await asyncio.get_running_loop().getaddrinfo("broker.example", 9092, type=socket.SOCK_STREAM)
            assert loop_asked[4] == (LOOPBACK, 9092)
            assert not any(call.done() for call in hanging)
        finally:
            hang.set()
        assert {type(outcome) for outcome in await asyncio.gather(*hanging)} == {Delivered}


async def test_lookups_are_bounded(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.outbox.sinks.egress.LOOKUPS_MAX", 0)
    outcome = await call(f"http://fine.example:{receiver.port}/hook", Egress(ALLOWED))
    assert isinstance(outcome, Retriable)
    assert "other names are being resolved" in outcome.detail


async def test_a_name_without_an_address_is_tried_again(connected: list[str]) -> None:
    outcome = await call("https://nowhere.example/", Egress(resolver=lambda: Names(())))
    assert isinstance(outcome, Retriable)
    assert "nowhere.example has no address" in outcome.detail
    assert connected == []


async def test_concurrent_calls_to_a_refused_name_are_all_refused(receiver: Receiver, connected: list[str]) -> None:
    async with webhook(Egress(resolver=lambda: Names((LOOPBACK,)))) as sink:
        calls = [sink.deliver(effect(number, f"https://h.example:{receiver.port}/")) for number in range(20)]
        assert {type(outcome) for outcome in await asyncio.gather(*calls)} == {Refused}
    assert connected == []


@pytest.mark.parametrize("interim", [5, 50 * ANSWERS_MAX])
async def test_an_endpoint_that_floods_its_connection_with_interim_answers_is_left(interim: int) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * interim + b"HTTP/1.1 204 No Content\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, 0)
    async with server:
        outcome = await call(f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}/hook", Egress(ALLOWED))
    if interim < ANSWERS_MAX:
        assert outcome == Delivered("204 No Content")
    else:
        assert outcome == Unknown("no answer: ClientConnectionError: too many answers to one request")


Tunnel = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


@asynccontextmanager
async def proxy(tunnel: Tunnel) -> AsyncIterator[tuple[str, list[bytes]]]:
    """An HTTP proxy that answers with `tunnel`, given the request's first line; yields its URL and these lines."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b"\r\n")[0])
        await tunnel(reader, writer, asked[-1])
        writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    async with server:
        yield f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}", asked


async def test_a_proxy_tunnels_to_a_name_that_it_resolves(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("hooks.example").configure_cert(context)
    trusting = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    monkeypatch.setattr(connector, "_SSL_CONTEXT_VERIFIED", trusting)  # aiohttp's own, made when it is imported
    seen: list[bytes] = []

    async def hook(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    hooks = await asyncio.start_server(hook, LOOPBACK, 0, ssl=context)
    port = hooks.sockets[0].getsockname()[1]

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _line: bytes) -> None:
        its_reader, its_writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(_copy(reader, its_writer), _copy(its_reader, writer))

    async with hooks, proxy(tunnel) as (url, asked):
        # No name is resolved here, and the proxy's own address may be private
        outcome = await call("https://hooks.example/hook", Egress(proxy=url))
    assert outcome == Delivered("204 No Content")
    assert (asked, seen) == ([b"CONNECT hooks.example:443 HTTP/1.1"], [b"POST /hook HTTP/1.1"])


async def test_a_proxy_that_refuses_got_no_request() -> None:
    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _line: bytes) -> None:
        writer.write(b"HTTP/1.1 403 Not this one\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with proxy(refuse) as (url, asked):
        outcome = await call("https://hooks.example/hook", Egress(proxy=url))
        assert outcome == Retriable("no connection: the proxy answered 403 Not this one")
        # What can be said without a name is still checked here
        for destination in ("https://10.1.2.3/hook", "http://hooks.example/hook", f"http://{PUBLIC}/hook"):
            assert isinstance(await call(destination, Egress(proxy=url)), Refused)
        assert len(asked) == 1
    gone = await call("https://hooks.example/hook", Egress(proxy=f"http://{LOOPBACK}:{free_ports(1)[0]}"))
    assert isinstance(gone, Retriable)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
