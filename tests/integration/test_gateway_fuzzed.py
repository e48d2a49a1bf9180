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
from tests.instructions import instructions
from tests.integration.test_gateway import Gateway, written
from tests.keys import AUTHORIZATION

pytestmark = pytest.mark.timeout(240)

POST, GET = ("/payments", "POST"), ("/payments/{payment_id}", "GET")

bounded = settings(
    derandomize=True,
    deadline=None,
    max_examples=30,
    phases=(Phase.generate,),  # no shrinking: it takes minutes
    suppress_health_check=list(HealthCheck),
)


class Fuzzed:
    """A gateway with API keys, and its accepted payments and statuses."""

    def __init__(self, kafka: LocalKafka, gateway: Gateway) -> None:
        self.kafka = kafka
        self.gateway = gateway
        self.url = f"http://127.0.0.1:{gateway.port}"
        self.document = requests.get(f"{self.url}/openapi.json", timeout=10).json()
        self.schema = schemathesis.openapi.from_dict(self.document)
        self.accepted: list[tuple[bytes, dict[str, Any]]] = []
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
            body = answer.request.body
            assert isinstance(body, bytes | str)
            self.accepted.append((body.encode() if isinstance(body, str) else body, answer.json()))

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
    gateway = Gateway(kafka, directory)
    gateway.service.start()
    try:
        gateway.service.wait_ready()
        yield Fuzzed(kafka, gateway)
    finally:
        gateway.service.process.kill()


def valid(fuzzed: Fuzzed) -> st.SearchStrategy[Case[Any]]:
    """Make cases of valid payments and reversals."""
    make: Callable[..., Case[Any]] = fuzzed.operation(*POST).Case
    return instructions.map(
        lambda instruction: make(
            body=json.loads(msgspec.json.encode(instruction)), media_type="application/json", method="POST"
        )
    )


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("operation", [POST, GET], ids=["post", "get"])
def test_every_answer_is_documented(fuzzed: Fuzzed, operation: tuple[str, str], mode: GenerationMode) -> None:
    before = len(fuzzed.statuses)
    fuzzed.each(fuzzed.operation(*operation).as_strategy(generation_mode=mode))
    assert len(fuzzed.statuses) - before >= 25


def test_valid_payments_are_accepted(fuzzed: Fuzzed) -> None:
    before = len(fuzzed.accepted)
    fuzzed.each(valid(fuzzed))
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
    for operation in (POST, GET):
        for mode in GenerationMode:
            fuzzed.each(fuzzed.operation(*operation).as_strategy(generation_mode=mode))
    fuzzed.each(valid(fuzzed))
    assert len(fuzzed.accepted) >= 25
    found = asyncio.run(written(fuzzed.kafka, [answer for _, answer in fuzzed.accepted]))
    assert len(found) == len(fuzzed.accepted)
    for value, answer in fuzzed.accepted:
        assert found[answer["partition"], answer["offset"]] == value
        assert msgspec.json.decode(value)["payment_id"] == answer["payment_id"]
    assert fuzzed.gateway.service.metric("kafka_producer_record_send_total") == len(fuzzed.accepted)
    assert {202, 400, 404, 422} <= set(fuzzed.statuses)
    assert not any(line["level"] == "error" for line in fuzzed.gateway.service.log())
