"""The proxy between the stock client and a real broker: each action has its effect, and all traffic passes."""

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest
import pytest_asyncio
import trustme

from deploy.drills.clients.stock import REQUEST_TIMEOUT_S, stock_consumer, stock_producer, stock_records
from deploy.drills.proxy.frames import read_frame, write_frame
from deploy.drills.proxy.injection import NotInjectedError
from deploy.drills.proxy.proxy import Proxy, ProxyError
from deploy.drills.proxy.rules import (
    Acknowledge,
    Action,
    Close,
    Count,
    Delay,
    Drop,
    Hold,
    Part,
    Repeat,
    RepeatLate,
    Rule,
)
from deploy.local.kafka.cluster import LocalKafka
from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.client.reader import end_offsets
from shared.kafka.protocol.headers import decode_correlation_id, decode_request_header, decode_response, encode_request

TOPIC, PARTITION = PAYMENTS_RAW, 5
REQUEST, ANSWER = Part.REQUEST, Part.ANSWER
LATE_S = 0.6

pytestmark = pytest.mark.timeout(120)


@pytest_asyncio.fixture
async def proxy(kafka: LocalKafka) -> AsyncIterator[Proxy]:
    """A proxy in front of the test process's broker."""
    async with Proxy(kafka.bootstrap_servers) as opened:
        yield opened


class Written:
    """Records written to the topic since the start of a test."""

    def __init__(self, kafka: LocalKafka, offset: int) -> None:
        self._kafka = kafka
        self._offset = offset

    async def end(self) -> int:
        """Return how many offsets were taken."""
        return (await end_offsets(self._kafka.bootstrap_servers, [TOPIC]))[TOPIC, PARTITION] - self._offset

    async def values(self) -> list[bytes]:
        """Read them past the proxy."""
        count = await self.end()
        records = stock_records(self._kafka.bootstrap_servers, TOPIC, PARTITION, self._offset)
        async with aclosing(records), asyncio.timeout(30):
            return [(await anext(records)).value for _ in range(count)]


@pytest_asyncio.fixture
async def written(kafka: LocalKafka) -> Written:
    """Reads what the test writes."""
    return Written(kafka, (await end_offsets(kafka.bootstrap_servers, [TOPIC]))[TOPIC, PARTITION])


def produce(action: Action) -> Rule:
    """The first Produce request to the topic."""
    return Rule(api="Produce", topic=TOPIC, client_id="stock", action=action)


LOST_BOTH: list[tuple[Action, bool, list[bytes]]] = [
    (Drop(REQUEST), False, []),
    (Drop(REQUEST, closes=True), True, [b"a"]),
    (Drop(ANSWER), False, [b"a"]),
    (Drop(ANSWER, closes=True), True, [b"a", b"a"]),
    (Close(forwards=False), True, [b"a"]),
    (Close(forwards=True), True, [b"a", b"a"]),
    (Delay(REQUEST, LATE_S), True, [b"a"]),
    (Delay(ANSWER, LATE_S), True, [b"a"]),
    (Repeat(), True, [b"a", b"a"]),
    (RepeatLate(LATE_S), True, [b"a", b"a"]),
    (Acknowledge(), True, []),
]


@pytest.mark.parametrize(("action", "is_acknowledged", "expected"), LOST_BOTH, ids=str)
async def test_an_action_shows_in_what_a_producer_without_idempotence_writes(
    proxy: Proxy, written: Written, action: Action, is_acknowledged: bool, expected: list[bytes]
) -> None:
    injection = proxy.add(produce(action))
    begun_s = asyncio.get_running_loop().time()
    async with stock_producer(proxy.bootstrap_servers, client_id="stock", acks="all") as producer:
        sent = await producer.send(TOPIC, b"a", partition=PARTITION)
        failed = (await asyncio.gather(sent, return_exceptions=True))[0]
        taken_s = asyncio.get_running_loop().time() - begun_s
    await injection.done()
    injection.raise_if_idle()
    assert isinstance(failed, Exception) is not is_acknowledged, failed
    if not is_acknowledged:
        assert taken_s >= REQUEST_TIMEOUT_S, "an open connection without an answer ends with the client's timeout"
    if isinstance(action, Delay):
        assert taken_s >= LATE_S
    assert await written.values() == expected
    [act] = injection.evidence.acts
    is_lost = isinstance(action, Drop) and action.part is REQUEST
    assert (act.answer is None) is (is_lost or action == Close(forwards=False))


@pytest.mark.parametrize("action", [action for action, *_ in LOST_BOTH if action != Acknowledge()], ids=str)
async def test_no_action_makes_an_idempotent_producer_lose_or_repeat(
    proxy: Proxy, written: Written, action: Action
) -> None:
    injection = proxy.add(produce(action))
    async with stock_producer(proxy.bootstrap_servers, client_id="stock", enable_idempotence=True) as producer:
        await producer.send_and_wait(TOPIC, b"a", partition=PARTITION)
        await producer.send_and_wait(TOPIC, b"b", partition=PARTITION)
    await injection.done()
    assert await written.values() == [b"a", b"b"]


