"""The webhook sink over real HTTP: signatures, the outcome of each answer, and requests never sent."""

import asyncio
import itertools
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
import trustme

from deploy.drills.sinks.journal import entries
from deploy.drills.sinks.processes import ReceiverProcess
from deploy.drills.sinks.receiver import LOOPBACK, Delivery, Faults, Mode, Receiver, What
from deploy.local.ports import LOOPBACK_NETWORK, free_ports
from services.outbox.outcomes import Delivered, Outcome, Refused, Retriable, Sink, Unknown
from services.outbox.sinks import credentials
from services.outbox.sinks.channels import open_sinks
from services.outbox.sinks.egress import Egress
from services.outbox.sinks.webhook import ANSWER_BYTES_MAX, FORMATS, WebhookSink, derive_secrets
from shared.addresses import parse_networks
from shared.events.effects import Channel
from tests.harness import eventually
from tests.sinks.effects import effect
from tests.sinks.rigs import KEY, PATIENT_S, SHORT_S, CountingReceiver, settings

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


EGRESS = Egress(parse_networks(LOOPBACK_NETWORK))


def webhook(
    key: bytes = KEY, connections_max: int = 8, timeout_s: float = PATIENT_S, its_format: str = "standard"
) -> WebhookSink:
    return WebhookSink(
        lambda url: derive_secrets((key,), url),
        FORMATS[its_format],
        EGRESS,
        timeout_s,
        connections_max,
        "once-test",
        time.time,
    )


@pytest_asyncio.fixture
async def receiver(tmp_path: Path) -> AsyncIterator[Receiver]:
    """A receiver that checks signatures."""
    async with Receiver(tmp_path / "deliveries.jsonl", KEY) as running:
        yield running


