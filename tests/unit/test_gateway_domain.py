"""The gateway's decisions, without HTTP."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway import domain
from services.gateway.domain import RefusedError
from shared.events.validation import key_of
from tests.gateways import BODY_BYTES_MAX
from tests.partitions import PARTITIONS, partition_for

PAYMENT = {
    "schema_version": 2,
    "payment_id": "p-1",
    "debtor": "2378",
    "creditor": "cash@3",
    "amount_minor": 1250,
    "currency": "EUR",
}
VERSION_1 = {
    "schema_version": 1,
    "payment_id": "p-1",
    "account_from": "2378",
    "account_to": "cash@3",
    "amount_minor": 1250,
    "currency": "EUR",
}

INVALID: dict[str, tuple[int, bytes | dict[str, object]]] = {
    "not_utf8": (400, b'{"payment_id":"\xff"}'),
    "not_json": (400, b"{"),
    "not_an_object": (400, b"[]"),
    "schema_version_missing": (422, {"schema_version": None}),
    "schema_version_unknown": (422, {"schema_version": 9}),
    "type_unknown": (422, {"type": "loan"}),
    "field_missing": (422, {"currency": None}),
    "field_unknown": (422, {"amount": 1}),
    "field_invalid": (422, {"payment_id": ""}),
    "amount_not_integer": (422, {"amount_minor": 1.5}),
    "amount_not_positive": (422, {"amount_minor": 0}),
    "currency_unknown": (422, {"currency": "XXQ"}),
    "account_invalid": (422, {"debtor": "in-transit@0"}),
    "same_account": (422, {"creditor": "2378"}),
}
"""By reason: the status, and the body or what to change in a valid payment (None leaves the field out)."""


def body(changes: dict[str, object] | bytes) -> bytes:
    if isinstance(changes, bytes):
        return changes
    return msgspec.json.encode({name: value for name, value in (PAYMENT | changes).items() if value is not None})


@pytest.mark.parametrize("reason", INVALID)
def test_each_invalid_form_is_refused_with_its_reason(reason: str) -> None:
    status, changes = INVALID[reason]
    with pytest.raises(RefusedError) as caught:
        domain.place(body(changes), PARTITIONS)
    assert (caught.value.reason.value, caught.value.status) == (reason, status)
    assert "send" in caught.value.detail or "its fields are" in caught.value.detail or "needs" in caught.value.detail


@pytest.mark.parametrize("payment", [PAYMENT, VERSION_1])
def test_a_payment_of_any_version_goes_to_its_debtors_partition(payment: dict[str, object]) -> None:
    value = msgspec.json.encode(payment)
    placement = domain.place(value, PARTITIONS)
    assert placement == ("p-1", "2378", partition_for("2378"))
    assert (placement.key, placement.partition) == key_of(value, PARTITIONS)


@pytest.mark.parametrize(
    ("form", "status"),
    [
        (("application/json", None, None, 10), None),
        (("application/json", "UTF-8", "identity", None), None),
        (("application/json", None, None, BODY_BYTES_MAX), None),
        (("application/json", None, None, BODY_BYTES_MAX + 1), 413),
        (("application/json", "latin-1", None, 10), 415),
        (("application/json", None, "gzip", 10), 415),
        (("text/plain", None, None, 10), 415),
        (("application/octet-stream", None, None, None), 415),
    ],
)
def test_the_form_is_checked_before_the_body(
    form: tuple[str, str | None, str | None, int | None], status: int | None
) -> None:
    if status is None:
        domain.check_form(*form, BODY_BYTES_MAX)
        return
    with pytest.raises(RefusedError) as caught:
        domain.check_form(*form, BODY_BYTES_MAX)
    assert caught.value.status == status


@given(st.integers(0, PARTITIONS - 1), st.integers(0, 10**18 - 1))
def test_coordinates_are_read_back(partition: int, offset: int) -> None:
    assert domain.coordinates(str(partition), str(offset), PARTITIONS) == (partition, offset)


@pytest.mark.parametrize(
    ("partition", "offset"),
    [(None, "1"), ("1", None), ("6", "1"), ("-1", "1"), ("1", "-1"), ("1", "1e3"), ("\u0661", "1"), ("1", "9" * 19)],
)
def test_invalid_coordinates_are_refused(partition: str | None, offset: str | None) -> None:
    with pytest.raises(RefusedError) as caught:
        domain.coordinates(partition, offset, PARTITIONS)
    assert caught.value.status == 400


@given(st.binary() | st.none())
def test_any_raw_record_can_be_compared_by_payment_id(value: bytes | None) -> None:
    assert domain.names_payment(value, "never sent") is False


def test_an_invalid_raw_record_is_found_by_its_payment_id() -> None:
    assert domain.names_payment(b'{"payment_id":"p-1","amount_minor":-1}', "p-1")
    assert not domain.names_payment(b'{"payment_id":"p-2"}', "p-1")
    assert not domain.names_payment(b"[" * 100_000, "p-1")
