"""The OpenAPI document and its page."""

import re
from typing import Any

import msgspec
import pytest

from services.gateway import openapi
from services.gateway.answers import Accepted, Item, Items, OpeningAccepted, Outcome, PaymentState
from services.gateway.commands import OpeningRequest, opening
from services.gateway.domain import STATUS, place
from shared.events.fields import shapes
from shared.http.page import render
from shared.http.problems import Problem, Refused
from shared.kafka.lineage.outcome import State
from tests.gateways import BATCH_BYTES_MAX, BODY_BYTES_MAX
from tests.partitions import PARTITIONS

DOCUMENT = openapi.document(BODY_BYTES_MAX, BATCH_BYTES_MAX, PARTITIONS)


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["components"]["schemas"][name]
    return found


def test_every_reference_resolves() -> None:
    text = msgspec.json.encode(DOCUMENT).decode()
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names == set(DOCUMENT["components"]["schemas"])


@pytest.mark.parametrize("name", ["payment", "reversal"])
def test_the_schema_and_the_validator_know_the_same_fields(name: str) -> None:
    shape = shapes(PARTITIONS)[2, name]
    published = schema(name.capitalize())
    assert set(published["properties"]) == {*shape.required, *shape.optional}
    assert set(published["required"]) == set(shape.required) - {"payment_id"}  # or Idempotency-Key
    assert published["additionalProperties"] is False


@pytest.mark.parametrize("example", [openapi.PAYMENT_EXAMPLE, openapi.REVERSAL_EXAMPLE])
def test_the_examples_are_valid(example: dict[str, object]) -> None:
    assert place(msgspec.json.encode(example), PARTITIONS).payment_id == example["payment_id"]


def test_the_example_of_an_opening_is_valid() -> None:
    command, placement, _ = opening(msgspec.json.encode(openapi.OPENING_EXAMPLE), None, PARTITIONS)
    assert (command.debtor, placement.payment_id) == ("2378", "open-2378")


@pytest.mark.parametrize(("partitions", "ends"), [(1, "@0"), (12, "@0 to @11")])
def test_the_partitions_are_those_of_the_installation(partitions: int, ends: str) -> None:
    document = openapi.document(BODY_BYTES_MAX, BATCH_BYTES_MAX, partitions)
    for field in ("debtor", "creditor"):
        described = document["components"]["schemas"]["Payment"]["properties"][field]["description"]
        assert described.endswith(f"other with {ends}.")
    (number,) = (
        parameter
        for parameter in document["paths"]["/payments/{payment_id}"]["get"]["parameters"]
        if parameter["name"] == "partition"
    )
    assert number["schema"]["maximum"] == partitions - 1


@pytest.mark.parametrize(
    "struct", [Accepted, Item, Items, OpeningAccepted, OpeningRequest, Outcome, PaymentState, Problem, Refused]
)
def test_every_field_of_an_answer_is_described(struct: type[msgspec.Struct]) -> None:
    published = schema(struct.__name__)
    assert list(published["properties"]) == list(struct.__struct_fields__)
    for shape in published["properties"].values():
        assert shape["description"]
    assert "Attributes" not in published["description"]


def test_every_state_is_described() -> None:
    text = schema("PaymentState")["properties"]["state"]["description"]
    assert all(state.value in text for state in State)


def test_every_status_is_documented() -> None:
    operations = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
    documented = {int(status) for operation in operations for status in operation["responses"]}
    assert documented == {200, 202, 207, 422, *STATUS.values()} - {405}  # no operation has a method not allowed


def test_the_page_shows_every_field_and_loads_nothing() -> None:
    text = render(DOCUMENT, "127.0.0.1:18080", "127.0.0.1:8080")
    for published in DOCUMENT["components"]["schemas"].values():
        assert all(f"<code>{field}</code>" in text for field in published.get("properties", ()))
    assert not re.search(r"<script|<link|<img|@import|src=|https:", text)
    assert set(re.findall(r'href="#(\w+)"', text)) <= set(re.findall(r' id="(\w+)"', text))


@pytest.mark.parametrize("host", [None, '"><script>', "a b", "x:99999999", "x\n"])
def test_an_invalid_host_is_left_out(host: str | None) -> None:
    text = render(DOCUMENT, host, "127.0.0.1:8080")
    assert "http://127.0.0.1:8080/payments" in text
    assert "<script" not in text


@pytest.mark.parametrize("host", ["localhost:8080", "[::1]:8080", "pay.example"])
def test_a_host_is_shown_in_the_examples(host: str) -> None:
    assert f"curl -i http://{host}/payments" in render(DOCUMENT, host, "127.0.0.1:8080")
