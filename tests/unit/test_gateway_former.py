"""What clients of the paths before /v1 rely on: codes, fields, headers. It is never edited, only added to."""

from typing import Any

import msgspec
import pytest

from shared.events.headers import Coordinates
from shared.kafka.lineage.outcome import Outcome, State
from tests.gateways import JSON, Site, gateway
from tests.unit.test_gateway_domain import body


async def post(site: Site, value: bytes, **headers: str) -> tuple[int, Any, dict[str, str]]:
    return await site.ask("POST", "/payments", data=value, headers=JSON | headers)


async def test_a_payment_is_202_with_these_fields_and_a_location_by_coordinates() -> None:
    async with gateway() as site:
        status, answer, headers = await post(site, body({}))
    assert status == 202
    assert list(answer) == ["payment_id", "topic", "partition", "offset", "timestamp_ms"]
    assert headers["Location"] == f"/payments/p-1?partition={answer['partition']}&offset={answer['offset']}"
    assert headers["Content-Type"] == "application/json"


async def test_a_state_has_these_fields() -> None:
    async with gateway() as site:
        location = (await post(site, body({})))[2]["Location"]
        site.outcomes.answer = Outcome(State.DECLINED, Coordinates("ledger.postings", 0, 3), "insufficient_funds")
        status, state, headers = await site.ask("GET", location)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert list(state) == ["payment_id", "topic", "partition", "offset", "state", "final", "at", "reason", "detail"]
    assert (state["state"], state["final"], state["reason"]) == ("declined", True, "insufficient_funds")
    assert (state["at"], state["detail"]) == ("ledger.postings:0:3", None)


@pytest.mark.parametrize(
    ("value", "headers", "status", "error"),
    [
        (b"{", {}, 400, "not_json"),
        (b"[]", {}, 400, "not_an_object"),
        (b'{"payment_id":"\xff"}', {}, 400, "not_utf8"),
        (b" " * 70_000, {}, 413, "too_large"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        (body({"amount_minor": 0}), {}, 422, "amount_not_positive"),
        (body({"payment_id": None}), {}, 422, "field_missing"),
        (body({}), {"Authorization": "Bearer once_unknown"}, 401, "key_unknown"),
        (body({}), {"Authorization": "Basic abc"}, 401, "key_missing"),
    ],
)
async def test_a_refusal_is_json_with_error_and_detail(
    value: bytes, headers: dict[str, str], status: int, error: str
) -> None:
    async with gateway() as site:
        answered, answer, sent = await post(site, value, **headers)
    assert (answered, list(answer), answer["error"]) == (status, ["error", "detail"], error)
    assert sent["Content-Type"] == "application/json"
    assert (status != 401) or sent["WWW-Authenticate"].startswith('Bearer realm="payments"')


async def test_an_idempotency_key_is_ignored() -> None:
    async with gateway() as site:
        for value, status in ((body({}), 202), (body({"payment_id": None}), 422)):
            assert (await post(site, value, **{"Idempotency-Key": "other"}))[0] == status
        assert [record[3] for record in site.log.records] == [body({})]


@pytest.mark.parametrize(
    ("method", "path", "status", "error"),
    [
        ("GET", "/payments/p-1", 400, "coordinates_invalid"),
        ("GET", "/payments/p-1?partition=0&offset=9", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("DELETE", "/payments", 405, "method_not_allowed"),
    ],
)
async def test_other_refusals(method: str, path: str, status: int, error: str) -> None:
    async with gateway() as site:
        answered, answer, _ = await site.ask(method, path)
    assert (answered, answer["error"]) == (status, error)


async def test_503_says_when_to_send_again() -> None:
    async with gateway() as site:
        site.log.failing = True
        status, answer, headers = await post(site, body({}))
    assert (status, answer["error"], headers["Retry-After"]) == (503, "kafka_unavailable", "1")


async def test_the_document_keeps_these_paths_and_operations() -> None:
    async with gateway() as site:
        status, document, _ = await site.ask("GET", "/openapi.json")
        assert (status, document["openapi"]) == (200, "3.1.0")
        assert document["paths"]["/payments"]["post"]["operationId"] == "postPayment"
        assert document["paths"]["/payments/{payment_id}"]["get"]["operationId"] == "getPayment"
        assert (await site.ask("GET", "/"))[2]["Location"] == "/docs"
        assert msgspec.json.encode(document)