async def test_a_held_request_arrives_after_its_client_has_given_up(proxy: Proxy, written: Written) -> None:
    held = proxy.add(produce(Hold(REQUEST)))
    async with stock_producer(proxy.bootstrap_servers, client_id="stock", acks="all") as producer:
        given_up = await producer.send(TOPIC, b"a", partition=PARTITION)
        with pytest.raises(Exception, match="RequestTimedOutError"):
            await given_up
        assert await written.values() == []
        await producer.send_and_wait(TOPIC, b"b", partition=PARTITION)
    held.release()
    await held.done()
    assert await written.values() == [b"b", b"a"]


async def test_a_held_answer_is_delivered_when_it_is_released(proxy: Proxy, written: Written) -> None:
    held = proxy.add(produce(Hold(ANSWER)))
    async with stock_producer(proxy.bootstrap_servers, client_id="stock", acks="all") as producer:
        sent = await producer.send(TOPIC, b"a", partition=PARTITION)
        await held.acted()
        while not await written.end():
            await asyncio.sleep(0.02)
        assert not sent.done()
        held.release()
        await sent
    assert await written.values() == [b"a"]


async def test_a_copy_arrives_when_it_is_released(proxy: Proxy, written: Written) -> None:
    copies = proxy.add(produce(RepeatLate()))
    async with stock_producer(proxy.bootstrap_servers, client_id="stock", acks="all") as producer:
        for value in (b"a", b"b"):
            await producer.send_and_wait(TOPIC, value, partition=PARTITION)
    assert copies.evidence.done == 0
    copies.release()
    await copies.done()
    assert await written.values() == [b"a", b"b", b"a"]


