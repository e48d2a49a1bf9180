"""The gateway on real brokers, with requests that its OpenAPI document allows and forbids.

Invariant: no answer is a 5xx, every answer is documented, and keys are required as documented. Exactly the payments
answered with 202 are in payments.raw, byte for byte.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import positive_data_acceptance

from deploy.local.kafka.cluster import LocalKafka
from shared.events.payments import AccountOpening
from tests.gateway_view import substituting_by_thread
from tests.instructions import instructions, openings
from tests.integration.test_gateway import Gateway, written
from tests.keys import AUTHORIZATION
from tests.tiers import full

pytestmark = pytest.mark.timeout(240)

POST, GET = ("/payments", "POST"), ("/payments/{payment_id}", "GET")
V1_POST, BATCH, V1_GET, ACCOUNTS = (
    ("/v1/payments", "POST"),
    ("/v1/payments/batch", "POST"),
    ("/v1/payments/{payment_id}", "GET"),
    ("/v1/accounts", "POST"),
)
OPERATIONS = (POST, GET, V1_POST, BATCH, V1_GET, ACCOUNTS)
WRITES = (POST, V1_POST, BATCH, ACCOUNTS)


def tier(operation: tuple[str, str]) -> tuple[pytest.MarkDecorator, ...]:
    """The former paths share their code with those of /v1."""
    return (full,) if operation in {POST, GET} else ()


bounded = settings(
    derandomize=True,
    deadline=None,
    max_examples=30,
    phases=(Phase.generate,),  # no shrinking: it takes minutes
    suppress_health_check=list(HealthCheck),
)


class Batch(msgspec.Struct):
    payments: list[msgspec.Raw]


def sent(answer: Any) -> bytes:
    body = answer.request.body
    assert isinstance(body, bytes | str)
    return body.encode() if isinstance(body, str) else body


class Fuzzed:
    """A gateway with API keys, and its accepted payments and statuses."""

    def __init__(self, kafka: LocalKafka, gateway: Gateway) -> None:
        self.kafka = kafka
        self.gateway = gateway
        self.url = f"http://127.0.0.1:{gateway.port}"
        self.document = requests.get(f"{self.url}/openapi.json", timeout=10).json()
        self.schema = schemathesis.openapi.from_dict(self.document)
        self.accepted: list[tuple[bytes, dict[str, Any]]] = []  # a payment's bytes, and its answer
        self.statuses: list[int] = []

    def operation(self, path: str, method: str) -> Any:
        """Return one operation of the document."""
        return self.schema[path][method]

    def send(self, case: Case[Any]) -> None:
        """Send a case and check the answer with all of the document's checks but one.

        The gateway may refuse a payment that matches the schema: descriptions state further rules.
        """
        answer = case.call(base_url=self.url, headers=AUTHORIZATION, timeout=30)
        self.statuses.append(answer.status_code)
        case.validate_response(answer, headers=AUTHORIZATION, excluded_checks=[positive_data_acceptance])
        assert answer.status_code < 500
        if answer.status_code == 202:
            self.accepted.append((sent(answer), answer.json()))
        elif answer.status_code == 207:
            payments = msgspec.json.decode(sent(answer), type=Batch).payments
            items = answer.json()["payments"]
            assert len(items) == len(payments)
            self.accepted += (
                (bytes(value), item) for value, item in zip(payments, items, strict=True) if item["status"] == 202
            )
            assert all(item["status"] in {202, 400, 403, 413, 422} for item in items)

    def each(self, cases: st.SearchStrategy[Case[Any]]) -> None:
        """Send many cases."""

        @bounded
        @given(cases)
        def send(case: Case[Any]) -> None:
            self.send(case)

        send()


@pytest.fixture(scope="module")
def fuzzed(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    directory = tmp_path_factory.mktemp("fuzzed")
    with substituting_by_thread() as view:
        gateway = Gateway(kafka, directory, GATEWAY_VIEW_URL=view)
        gateway.service.start()
        try:
            gateway.service.wait_ready()
            yield Fuzzed(kafka, gateway)
        finally:
            gateway.service.process.kill()


def valid(fuzzed: Fuzzed, operation: tuple[str, str]) -> st.SearchStrategy[Case[Any]]:
    """Make cases of valid payments and reversals, of batches of them, or of openings."""
    make: Callable[..., Case[Any]] = fuzzed.operation(*operation).Case
    payments = instructions.map(msgspec.to_builtins)
    bodies: st.SearchStrategy[Any] = {
        POST: payments,
        V1_POST: payments,
        BATCH: st.lists(payments, min_size=1, max_size=20).map(lambda some: {"payments": some}),
        ACCOUNTS: openings.map(opening_request),
    }[operation]
    return bodies.map(lambda body: make(body=body, media_type="application/json", method="POST"))


def opening_request(opening: AccountOpening) -> dict[str, Any]:
    return {
        "account": opening.debtor,
        "command_id": opening.payment_id,
        "overdraft_minor": opening.overdraft_minor,
        "expected_version": opening.expected_version,
        "owner": opening.owner,
    }


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("operation", [pytest.param(one, id=" ".join(one), marks=tier(one)) for one in OPERATIONS])
def test_every_answer_is_documented(fuzzed: Fuzzed, operation: tuple[str, str], mode: GenerationMode) -> None:
    before = len(fuzzed.statuses)
    fuzzed.each(fuzzed.operation(*operation).as_strategy(generation_mode=mode))
    assert len(fuzzed.statuses) - before >= 25


@pytest.mark.parametrize("operation", [pytest.param(one, id=" ".join(one), marks=tier(one)) for one in WRITES])
def test_valid_requests_are_accepted(fuzzed: Fuzzed, operation: tuple[str, str]) -> None:
    before = len(fuzzed.accepted)
    fuzzed.each(valid(fuzzed, operation))
    assert len(fuzzed.accepted) - before >= 25


def test_an_undocumented_answer_is_noticed(fuzzed: Fuzzed) -> None:
    document = json.loads(json.dumps(fuzzed.document))
    del document["paths"]["/payments"]["post"]["responses"]["422"]
    narrower = schemathesis.openapi.from_dict(document)[POST[0]][POST[1]]
    case = narrower.Case(body={}, media_type="application/json", method="POST")
    answer = case.call(base_url=fuzzed.url, headers=AUTHORIZATION, timeout=30)
    assert answer.status_code == 422
    with pytest.raises(FailureGroup, match="Undocumented status code"):
        case.validate_response(answer, headers=AUTHORIZATION)


def test_exactly_the_accepted_payments_are_written(fuzzed: Fuzzed) -> None:
    for operation in WRITES:
        fuzzed.each(fuzzed.operation(*operation).as_strategy())
        fuzzed.each(valid(fuzzed, operation))
    assert len(fuzzed.accepted) >= 25
    found = asyncio.run(written(fuzzed.kafka, [answer for _, answer in fuzzed.accepted]))
    assert len(found) == len(fuzzed.accepted)
    for value, answer in fuzzed.accepted:
        record = found[answer["partition"], answer["offset"]]
        assert record is not None
        given = msgspec.json.decode(value)
        if "command_id" in answer:
            written_as = msgspec.json.decode(record)
            assert (written_as["type"], written_as["payment_id"]) == ("account_opening", answer["command_id"])
            assert written_as["debtor"] == given["account"] == answer["account"]
        elif "payment_id" in given:
            assert record == value
            assert given["payment_id"] == answer["payment_id"]
        else:  # sent with an Idempotency-Key
            assert msgspec.json.decode(record) == {"payment_id": answer["payment_id"], **given}
    assert fuzzed.gateway.payments_sent == len(fuzzed.accepted)
    assert {202, 207, 422} <= set(fuzzed.statuses)
    assert not any(line["level"] == "error" for line in fuzzed.gateway.service.log())
