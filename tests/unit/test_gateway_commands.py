"""Requests of /v1 as records: idempotency keys, batches, openings. Without HTTP."""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway import commands, domain
from services.gateway.commands import BATCH_PAYMENTS_MAX
from services.gateway.domain import RefusedError
from shared.events.payments import MAX_PAYMENT_ID_CHARS, AccountOpening
from shared.events.validation import decode_payment
from tests.instructions import instructions
from tests.partitions import PARTITIONS, partition_for
from tests.unit.test_gateway_domain import body

keys = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=MAX_PAYMENT_ID_CHARS).filter(
    lambda text: text == text.strip() and not (len(text) > 1 and text[0] == text[-1] == '"')
)


def reason_of(caught: pytest.ExceptionInfo[RefusedError]) -> tuple[int, str]:
    return caught.value.status, caught.value.reason.value


@given(keys)
def test_a_key_is_read_with_and_without_quotes(key: str) -> None:
    assert commands.idempotency_key([key]) == key
    assert commands.idempotency_key([f' "{key}" ']) == key


@pytest.mark.parametrize(
    "values", [[""], [" "], ['""'], ["a", "a"], ["x" * (MAX_PAYMENT_ID_CHARS + 1)], ["a\tb"], ["\udce9"], ["\u00e9"]]
)
def test_a_key_that_is_no_payment_id_is_refused(values: list[str]) -> None:
    with pytest.raises(RefusedError) as caught:
        commands.idempotency_key(values)
    assert reason_of(caught) == (422, "idempotency_key_invalid")


def test_without_a_key_the_bytes_are_kept() -> None:
    assert commands.idempotency_key([]) is None
    for value in (b"", b"{", b' {"payment_id" : "p"}'):
        assert commands.with_payment_id(value, None) is value


@given(instructions, keys, st.sampled_from(["", " ", "\n\t "]), st.booleans())
def test_a_payment_without_payment_id_gets_the_key(instruction: Any, key: str, space: str, compact: bool) -> None:
    fields = json.loads(msgspec.json.encode(instruction))
    del fields["payment_id"]
    sent = (space + json.dumps(fields, separators=(",", ":") if compact else None)).encode()
    value = commands.with_payment_id(sent, key)
    assert json.loads(value) == {"payment_id": key, **fields}
    assert commands.with_payment_id(value, key) is value
    assert value.endswith(sent.lstrip()[1:])  # the bytes of its fields are kept


def test_an_empty_object_gets_the_key_as_well() -> None:
    assert json.loads(commands.with_payment_id(b"{ }", "k")) == {"payment_id": "k"}


@pytest.mark.parametrize("sent", ['"p-2"', "null", "1", "[]", '"k "'])
def test_a_key_and_another_payment_id_are_refused(sent: str) -> None:
    with pytest.raises(RefusedError) as caught:
        commands.with_payment_id(b'{"payment_id":%b}' % sent.encode(), "k")
    assert reason_of(caught) == (422, "idempotency_key_conflict")


@given(st.binary(max_size=60))
def test_any_bytes_with_a_key_are_refused_as_without(value: bytes) -> None:
    with pytest.raises(RefusedError):
        domain.place(commands.with_payment_id(value, "k"), PARTITIONS)


def test_a_batch_keeps_the_bytes_of_each_payment() -> None:
    payments = [b'{"payment_id" : "a"}', b"17", b'"\\u00e9"', b'{"x":[1,{"y":2}]}']
    assert commands.batch(b' { "payments" : [ %b ] } ' % b" , ".join(payments)) == payments
    most = commands.batch(b'{"payments":[%b]}' % b",".join([b"{}"] * BATCH_PAYMENTS_MAX))
    assert len(most) == BATCH_PAYMENTS_MAX


