"""The gateway's handlers over real HTTP, with a writer and a lookup of the test's own."""

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator

import msgspec
import pytest
from prometheus_client import REGISTRY

from services.gateway import bodies
from services.gateway.service import LOOKUPS_MAX, Gateway
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.headers import Coordinates
from shared.http.hosts import Hosts
from shared.kafka.lineage.outcome import Outcome, State
from tests.gateways import BATCH_BYTES_MAX, BODY_BYTES_MAX, Accounts, Decided, Log, Outcomes, gateway, let_in
from tests.harness import eventually
from tests.keys import KEY
from tests.partitions import PARTITIONS
from tests.unit.test_gateway_domain import INVALID, PAYMENT, body

BEGUN = f"""POST /payments HTTP/1.1\r
Host: localhost\r
Authorization: Bearer {KEY}\r
Content-Type: application/json\r
Content-Length: 90\r
\r
{{"""


def refused(reason: str) -> float:
    return REGISTRY.get_sample_value("once_http_payments_refused_total", {"reason": reason}) or 0.0


async def test_a_payment_is_kept_as_received_and_answered_with_its_coordinates() -> None:
    value = b'  {"schema_version" : 2, "payment_id":"a/\\u00e9 ?", "debtor":"2378", "creditor":"576",\n'
    value += b'"amount_minor":1250,"currency":"EUR"}  '
    async with gateway() as site:
        status, answer, headers = await site.post(value)
        assert status == 202
        ((topic, partition, key, kept),) = site.log.records
        assert (topic, key, kept) == (PAYMENTS_RAW, b"2378", value)
        assert answer == {
            "payment_id": "a/é ?",
            "topic": PAYMENTS_RAW,
            "partition": partition,
            "offset": 0,
            "timestamp_ms": 1_700_000_000_000,
        }
        status, state, _ = await site.ask("GET", headers["Location"])
        assert (status, state["payment_id"], state["state"], state["final"]) == (200, "a/é ?", "received", False)


@pytest.mark.parametrize("reason", INVALID)
async def test_an_invalid_payment_is_refused_and_not_written(reason: str) -> None:
    status, changes = INVALID[reason]
    before = refused(reason)
    async with gateway() as site:
        answered, answer, _ = await site.post(body(changes))
        assert (answered, answer["error"]) == (status, reason)
        assert answer["detail"]
        assert site.log.records == []
    assert refused(reason) == before + 1


async def chunks(size: int) -> AsyncIterator[bytes]:
    for _ in range(0, size, 4096):
        yield b" " * 4096


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_too_large_is_refused(chunked: bool) -> None:
    size = 4 * BODY_BYTES_MAX
    async with gateway() as site:
        status, answer, _ = await site.post(chunks(size) if chunked else b" " * size)
        assert (status, answer["error"]) == (413, "too_large")
        assert site.log.records == []


async def test_the_largest_body_is_accepted() -> None:
    value = body({}).ljust(BODY_BYTES_MAX)
    async with gateway() as site:
        assert (await site.post(value))[0] == 202
        assert (await site.post(value + b" "))[0] == 413
        assert [record[3] for record in site.log.records] == [value]


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json; a*²=x"},
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ],
)
async def test_any_form_but_plain_json_is_refused(headers: dict[str, str]) -> None:
    packed = "Content-Encoding" in headers
    async with gateway() as site:
        status, answer, _ = await site.post(gzip.compress(body({})) if packed else body({}), headers)
        assert (status, answer["error"]) == (415, "unsupported_media_type")
        assert site.log.records == []


async def test_an_unavailable_cluster_is_503_with_the_advice_to_retry() -> None:
    async with gateway() as site:
        site.log.failing = True
        status, answer, headers = await site.post(body({}))
        assert (status, answer["error"], headers["Retry-After"]) == (503, "kafka_unavailable", "1")
        assert "same payment_id" in answer["detail"]
        assert site.log.records == []
        site.log.failing = False
        assert (await site.post(body({})))[0] == 202


async def test_a_silent_cluster_is_503_within_the_deadline() -> None:
    async with gateway(accept_timeout_s=0.1) as site:
        site.log.open.clear()
        status, answer, _ = await site.post(body({}))
        assert (status, answer["error"]) == (503, "kafka_unavailable")


async def test_one_payment_too_many_is_503_and_the_others_are_accepted() -> None:
    async with gateway(requests_in_flight_max=2) as site:
        site.log.open.clear()
        posts = [asyncio.create_task(site.post(body({"payment_id": f"p-{n}"}))) for n in range(2)]

        async def both_wait() -> bool:
            return site.log.waiting == 2

        await eventually(both_wait, "two payments under way")
        assert REGISTRY.get_sample_value("once_http_requests_in_flight") == 2
        status, answer, headers = await site.post(body({"payment_id": "p-3"}))
        assert (status, answer["error"], headers["Retry-After"]) == (503, "busy", "1")
        site.log.open.set()
        assert [status for status, _, _ in await asyncio.gather(*posts)] == [202, 202]
        assert REGISTRY.get_sample_value("once_http_requests_in_flight") == 0
        assert (await site.post(body({"payment_id": "p-3"})))[0] == 202


async def test_a_body_that_does_not_come_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "TIMEOUT_S", 0.1)
    async with gateway() as site:
        assert site.url.port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", site.url.port)
        writer.write(BEGUN.encode())
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        assert site.log.records == []


