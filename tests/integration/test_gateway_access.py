"""The gateway as a process with API keys: its start, changes of keys, and its log."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.kafka.cluster import LocalKafka
from deploy.security.files import replace
from shared.events.clients import Scope
from tests.harness import eventually
from tests.integration.test_gateway import Answer, Gateway, assert_written
from tests.keys import line_of
from tests.payments import payments

pytestmark = pytest.mark.timeout(180)

HOUSE = frozenset({Scope.PAYMENTS_WRITE, Scope.READ, Scope.HOUSE})  # the tests' payments debit house accounts
OLD, NEW = "once_the-old-key-of-the-shop", "once_the-new-key-of-the-shop"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"# the shop\n{line_of('shop', OLD, HOUSE)}\n")
    return path


@pytest.fixture
def gateway(request: pytest.FixtureRequest, kafka: LocalKafka, tmp_path: Path, key_file: Path) -> Iterator[Gateway]:
    further = getattr(request, "param", {})
    started = Gateway(kafka, tmp_path, GATEWAY_API_KEYS_FILE=str(key_file), LOG_LEVEL="DEBUG", **further)
    started.service.start()
    try:
        started.service.wait_ready()
        yield started
    finally:
        started.service.process.kill()


async def test_keys_are_changed_under_load_and_none_is_logged(
    kafka: LocalKafka, gateway: Gateway, key_file: Path
) -> None:
    values = payments("gw-keys", 600)
    sent: list[bytes] = []
    answers: list[Answer | None] = []

    async def pays(key: str, code: int) -> bool:
        value = next(values)
        async with gateway.client(key) as client:
            sent.append(value)
            answers.append(await client.post(value))
        last = answers[-1]
        return last is not None and last[0] == code

    assert await pays(OLD, 202)
    assert await pays(NEW, 401)
    assert await pays("", 401)
    put(key_file, f"{line_of('shop', OLD, HOUSE)}\n{line_of('shop', NEW, HOUSE)}\n")
    await eventually(lambda: pays(NEW, 202), "the new key is accepted")
    assert await pays(OLD, 202)
    put(key_file, line_of("shop", NEW, HOUSE))
    await eventually(lambda: pays(OLD, 401), "the old key is refused")
    assert await pays(NEW, 202)
    accepted = await assert_written(kafka, sent, answers)
    assert accepted == [answer and answer[0] for answer in answers].count(202) >= 6
    assert gateway.payments_sent == accepted
    log = gateway.service.process.log_path.read_text()
    assert "api keys taken" in log
    assert OLD not in log
    assert NEW not in log


def put(path: Path, text: str) -> None:
    replace(path, text.encode())  # a reader must not see a partly written file


@pytest.mark.parametrize("content", [None, OLD], ids=["deleted", "invalid"])
def test_a_key_file_that_is_lost_at_work_ends_it_with_78(gateway: Gateway, key_file: Path, content: str | None) -> None:
    begun = time.monotonic()
    if content is None:
        key_file.unlink()
    else:
        put(key_file, content)  # a mistake: the key itself
    assert gateway.service.wait_exit(30) == 78
    assert time.monotonic() - begun < 10, "not within 5 s, even on a busy machine"
    [refused] = [line for line in gateway.service.log() if line["level"] == "error"]
    assert refused["event"] == "settings refused"
    assert "ONCE_GATEWAY_API_KEYS_FILE" in str(refused["reason"])
    assert OLD not in gateway.service.process.log_path.read_text()


@pytest.mark.parametrize("gateway", [{"GATEWAY_IDLE_TIMEOUT_S": "1"}], indirect=True)
async def test_a_silent_connection_is_closed(gateway: Gateway) -> None:
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"P")
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert time.monotonic() - begun < 5
    writer.close()


@pytest.mark.parametrize("gateway", [{"GATEWAY_RATE_PER_S": "0.01", "GATEWAY_BURST": "40"}], indirect=True)
async def test_a_clients_rate_is_limited(gateway: Gateway) -> None:
    async with gateway.client(OLD) as client:
        answers = await asyncio.gather(*(client.get("/payments/none?partition=x&offset=0") for _ in range(100)))
        limited = [answer for answer in answers if answer[0] == 429]
        assert len(limited) in {59, 60}  # one more may be accepted within 100 s
        assert {answer[1]["error"] for answer in limited} == {"rate_exceeded"}
    assert gateway.service.metric("once_http_access_refused_total") == len(limited)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"GATEWAY_API_KEYS_FILE": ""}, "ONCE_GATEWAY_API_KEYS_FILE"),
        ({"GATEWAY_API_KEYS_FILE": "/nowhere/keys"}, "No such file"),
        ({"GATEWAY_RATE_PER_S": "nan"}, "ONCE_GATEWAY_RATE_PER_S"),
        ({"GATEWAY_RATE_PER_S": "1", "GATEWAY_BURST": "-1"}, "ONCE_GATEWAY_BURST"),
        ({"GATEWAY_BURST": "5"}, "ONCE_GATEWAY_RATE_PER_S"),
        ({"GATEWAY_BODY_BYTES_MAX": "2000000"}, "ONCE_GATEWAY_BODY_BYTES_MAX"),
        ({"GATEWAY_IDLE_TIMEOUT_S": "0"}, "ONCE_GATEWAY_IDLE_TIMEOUT_S"),
    ],
)
def test_an_unsafe_setting_exits_with_78_and_one_line(
    kafka: LocalKafka, tmp_path: Path, settings: dict[str, str], reason: str
) -> None:
    service = Gateway(kafka, tmp_path, **settings).service.start()
    assert service.wait_exit(30) == 78
    [refused] = [line for line in service.log() if line["level"] == "error"]
    assert refused["event"] == "settings refused"
    assert reason in str(refused["reason"])


def test_a_broken_key_file_stops_it_at_start_unshown(kafka: LocalKafka, tmp_path: Path, key_file: Path) -> None:
    key_file.write_text(OLD)
    service = Gateway(kafka, tmp_path, GATEWAY_API_KEYS_FILE=str(key_file)).service.start()
    assert service.wait_exit(30) == 78
    assert "line 1 is no" in service.process.log_path.read_text()
    assert OLD not in service.process.log_path.read_text()