def test_a_batch_of_many_small_values_is_refused_at_the_first_one_too_many() -> None:
    value = b'{"payments":[%b1]}' % (b"1," * 500_000)
    tracemalloc.start()
    try:
        with pytest.raises(RefusedError, match="batch_invalid"):
            commands.batch(value)
        assert tracemalloc.get_traced_memory()[1] < len(value)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"payments":[]}',
        b'{"payments":{}}',
        b'{"payments":[1],"more":1}',
        b'{"payments":[1,]}',
        b'{"payments":[%b]}' % b",".join([b"{}"] * (BATCH_PAYMENTS_MAX + 1)),
        b"[" * 100_000,
    ],
)
def test_what_is_no_batch_is_refused(value: bytes) -> None:
    with pytest.raises(RefusedError) as caught:
        commands.batch(value)
    assert reason_of(caught) == (422, "batch_invalid")
    assert caught.value.detail.isascii()


def open_with(key: str | None = None, **fields: Any) -> tuple[AccountOpening, domain.Placement, bytes]:
    return commands.opening(msgspec.json.encode(fields), key, PARTITIONS)


@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"overdraft_minor": 500, "expected_version": 3, "owner": "shop"},
        {"overdraft_minor": None, "expected_version": None, "owner": None},
    ],
)
def test_an_opening_is_the_instruction_that_ingest_decodes(terms: dict[str, Any]) -> None:
    opening, placement, value = open_with(account="2378", command_id="c-1", **terms)
    assert decode_payment(value, PARTITIONS) == opening
    assert placement == ("c-1", "2378", partition_for("2378"))
    for name, default in (("overdraft_minor", 0), ("expected_version", None), ("owner", None)):
        assert getattr(opening, name) == terms.get(name, default)


def test_an_openings_command_id_is_its_own_or_the_key() -> None:
    assert open_with("c-1", account="2378")[0] == open_with(account="2378", command_id="c-1")[0]
    assert open_with("c-1", account="2378", command_id="c-1")[0].payment_id == "c-1"
    with pytest.raises(RefusedError) as caught:
        open_with("c-2", account="2378", command_id="c-1")
    assert reason_of(caught) == (422, "idempotency_key_conflict")


@pytest.mark.parametrize(
    ("fields", "reason", "named"),
    [
        ({"command_id": "c"}, "field_missing", "account"),
        ({"account": "2378"}, "field_missing", "command_id"),
        ({"account": "2378", "command_id": "c", "debtor": "1"}, "field_unknown", "debtor"),
        ({"account": "2378", "command_id": "c", "schema_version": 2}, "field_unknown", "schema_version"),
        ({"account": "2378", "command_id": "c", "x" * 1000: 1}, "field_unknown", "xxx... is not a field"),
        ({"account": "cash@0", "command_id": "c"}, "account_invalid", "account is 'cash@0'"),
        ({"account": 7, "command_id": "c"}, "field_invalid", "account is 7"),
        ({"account": "2378", "command_id": ""}, "field_invalid", "command_id is ''"),
        ({"account": "2378", "command_id": "c", "overdraft_minor": -1}, "field_invalid", "overdraft_minor is -1"),
        ({"account": "2378", "command_id": "c", "owner": "a b"}, "field_invalid", "owner is 'a b'"),
        ({"account": "2378", "command_id": "c", "expected_version": True}, "field_invalid", "expected_version"),
    ],
)
def test_an_invalid_opening_is_refused_by_its_own_names(fields: dict[str, Any], reason: str, named: str) -> None:
    with pytest.raises(RefusedError) as caught:
        open_with(**fields)
    assert reason_of(caught) == (422, reason)
    assert named in caught.value.detail


@pytest.mark.parametrize(
    ("value", "reason"), [(b"{", "not_json"), (b"[]", "not_an_object"), (b'{"a":"\xff"}', "not_utf8")]
)
def test_what_is_no_object_opens_nothing(value: bytes, reason: str) -> None:
    with pytest.raises(RefusedError) as caught:
        commands.opening(value, None, PARTITIONS)
    assert reason_of(caught) == (400, reason)


def test_an_opening_is_no_payment() -> None:
    _, _, value = open_with(account="2378", command_id="c")
    with pytest.raises(RefusedError, match="/v1/accounts") as caught:
        domain.place(value, PARTITIONS)
    assert reason_of(caught) == (422, "type_unknown")
    assert domain.place(body({}), PARTITIONS).payment_id == "p-1"