async def test_a_client_that_disconnects_within_its_body_frees_its_place() -> None:
    async with gateway(requests_in_flight_max=1) as site:
        assert site.url.port is not None
        _, writer = await asyncio.open_connection("127.0.0.1", site.url.port)
        writer.write(BEGUN.encode())
        await writer.drain()

        async def taken() -> bool:
            return (await site.post(body({})))[0] == 503

        await eventually(taken, "the place is taken")
        writer.close()

        async def free() -> bool:
            return (await site.post(body({})))[0] == 202

        await eventually(free, "the place is free again")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            Outcome(State.DEAD_LETTERED, Coordinates("payments.dead-letter", 1, 7), "currency_unknown", "send EUR"),
            {"state": "dead_lettered", "final": True, "reason": "currency_unknown", "detail": "send EUR"},
        ),
        (
            Outcome(State.POSTED, Coordinates("ledger.postings", 1, 9)),
            {"state": "posted", "final": False, "at": "ledger.postings:1:9", "reason": None},
        ),
        (
            Outcome(State.COMPLETED, Coordinates("ledger.postings", 5, 2)),
            {"state": "completed", "final": True, "at": "ledger.postings:5:2"},
        ),
    ],
)
async def test_the_state_is_read_from_the_topics(found: Outcome, expected: dict[str, object]) -> None:
    async with gateway() as site:
        location = (await site.post(body({})))[2]["Location"]
        site.outcomes.answer = found
        status, state, _ = await site.ask("GET", location)
        assert status == 200
        assert state | expected == state


@pytest.mark.parametrize("path", ["/payments/p-1?partition=0&offset=9", "/payments/another?partition=0&offset=0"])
async def test_coordinates_of_another_payment_are_404(path: str) -> None:
    async with gateway() as site:
        await site.post(body({}))
        status, answer, _ = await site.ask("GET", path)
        assert (status, answer["error"]) == (404, "not_found")


async def test_missing_coordinates_are_400() -> None:
    async with gateway() as site:
        status, answer, _ = await site.ask("GET", "/payments/p-1")
        assert (status, answer["error"]) == (400, "coordinates_invalid")


async def test_failures_of_states_and_payments_are_logged_once_for_each_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "services.gateway.service")
    path = "/payments/p-1?partition=0&offset=0"
    async with gateway() as site:
        for found in (200, 404):  # 404 is an answer, too
            site.outcomes.failing = True
            for _ in range(2):
                status, answer, headers = await site.ask("GET", path)
                assert (status, answer["error"], headers["Retry-After"]) == (503, "kafka_unavailable", "1")
            site.outcomes.failing = False
            await site.post(body({"payment_id": "p-1"}))
            for _ in range(2):
                assert (await site.ask("GET", path if found == 200 else f"{path}9"))[0] == found
        site.log.failing = True
        for _ in range(2):
            assert (await site.post(body({})))[0] == 503
        site.log.failing = False
        for _ in range(2):
            assert (await site.post(body({})))[0] == 202
    logged = [(line.getMessage(), vars(line).get("reason")) for line in caplog.records]
    states = [("states cannot be read", "no broker answers"), ("states can be read again", None)]
    assert logged == [
        *states,
        *states,
        ("kafka takes no payments", "no broker answers"),
        ("kafka takes payments again", None),
    ]


async def test_lookups_are_bounded() -> None:
    async with gateway() as site:
        await site.post(body({}))
        site.outcomes.open.clear()
        path = "/payments/p-1?partition=0&offset=0"
        asked = [asyncio.create_task(site.ask("GET", path)) for _ in range(LOOKUPS_MAX)]

        async def all_wait() -> bool:
            return site.outcomes.waiting == LOOKUPS_MAX

        await eventually(all_wait, "lookups under way")
        status, answer, _ = await site.ask("GET", path)
        assert (status, answer["error"]) == (503, "busy")
        site.outcomes.open.set()
        assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}


async def test_other_paths_and_methods_are_answered_in_json() -> None:
    async with gateway() as site:
        status, answer, _ = await site.ask("GET", "/nothing")
        assert (status, answer["error"]) == (404, "not_found")
        status, answer, headers = await site.ask("DELETE", "/payments")
        assert (status, answer["error"], headers["Allow"]) == (405, "method_not_allowed", "POST")


async def test_labels_do_not_grow_with_what_clients_send() -> None:
    async with gateway() as site:
        await site.ask("BREW", "/coffee-4711")
        await site.ask("GET", "/payments/p-4711")
    labels = [sample.labels for metric in REGISTRY.collect() for sample in metric.samples]
    assert not any("4711" in value or value == "BREW" for label in labels for value in label.values())
    assert {"method": "GET", "route": "/payments/{payment_id}", "status": "400"} in labels


async def test_the_root_redirects_to_the_docs_and_the_docs_load_nothing() -> None:
    async with gateway() as site:
        status, _, headers = await site.ask("GET", "/")
        assert (status, headers["Location"]) == (302, "/docs")
        status, page, headers = await site.ask("GET", "/docs")
        assert status == 200
        assert f"curl -i http://127.0.0.1:{site.url.port}/payments".encode() in page
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        status, document, _ = await site.ask("GET", "/openapi.json")
        assert (status, document["openapi"]) == (200, "3.1.0")


@pytest.mark.parametrize(("timeout_s", "in_flight"), [(0.0, 1), (1.0, 0)])
def test_bounds_that_admit_nothing_are_refused(timeout_s: float, in_flight: int) -> None:
    log = Log()
    with pytest.raises(ValueError, match="above 0"):
        Gateway(
            log,
            Outcomes(log).find,
            let_in(),
            Accounts(),
            Decided(),
            Hosts([]),
            accept_timeout_s=timeout_s,
            requests_in_flight_max=in_flight,
            body_bytes_max=BODY_BYTES_MAX,
            batch_bytes_max=BATCH_BYTES_MAX,
            partitions=PARTITIONS,
        )


def test_the_tests_payment_is_valid_json() -> None:
    assert msgspec.json.decode(body({})) == PAYMENT
