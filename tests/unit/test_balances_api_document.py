"""The read side's OpenAPI document, its page, and the check of answers against it."""

import re
from typing import Any

import msgspec
import pytest

from services.balances.api import openapi, parameters
from services.balances.api.answers import Status
from services.balances.api.parameters import STATUS
from shared.http.page import render
from tests.json_schema import Checker, SchemaMismatchError
from tests.partitions import PARTITIONS

DOCUMENT = openapi.document(PARTITIONS)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def test_every_reference_resolves() -> None:
    text = msgspec.json.encode(DOCUMENT).decode()
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_of_an_answer_is_described(name: str) -> None:
    schema = SCHEMAS[name]
    assert "Attributes" not in schema["description"]
    for field, shape in schema.get("properties", {}).items():
        assert shape["description"], field


@pytest.mark.parametrize("path", openapi.OPERATIONS)
def test_the_documented_parameters_are_those_that_are_read(path: str) -> None:
    listed = DOCUMENT["paths"][path]["get"]["parameters"]
    query = openapi.OPERATIONS[path].query
    assert [one["name"] for one in listed if one["in"] == "query"] == list(query.__struct_encode_fields__)
    assert [one["name"] for one in listed if one["in"] == "path"] == re.findall(r"{(\w+)}", path)
    for one in listed:
        assert one["description"]
        if "example" in one:
            Checker(DOCUMENT).check(one["example"], one["schema"])
        if one["in"] == "query":
            assert "null" not in str(one["schema"])
            [field] = [field for field in msgspec.structs.fields(query) if field.encode_name == one["name"]]
            assert one.get("required", False) == field.required
            assert field.required or one["schema"].get("default") == field.default


def test_every_status_is_documented() -> None:
    operations = [methods["get"] for methods in DOCUMENT["paths"].values()]
    documented = {int(status) for operation in operations for status in operation["responses"]}
    assert documented == {200, *STATUS.values()} - {405}  # no operation has a method not allowed
    for operation in operations:
        names = {one["name"] for one in operation["parameters"]}
        assert ("504" in operation["responses"]) == ("at_least" in names)
        in_path = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert ("404" in operation["responses"]) == bool(in_path)


def test_every_status_of_a_payment_is_described() -> None:
    text = SCHEMAS["Payment"]["properties"]["status"]["description"]
    assert all(status.value in text for status in Status)


def test_the_page_shows_every_field_and_loads_nothing() -> None:
    text = render(DOCUMENT, "127.0.0.1:18090", "127.0.0.1:8090")
    for schema in SCHEMAS.values():
        assert all(f"<code>{field}</code>" in text for field in schema.get("properties", ()))
    for path in openapi.OPERATIONS:
        assert f"<code>{path}</code>" in text
    assert not re.search(r"<script|<link|<img|@import|src=|https:", text)
    assert set(re.findall(r'href="#(\w+)"', text)) <= set(re.findall(r' id="(\w+)"', text))
    assert "curl &#x27;http://127.0.0.1:18090/api/accounts/2378/entries?currency=EUR&amp;limit=20&#x27;" in text
    assert "One of: newest, oldest. newest if not sent." in text
    assert 'array of <a href="#Entry">Entry</a>' in text


def test_a_querys_own_fields_and_those_of_its_base_are_described() -> None:
    shown = parameters.properties(parameters.EntriesQuery)
    assert list(shown) == list(parameters.EntriesQuery.__struct_fields__)
    assert (shown["timeout"]["maximum"], shown["limit"]["maximum"]) == (parameters.WAIT_S_MAX, parameters.ENTRIES_MAX)


BALANCE = {"currency": "EUR", "balance_minor": "-12", "postings": 1, "last_offset": 7}


@pytest.mark.parametrize(
    "changes",
    [
        {"balance_minor": -12},
        {"balance_minor": "1.5"},
        {"balance_minor": "-0"},
        {"balance_minor": "007"},
        {"postings": True},
        {"postings": None},
        {"currency": None},
        {"more": 1},
    ],
)
def test_an_answer_that_differs_from_its_description_is_noticed(changes: dict[str, object]) -> None:
    checker = Checker(DOCUMENT)
    checker.check(BALANCE, SCHEMAS["Balance"])
    with pytest.raises(SchemaMismatchError):
        checker.check(BALANCE | changes, SCHEMAS["Balance"])


def test_a_missing_or_wrong_nested_field_is_noticed() -> None:
    checker = Checker(DOCUMENT)
    account = {
        "account": "2378",
        "partition": 4,
        "closed": False,
        "overdraft_minor": None,
        "owner": "operator",
        "version": 0,
        "balances": [BALANCE],
        "last_offset": 7,
        "as_of": [],
    }
    checker.check(account, SCHEMAS["Account"])
    for name in account:
        with pytest.raises(SchemaMismatchError, match=f"{name} is missing"):
            checker.check({key: value for key, value in account.items() if key != name}, SCHEMAS["Account"])
    with pytest.raises(SchemaMismatchError, match=r"balances\[0\].currency"):
        checker.check(account | {"balances": [BALANCE | {"currency": 9}]}, SCHEMAS["Account"])
    with pytest.raises(SchemaMismatchError):
        checker.check(account | {"overdraft_minor": 500}, SCHEMAS["Account"])
    with pytest.raises(AttributeError):
        checker.check("a", {"format": "date"})
