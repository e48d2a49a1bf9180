"""The gateway as a process on real brokers: a payment answered with 202 is in payments.raw after any fault."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import free_ports
from shared.events.catalogue import PAYMENTS_RAW
from shared.kafka.client.reader import read_topics
from tests.harness import Service, eventually, services
from tests.keys import KEY
from tests.payments import payments, with_fields

PATIENT_S = "20"  # brokers of a busy machine are slow; only the test of the deadline needs a short one
ACCEPT_TIMEOUT_S = 2.0
CLIENTS = 500  # well below the limit of requests in flight
Answer = tuple[int, dict[str, Any]]


class Gateway:
    """A gateway process and a client of it."""

    def __init__(self, kafka: LocalKafka, directory: Path, **settings: str) -> None:
        self.port = free_ports(1)[0]
        given = {"GATEWAY_PORT": str(self.port), "GATEWAY_ACCEPT_TIMEOUT_S": PATIENT_S} | settings
        self.service = Service("gateway", kafka.bootstrap_servers, directory, **given)

    @property
    def payments_sent(self) -> float:
        """Records that Kafka has acknowledged in payments.raw."""
        name = f'kafka_producer_record_send_total{{topic="{PAYMENTS_RAW}"}}'
        found = [line for line in self.service.metrics_text().splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    @asynccontextmanager
    async def client(self, key: str = KEY) -> AsyncIterator["Client"]:
        url = f"http://127.0.0.1:{self.port}"
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(url, connector=connector, headers=headers) as session:
            yield Client(session)


class Client:
    """Posts and gets; a lost connection counts as no answer."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(self, value: bytes) -> Answer | None:
        try:
            async with self._session.post(
                "/payments", data=value, headers={"Content-Type": "application/json"}
            ) as answer:
                assert ("Retry-After" in answer.headers) == (answer.status == 503)
                return answer.status, await answer.json() | {"location": answer.headers.get("Location")}
        except aiohttp.ClientError:
            return None

    async def post_batch(self, values: list[bytes]) -> list[dict[str, Any]]:
        """Post payments in a batch; return an answer for each. Every refusal for a while says when to send again."""
        body = b'{"payments":[%b]}' % b",".join(values)
        async with self._session.post(
            "/v1/payments/batch", data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            found = await answer.json()
            items = found["payments"] if answer.status == 207 else [found] * len(values)
            assert ("Retry-After" in answer.headers) == any(item["status"] == 503 for item in items)
            return list(items)

    async def get(self, location: str) -> Answer:
        async with self._session.get(location) as answer:
            return answer.status, await answer.json()


@pytest.fixture
def gateway(request: pytest.FixtureRequest, kafka: LocalKafka, tmp_path: Path) -> Iterator[Gateway]:
    started = Gateway(kafka, tmp_path, **getattr(request, "param", {}))
    started.service.start()
    try:
        started.service.wait_ready()
        yield started
    finally:
        started.service.process.kill()


@contextmanager
def paused(kafka: LocalKafka) -> Iterator[None]:
    """Pause all brokers."""
    kafka.pause()
    try:
        yield
    finally:
        kafka.resume()
        kafka.wait_in_sync()


async def written(kafka: LocalKafka, accepted: list[dict[str, Any]]) -> dict[tuple[int, int], bytes | None]:
    """Read the values at the coordinates in the answers."""
    wanted = {(answer["partition"], answer["offset"]) for answer in accepted}
    found: dict[tuple[int, int], bytes | None] = {}
    start = {(PAYMENTS_RAW, partition): offset for partition, offset in sorted(wanted, reverse=True)}
    await read_topics(
        kafka.bootstrap_servers,
        [PAYMENTS_RAW],
        lambda _, partition, records: found.update(
            {(partition, record.offset): record.value for record in records if (partition, record.offset) in wanted}
        ),
        start=start,
    )
    return found


async def assert_written(kafka: LocalKafka, sent: list[bytes], answers: list[Answer | None]) -> int:
    """Fail unless the payment of every 202 is at its coordinates, byte for byte; return their count."""
    pairs = [
        (value, answer[1])
        for value, answer in zip(sent, answers, strict=True)
        if answer is not None and answer[0] == 202
    ]
    found = await written(kafka, [answer for _, answer in pairs])
    assert len({(answer["partition"], answer["offset"]) for _, answer in pairs}) == len(pairs)
    for value, answer in pairs:
        assert found[answer["partition"], answer["offset"]] == value
    return len(pairs)


async def test_an_accepted_payment_is_written_as_received(kafka: LocalKafka, gateway: Gateway) -> None:
    sent = [b" " + value for value in payments("gw-plain", 300)]
    async with gateway.client() as client:
        answers = await asyncio.gather(*map(client.post, sent))
        assert await assert_written(kafka, sent, answers) == 300
        assert answers[0] is not None
        status, state = await client.get(answers[0][1]["location"])
        assert (status, state["state"], state["final"]) == (200, "received", False)
        assert (await client.get("/payments/gw-plain-0?partition=0&offset=99999999"))[0] == 404
    assert gateway.payments_sent == 300
    assert gateway.service.metric("once_http_requests_total") >= 302


async def test_an_invalid_payment_is_not_written(kafka: LocalKafka, gateway: Gateway) -> None:
    value = next(iter(payments("gw-invalid", 1)))
    async with gateway.client() as client:
        refused = await client.post(with_fields(value, amount_minor=0))
        assert refused is not None
        assert (refused[0], refused[1]["error"]) == (422, "amount_not_positive")
        large = await client.post(b" " * 70_000)
        assert large is not None
        assert (large[0], large[1]["error"], large[1]["location"]) == (413, "too_large", None)
    assert gateway.payments_sent == 0


@pytest.mark.parametrize("gateway", [{"GATEWAY_ACCEPT_TIMEOUT_S": str(ACCEPT_TIMEOUT_S)}], indirect=True)
async def test_silent_brokers_are_503(kafka: LocalKafka, gateway: Gateway) -> None:
    during = list(payments("gw-during", 50))
    async with gateway.client() as client:
        with paused(kafka):
            begun = time.monotonic()
            answers = await asyncio.gather(*map(client.post, during))
            assert time.monotonic() - begun < 3 * ACCEPT_TIMEOUT_S
        assert [answer and (answer[0], answer[1]["error"]) for answer in answers] == [(503, "kafka_unavailable")] * 50

        again: dict[bytes, Answer | None] = {}

        async def all_accepted() -> bool:
            # Retry payments that were not accepted, as a client does
            missing = [value for value in during if (again.get(value) or (0,))[0] != 202]
            again.update(zip(missing, await asyncio.gather(*map(client.post, missing)), strict=True))
            return all(answer is not None and answer[0] == 202 for answer in again.values())

        await eventually(all_accepted, "all payments are accepted", 60)
        assert await assert_written(kafka, during, [again[value] for value in during]) == 50
    assert gateway.service.ready


@pytest.mark.parametrize(
    "gateway",
    [{"GATEWAY_ACCEPT_TIMEOUT_S": str(ACCEPT_TIMEOUT_S), "GATEWAY_REQUESTS_IN_FLIGHT_MAX": "30"}],
    indirect=True,
)
async def test_back_pressure_says_so_and_loses_nothing(kafka: LocalKafka, gateway: Gateway) -> None:
    """Brokers stop under a load of payments, singly and in batches, beyond what may be under way."""
    singles, batched = payments("gw-press", 1_000_000), payments("gw-press-batch", 1_000_000)
    sent: list[bytes] = []
    answers: list[Answer | None] = []
    seen: set[str] = set()  # "accepted", or why not
    ending = asyncio.Event()
    async with gateway.client() as client:

        async def keep_posting() -> None:
            while not ending.is_set():
                value = next(singles)
                answer = await client.post(value)
                assert answer is not None
                note(value, answer)
                if answer[0] == 503:
                    await asyncio.sleep(0.05)

        async def keep_posting_batches() -> None:
            while not ending.is_set():
                values = [next(batched) for _ in range(40)]
                for value, item in zip(values, await client.post_batch(values), strict=True):
                    note(value, (item["status"], item))

        def note(value: bytes, answer: Answer) -> None:
            assert answer[0] in {202, 503}
            seen.add("accepted" if answer[0] == 202 else answer[1]["error"])
            sent.append(value)
            answers.append(answer)

        async def saw(outcomes: set[str]) -> bool:
            return outcomes <= seen

        async with asyncio.TaskGroup() as tasks:
            for _ in range(60):
                tasks.create_task(keep_posting())
            for _ in range(3):
                tasks.create_task(keep_posting_batches())
            await eventually(lambda: saw({"accepted"}), "payments are accepted")
            with paused(kafka):
                await eventually(lambda: saw({"kafka_unavailable", "busy"}), "payments are refused")
            seen.clear()
            await eventually(lambda: saw({"accepted"}), "payments are accepted again", 60)
            ending.set()
    assert await assert_written(kafka, sent, answers) > 100


async def test_a_stop_completes_requests_in_flight(kafka: LocalKafka, gateway: Gateway) -> None:
    sent = list(payments("gw-stop", 40))
    async with gateway.client() as client:
        with paused(kafka):
            posts = [asyncio.create_task(client.post(value)) for value in sent]

            async def in_flight() -> bool:
                return gateway.service.metric("once_http_requests_in_flight") == 40

            await eventually(in_flight, "payments in flight")
            gateway.service.process.request_stop()

            async def closed() -> bool:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                except OSError:
                    return True
                writer.close()
                return False

            await eventually(closed, "the gateway accepts no connection")
        answers = await asyncio.gather(*posts)
    assert await asyncio.to_thread(gateway.service.wait_exit) == 0
    assert [answer and answer[0] for answer in answers] == [202] * 40
    assert await assert_written(kafka, sent, answers) == 40


async def test_a_kill_loses_no_accepted_payment(kafka: LocalKafka, gateway: Gateway) -> None:
    values = payments("gw-kill", 1_000_000)
    sent: list[bytes] = []
    answers: list[Answer | None] = []
    async with gateway.client() as client:

        async def keep_posting() -> None:
            """Post without a pause until a payment gets no answer, so that one is always in flight."""
            for value in values:
                answer = await client.post(value)
                sent.append(value)
                answers.append(answer)
                if answer is None:
                    return

        async def some() -> bool:
            return any(answers)

        posting = [asyncio.create_task(keep_posting()) for _ in range(CLIENTS)]
        await eventually(some, "the first payment is answered")
        gateway.service.process.kill()
        await asyncio.gather(*posting)
    accepted = await assert_written(kafka, sent, answers)
    assert 0 < accepted < len(sent)
    assert answers.count(None) == len(sent) - accepted


@pytest.mark.parametrize("settings", [{"GATEWAY_ACCEPT_TIMEOUT_S": "0"}, {"GATEWAY_REQUESTS_IN_FLIGHT_MAX": "many"}])
def test_refused_settings_stop_it(kafka: LocalKafka, tmp_path: Path, settings: dict[str, str]) -> None:
    service = Gateway(kafka, tmp_path, **settings).service.start()
    assert service.wait_exit() == 78
    assert any(line["event"] == "settings refused" for line in service.log())


def test_an_occupied_port_stops_it_for_a_restart(kafka: LocalKafka, tmp_path: Path, gateway: Gateway) -> None:
    service = Gateway(kafka, tmp_path / "second", GATEWAY_PORT=str(gateway.port)).service.start()
    assert service.wait_exit() == 75
    assert gateway.service.ready


def test_without_a_cluster_it_stops_for_a_restart(tmp_path: Path) -> None:
    unreachable = f"127.0.0.1:{free_ports(1)[0]}"
    service = Service("gateway", unreachable, tmp_path, GATEWAY_PORT="0").start()
    assert service.wait_exit(90) == 75
    assert any("once up" in str(line.get("reason")) for line in service.log())


async def test_the_state_follows_the_payment_to_its_end(kafka: LocalKafka, gateway: Gateway, tmp_path: Path) -> None:
    paid, conflict = (value for value in payments("gw-way", 2))
    conflict = with_fields(paid, amount_minor=1)
    unfunded = with_fields(paid, payment_id="gw-way-unfunded", debtor="gw-poor")
    with services(kafka.bootstrap_servers, tmp_path, "ingest", "transform", "ledger"):
        async with gateway.client() as client:
            # In sequence: the first payment of an identity counts
            answers = [await client.post(value) for value in (paid, paid, conflict, unfunded)]
            locations = [answer[1]["location"] for answer in answers if answer is not None]
            states = [await final(client, location) for location in locations]
    assert [state["state"] for state in states] == ["completed", "deduplicated", "dead_lettered", "declined"]
    assert states[1]["detail"] == f"{PAYMENTS_RAW}:{states[0]['partition']}:{states[0]['offset']}"
    assert [state["reason"] for state in states] == [None, None, "identity_conflict", "insufficient_funds"]
    assert msgspec.json.decode(paid)["payment_id"] == states[0]["payment_id"]


async def final(client: Client, location: str) -> dict[str, Any]:
    seen: list[dict[str, Any]] = []

    async def is_final() -> bool:
        status, state = await client.get(location)
        seen.append(state)
        return status == 200 and bool(state["final"])

    await eventually(is_final, f"{location} in a final state", 60)
    return seen[-1]