@asynccontextmanager
async def server(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Run a server that answers each connection with `answer`, and return its port."""
    running = await asyncio.start_server(answer, LOOPBACK, 0, ssl=tls)
    async with running:
        yield running.sockets[0].getsockname()[1]


def raw(head: bytes, body: bytes = b"") -> Answer:
    """Make an answer: read a whole request, write these bytes and close."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        await writer.drain()
        writer.close()

    return answer


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read and never answer."""
    await reader.read()
    writer.close()


async def call(destination: str, sink: WebhookSink | None = None) -> Outcome:
    async with sink or webhook() as opened:
        return await opened.deliver(effect(1, destination))


@pytest.mark.parametrize("its_format", list(FORMATS))
async def test_each_attempt_has_the_same_key_and_body_and_a_signature(receiver: Receiver, its_format: str) -> None:
    receiver.fail(Faults(Mode.STATUS, times=2))
    async with webhook(its_format=its_format) as sink:
        outcomes = [await sink.deliver(effect(1, receiver.url)) for _ in range(4)]
    assert [type(outcome) for outcome in outcomes] == [Unknown, Unknown, Delivered, Delivered]
    journal = entries(receiver.log, Delivery)
    assert [entry.what for entry in journal] == [What.FAULT, What.FAULT, What.PROCESSED, What.REPEATED]
    assert {(entry.key, entry.signed) for entry in journal} == {(effect(1, "").effect_id, True)}
    assert len({entry.digest for entry in journal}) == 1
    assert receiver.counts().distinct == 1


async def test_a_signature_with_another_key_is_refused(receiver: Receiver) -> None:
    outcome = await call(receiver.url, webhook(key=bytes(32)))
    assert isinstance(outcome, Refused)
    assert outcome.detail.startswith("401")
    assert receiver.counts().distinct == 0


async def test_a_key_is_rotated_under_load_without_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LOOK_S", 0.05)
    key_file, previous_file, new_file = (tmp_path / name for name in ("webhook.key", "previous.key", "new.key"))
    given = settings(tmp_path, WEBHOOK_PREVIOUS_KEY_FILE=str(previous_file))
    outcomes: list[Outcome] = []
    rotated = asyncio.Event()

    async def load(sink: Sink, numbers: Iterator[int]) -> None:
        while not rotated.is_set():
            outcomes.append(await sink.deliver(effect(next(numbers), counting.url)))

    async def signed(times: int) -> None:
        """Wait until a call has so many signatures, and for some calls more."""

        async def so_many() -> bool:
            return counting.signatures == times

        await eventually(so_many, f"{times} signatures")
        before = len(outcomes)

        async def further() -> bool:
            return len(outcomes) >= before + 20

        await eventually(further, "more calls")

    numbers = itertools.count()
    async with (
        CountingReceiver(tmp_path / "deliveries.jsonl", KEY) as counting,
        open_sinks(given, time.time)[Channel.WEBHOOK] as sink,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(4):
            group.create_task(load(sink, numbers))
        await signed(1)
        # The steps of docs/webhooks.md
        previous_file.write_bytes(key_file.read_bytes())
        new_file.write_bytes(bytes(range(1, 33)))
        new_file.replace(key_file)
        await signed(2)
        counting.key = bytes(range(1, 33))
        await signed(2)
        previous_file.unlink()
        await signed(1)
        rotated.set()
    assert {type(outcome) for outcome in outcomes} == {Delivered}
    assert counting.counts().by_what == {"processed": len(outcomes)}


@pytest.mark.parametrize(
    ("status", "kind"),
    [*((status, Unknown) for status in (408, 409, 500, 502, 503, 504)), (425, Retriable), (429, Retriable)],
)
async def test_answers_after_which_a_call_is_repeated(
    receiver: Receiver, status: int, kind: type[Retriable | Unknown]
) -> None:
    receiver.fail(Faults(Mode.STATUS, status=status, retry_after=7))
    outcome = await call(receiver.url)
    assert isinstance(outcome, kind)
    assert outcome.retry_after_s == 7
    assert outcome.detail.startswith(str(status))
    assert outcome.detail.endswith(": a fault on demand")


@pytest.mark.parametrize("status", [400, 401, 404, 410, 413, 422])
async def test_final_answers(receiver: Receiver, status: int) -> None:
    receiver.fail(Faults(Mode.STATUS, status=status, retry_after=7))
    outcome = await call(receiver.url)
    assert isinstance(outcome, Refused)
    assert outcome.detail.startswith(str(status))


async def test_a_key_in_progress_is_deferred_and_then_a_repeat(receiver: Receiver) -> None:
    timeout_s = 2 * SHORT_S  # the second call has as much time
    receiver.fail(Faults(Mode.SLOW, delay_s=2 * timeout_s, times=1))
    async with webhook(timeout_s=timeout_s) as sink:
        assert isinstance(await sink.deliver(effect(1, receiver.url)), Unknown)
        deferred = await sink.deliver(effect(1, receiver.url))
        assert isinstance(deferred, Unknown)
        assert deferred.detail.startswith("409")
        deadline_s = time.monotonic() + 20
        while receiver.counts().distinct == 0:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.02)
        assert isinstance(await sink.deliver(effect(1, receiver.url)), Delivered)
    assert receiver.counts().by_what == {"processed": 1, "under_way": 1, "repeated": 1}


async def test_a_call_without_an_answer_is_a_doubt(receiver: Receiver) -> None:
    receiver.fail(Faults(Mode.TIMEOUT, delay_s=SHORT_S + 1))
    assert await call(receiver.url, webhook(timeout_s=SHORT_S)) == Unknown("no answer within 2.0 s")


async def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    moved = f"HTTP/1.1 307 Moved\r\nLocation: {receiver.url}\r\nContent-Length: 0\r\n\r\n".encode()
    async with server(raw(moved)) as port:
        outcome = await call(f"http://{LOOPBACK}:{port}/hook")
    assert isinstance(outcome, Refused)
    assert outcome.detail.startswith("307 Moved (redirects")
    assert receiver.counts().calls == 0


async def test_a_proxy_of_the_environment_is_not_used(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", f"http://{LOOPBACK}:{free_ports(1)[0]}")
    assert isinstance(await call(receiver.url), Delivered)


@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"], ids=["none", "no HTTP", "half a head"]
)
async def test_an_invalid_answer_is_a_doubt(answer: bytes) -> None:
    async with server(raw(answer)) as port:
        outcome = await call(f"http://{LOOPBACK}:{port}/hook")
    assert isinstance(outcome, Unknown)
    assert outcome.detail.startswith("no answer: ")


@pytest.mark.parametrize(("status", "kind"), [(200, Delivered), (503, Unknown), (410, Refused)])
async def test_the_status_decides_although_the_body_is_truncated(status: int, kind: type[Outcome]) -> None:
    head = f"HTTP/1.1 {status} Well\r\nContent-Length: 1000\r\n\r\n".encode()
    async with server(raw(head, b"the beginning")) as port:
        assert isinstance(await call(f"http://{LOOPBACK}:{port}/hook"), kind)


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 410 Gone\r\nConnection: close\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        except ConnectionError:
            writer.close()

    async with server(endless) as port:
        outcome = await call(f"http://{LOOPBACK}:{port}/hook")
    assert outcome == Refused("410 Gone: " + "x" * 200)
    assert sent < 64 * ANSWER_BYTES_MAX  # the size of the kernel's buffers


async def test_a_server_without_tls_receives_no_request(receiver: Receiver) -> None:
    outcome = await call(receiver.url.replace("http:", "https:"))
    assert isinstance(outcome, Retriable)
    assert outcome.detail.startswith("no connection: ClientConnectorSSLError")
    assert receiver.counts().calls == 0


async def test_an_untrusted_server_receives_no_request() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert(LOOPBACK).configure_cert(context)
    async with server(silent, context) as port:
        outcome = await call(f"https://{LOOPBACK}:{port}/hook")
    assert isinstance(outcome, Retriable)
    assert outcome.detail.startswith("no connection: ClientConnectorCertificateError")


async def test_a_connection_that_times_out_carries_no_request() -> None:
    async with server(silent) as port:
        started_s = time.monotonic()
        outcome = await call(
            f"https://{LOOPBACK}:{port}/hook", webhook(timeout_s=SHORT_S)
        )  # the handshake is never answered
    assert isinstance(outcome, Retriable)
    assert time.monotonic() - started_s < 2 * SHORT_S


async def test_connections_are_bounded_and_kept() -> None:
    open_now = most = made = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most, made
        open_now, made = open_now + 1, made + 1
        most = max(most, open_now)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
        finally:
            open_now -= 1

    async with server(answer) as port, webhook(connections_max=3) as sink:
        calls = [sink.deliver(effect(number, f"http://{LOOPBACK}:{port}/hook")) for number in range(50)]
        assert {type(outcome) for outcome in await asyncio.gather(*calls)} == {Delivered}
    assert most == made == 3


@pytest.mark.parametrize("destination", ["http://", "http://h:99999/", "http://h:x/", "ftp://h/", "hook", "http://[h"])
async def test_an_invalid_url_is_refused(destination: str) -> None:
    assert isinstance(await call(destination), Refused)


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64])
async def test_an_invalid_host_is_refused(host: str) -> None:
    assert isinstance(await call(f"http://{host}/"), Refused)


async def test_a_sink_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="open the sink"):
        await webhook().deliver(effect(1, "http://h/"))


async def test_the_receiver_keeps_its_keys_after_a_kill(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY)
    with ReceiverProcess(tmp_path / "receiver", key_file) as process:
        assert isinstance(await call(process.url), Delivered)
        process.fail(Faults(Mode.LOST_ANSWER))
        assert isinstance(await call(process.url), Unknown)
        process.kill()
        assert isinstance(await call(process.url), Retriable)
        process.start()
        assert isinstance(await call(process.url), Delivered)
        counts = process.counts()
    assert (counts.deliveries, counts.distinct, counts.by_what) == (3, 1, {"processed": 1, "repeated": 2})
    assert len(process.deliveries()) == 3