async def test_a_copy_for_a_broker_that_is_gone_is_never_done() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (frame := await read_frame(reader)) is not None:
            await write_frame(writer, decode_request_header(frame).correlation_id.to_bytes(4, "big"))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with Proxy(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as proxy:
        copy = proxy.add(Rule(api="ApiVersions", action=RepeatLate()))
        reader, writer = await connect(proxy)
        await write_frame(writer, encode_request("ApiVersions", 0, {}, correlation_id=7))
        assert await read_frame(reader) == b"\0\0\0\x07"
        server.close()
        copy.release()
        with pytest.raises(NotInjectedError, match="is_done=False"):
            await copy.done(within_s=LATE_S)
        writer.close()


async def test_a_request_without_acknowledgement_can_be_late(proxy: Proxy, written: Written) -> None:
    late = proxy.add(produce(Delay(REQUEST, LATE_S)))
    async with stock_producer(proxy.bootstrap_servers, client_id="stock", acks=0) as producer:
        await producer.send_and_wait(TOPIC, b"a", partition=PARTITION)
        assert await written.end() == 0
        await late.done()
        await producer.send_and_wait(TOPIC, b"b", partition=PARTITION)
        while await written.end() < 2:
            await asyncio.sleep(0.02)
    assert await written.values() == [b"a", b"b"]


@pytest.mark.parametrize("api", ["Fetch", "JoinGroup", "OffsetFetch"])
@pytest.mark.parametrize("action", [Drop(ANSWER, closes=True), Close(forwards=False), Delay(ANSWER, LATE_S)], ids=str)
async def test_a_consumer_reads_through_a_fault(proxy: Proxy, kafka: LocalKafka, api: str, action: Action) -> None:
    group = f"proxied-{uuid.uuid4()}"
    injection = proxy.add(Rule(api=api, action=action, client_id=group, group=None if api == "Fetch" else group))
    async with stock_producer(kafka.bootstrap_servers, acks="all") as producer:
        await producer.send_and_wait(TOPIC, group.encode(), partition=PARTITION)
    options = {"group_id": group, "client_id": group, "auto_offset_reset": "earliest"}
    async with stock_consumer(proxy.bootstrap_servers, TOPIC, **options) as consumer, asyncio.timeout(60):
        while (await consumer.getone()).value != group.encode():
            pass
    await injection.done()
    injection.raise_if_idle()


async def test_all_traffic_passes_and_is_counted(proxy: Proxy, written: Written) -> None:
    seen = proxy.add(Rule(api="Produce", action=Count(), client_id="stock"))
    other = proxy.add(Rule(api="Produce", action=Count(), client_id="another"))
    async with stock_producer(proxy.bootstrap_servers, client_id="stock", acks="all") as producer:
        for value in (b"a", b"b"):
            await producer.send_and_wait(TOPIC, value, partition=PARTITION)
        known = {f"{broker.host}:{broker.port}" for broker in producer.client.cluster.brokers()}
    assert known == set(proxy.bootstrap_servers.split(","))
    await seen.matched(2)
    assert (seen.evidence.matches, other.evidence.matches) == (2, 0)
    assert proxy.counts("stock")["Produce"] == 2
    assert proxy.counts("another").total() == 0
    assert await written.values() == [b"a", b"b"]


@pytest.mark.full
async def test_every_broker_of_a_cluster_is_reached_by_the_proxy_only(replicated: LocalKafka) -> None:
    first = replicated.bootstrap_servers.split(",")[0]
    async with Proxy(first) as proxy, stock_producer(proxy.bootstrap_servers, client_id="stock") as producer:
        for partition in range(6):
            before = proxy.counts("stock")["Produce"]
            await producer.send_and_wait(TOPIC, b"a", partition=partition)
            assert proxy.counts("stock")["Produce"] > before
        brokers = producer.client.cluster.brokers()
    assert len({broker.port for broker in brokers}) == 3
    assert not {str(broker.port) for broker in brokers} & {str(node.port) for node in replicated.nodes}


async def test_pipelined_answers_keep_their_order_behind_a_late_one(proxy: Proxy) -> None:
    held = proxy.add(Rule(api="Metadata", action=Hold(ANSWER), client_id="raw"))
    repeated = proxy.add(Rule(api="Metadata", action=Repeat(), client_id="raw", first=5))
    reader, writer = await connect(proxy)
    for number in range(10):
        await write_frame(writer, metadata(number))
    await held.acted()
    await repeated.acted()
    held.release()
    numbers: list[int] = []
    while len(numbers) < 10:
        frame = await read_frame(reader)
        assert frame is not None
        numbers.append(decode_correlation_id(frame))
        decode_response("Metadata", 1, frame)
    assert numbers == list(range(10))
    writer.close()


@pytest.mark.parametrize("part", Part)
async def test_what_follows_a_lost_part_on_its_connection_is_lost_with_it(proxy: Proxy, part: Part) -> None:
    lost = proxy.add(Rule(api="Metadata", action=Drop(part), client_id="raw", first=2))
    reader, writer = await connect(proxy)
    for number in range(5):
        await write_frame(writer, metadata(number))
    frame = await read_frame(reader)
    assert frame is not None
    assert decode_correlation_id(frame) == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(read_frame(reader), LATE_S)
    await lost.done()
    [act] = lost.evidence.acts
    while act.followers < 3:
        await asyncio.sleep(0.02)
    assert (act.correlation_id, act.followers, act.answer is None) == (1, 3, part is REQUEST)
    writer.close()


async def connect(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = proxy.bootstrap_servers.split(":")
    return await asyncio.open_connection(host, int(port))


def metadata(number: int) -> bytes:
    return encode_request("Metadata", 1, {"Topics": []}, correlation_id=number, client_id="raw")


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def close_at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("closes", [False, True])
async def test_a_tls_listener_is_refused(closes: bool) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server = await asyncio.start_server(close_at_once, "127.0.0.1", 0, ssl=None if closes else context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProxyError, match=f"127.0.0.1:{port}.*not on this target"):
            async with Proxy(f"127.0.0.1:{port}"):
                pass


async def test_a_client_that_speaks_tls_is_refused(kafka: LocalKafka) -> None:
    async def speak_tls() -> None:
        async with Proxy(kafka.bootstrap_servers) as proxy:
            host, port = proxy.bootstrap_servers.split(":")
            with pytest.raises(ConnectionError):
                await asyncio.open_connection(host, int(port), ssl=ssl.create_default_context())

    with pytest.raises(ProxyError, match="TLS: not on this target"):
        await speak_tls()


async def test_brokers_that_cannot_be_reached_are_an_error() -> None:
    server = await asyncio.start_server(close_at_once, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ProxyError, match=f"none of 127.0.0.1:{port} can be reached"):
        async with Proxy(f"127.0.0.1:{port}"):
            pass


@pytest.mark.parametrize("action", [Drop(REQUEST, closes=True), Close(forwards=False), Close(forwards=True)], ids=str)
async def test_a_client_is_disconnected_at_once_although_an_earlier_answer_is_late(
    proxy: Proxy, action: Action
) -> None:
    held = proxy.add(Rule(api="Metadata", action=Hold(ANSWER), client_id="raw"))
    closing = proxy.add(Rule(api="Metadata", action=action, client_id="raw", first=2))
    reader, writer = await connect(proxy)
    for number in range(2):
        await write_frame(writer, metadata(number))
    assert await asyncio.wait_for(read_frame(reader), REQUEST_TIMEOUT_S) is None
    assert held.evidence.done == 0
    held.release()
    await held.done()
    await closing.done()
    writer.close()


async def test_a_rule_changes_nothing_on_a_connection_that_has_lost_a_request(proxy: Proxy) -> None:
    lost = proxy.add(Rule(api="Metadata", action=Drop(REQUEST), client_id="raw"))
    late = proxy.add(Rule(api="Metadata", action=RepeatLate(0.0), client_id="raw", first=2))
    _, writer = await connect(proxy)
    for number in range(2):
        await write_frame(writer, metadata(number))
    await late.acted()
    lost.raise_if_idle()
    with pytest.raises(NotInjectedError, match="is_done=False"):
        late.raise_if_idle()
    writer.close()
