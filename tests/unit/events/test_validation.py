"""The validator: the reason for each fault, the detail for the sender, and keys for any bytes."""

from typing import Any

import msgspec
import pytest

from shared.events.dead_letters import Reason
from shared.events.payments import AccountOpening, Payment, Reversal
from shared.events.validation import InvalidPaymentError, decode_payment, key_of
from tests.partitions import PARTITIONS, partition_for, partition_for_bytes

PAYMENT: dict[str, Any] = {
    "schema_version": 2,
    "payment_id": "171812",
    "debtor": "2378",
    "creditor": "cash@3",
    "amount_minor": 70000,
    "currency": "CZK",
}
REVERSAL: dict[str, Any] = {
    "schema_version": 2,
    "type": "reversal",
    "payment_id": "r-1",
    "debtor": "2378",
    "reverses": "171812",
}
OPENING: dict[str, Any] = {
    "schema_version": 2,
    "type": "account_opening",
    "payment_id": "o-1",
    "debtor": "2378",
}
VERSION_1: dict[str, Any] = {
    "schema_version": 1,
    "payment_id": "171812",
    "account_from": "2378",
    "account_to": "cash@3",
    "amount_minor": 70000,
    "currency": "CZK",
    "occurred_at": "1993-01-01T23:30:00+01:00",
    "memo": "VKLAD",
}


def with_fields(base: dict[str, Any], **changes: object) -> bytes:
    return msgspec.json.encode(base | changes)


def without(base: dict[str, Any], name: str) -> bytes:
    return msgspec.json.encode({key: value for key, value in base.items() if key != name})


def refusal(value: bytes | None) -> InvalidPaymentError:
    with pytest.raises(InvalidPaymentError) as caught:
        decode_payment(value, PARTITIONS)
    return caught.value


def test_a_payment_without_type_is_a_payment() -> None:
    expected = Payment("171812", "2378", "cash@3", 70000, "CZK", schema_version=2)
    assert decode_payment(with_fields(PAYMENT), PARTITIONS) == expected
    assert decode_payment(with_fields(PAYMENT, type="payment"), PARTITIONS) == expected


def test_every_optional_field_is_read() -> None:
    value = with_fields(PAYMENT, credit_currency="EUR", value_date="1993-01-01", reference="VKLAD\n")
    assert decode_payment(value, PARTITIONS) == Payment(
        "171812", "2378", "cash@3", 70000, "CZK", 2, "EUR", "1993-01-01", "VKLAD\n"
    )


def test_a_reversal_is_read() -> None:
    value = with_fields(REVERSAL, reference="mistake", value_date="1993-01-02")
    assert decode_payment(value, PARTITIONS) == Reversal("r-1", "2378", "171812", 2, "1993-01-02", "mistake")


def test_an_opening_is_read() -> None:
    assert decode_payment(with_fields(OPENING), PARTITIONS) == AccountOpening("o-1", "2378", schema_version=2)
    value = with_fields(OPENING, overdraft_minor=None, expected_version=3, owner="alpha")
    assert decode_payment(value, PARTITIONS) == AccountOpening("o-1", "2378", None, 3, "alpha", 2)


def test_version_1_is_upgraded() -> None:
    expected = Payment("171812", "2378", "cash@3", 70000, "CZK", 2, None, "1993-01-01", "VKLAD")
    assert decode_payment(with_fields(VERSION_1), PARTITIONS) == expected


@pytest.mark.parametrize("name", ["occurred_at", "memo"])
def test_version_1_needs_none_of_its_optional_fields(name: str) -> None:
    payment = decode_payment(without(VERSION_1, name), PARTITIONS)
    assert isinstance(payment, Payment)
    assert (payment.value_date, payment.reference) == ((None, "VKLAD") if name == "occurred_at" else ("1993-01-01", ""))


@pytest.mark.parametrize("first", [70000, 0, "bad"])
def test_the_last_of_two_equal_fields_counts(first: object) -> None:
    doubled = with_fields(PAYMENT, amount_minor=first)[:-1] + b',"amount_minor":5}'
    payment = decode_payment(doubled, PARTITIONS)
    assert isinstance(payment, Payment)
    assert payment.amount_minor == 5


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, Reason.NOT_JSON),
        (b"", Reason.NOT_JSON),
        (b"\xff\xfe", Reason.NOT_UTF8),
        (with_fields(PAYMENT).replace(b"CZK", b"C\xffK"), Reason.NOT_UTF8),
        (b"\xef\xbb\xbf" + with_fields(PAYMENT), Reason.NOT_JSON),
        (b"hello", Reason.NOT_JSON),
        (with_fields(PAYMENT)[:-1], Reason.NOT_JSON),
        (with_fields(PAYMENT) + b"{}", Reason.NOT_JSON),
        (with_fields(PAYMENT).replace(b"70000", b"NaN"), Reason.NOT_JSON),
        (with_fields(PAYMENT).replace(b"171812", b"\\ud800"), Reason.NOT_JSON),
        (b"[" * 100_000, Reason.NOT_JSON),
        (b'{"type":' + b'{"a":' * 100_000, Reason.NOT_JSON),  # a wrong tag is skipped to its end
        (b'{"a":' * 100_000, Reason.NOT_JSON),
        (b"[]", Reason.NOT_AN_OBJECT),
        (b"null", Reason.NOT_AN_OBJECT),
        (b"7", Reason.NOT_AN_OBJECT),
        (without(PAYMENT, "schema_version"), Reason.SCHEMA_VERSION_MISSING),
        (with_fields(PAYMENT, schema_version=3), Reason.SCHEMA_VERSION_UNKNOWN),
        (with_fields(PAYMENT, schema_version=0), Reason.SCHEMA_VERSION_UNKNOWN),
        (with_fields(PAYMENT, schema_version=2.0), Reason.SCHEMA_VERSION_UNKNOWN),
        (with_fields(PAYMENT, schema_version=True), Reason.SCHEMA_VERSION_UNKNOWN),
        (with_fields(PAYMENT, schema_version="2"), Reason.SCHEMA_VERSION_UNKNOWN),
        (with_fields(PAYMENT, schema_version=None), Reason.SCHEMA_VERSION_UNKNOWN),
        (with_fields(PAYMENT, type="refund"), Reason.TYPE_UNKNOWN),
        (with_fields(PAYMENT, type=None), Reason.TYPE_UNKNOWN),
        (with_fields(VERSION_1, type="payment"), Reason.FIELD_UNKNOWN),
    ],
)
def test_the_record_as_a_whole(value: bytes | None, reason: Reason) -> None:
    assert refusal(value).reason is reason


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (base, name)
        for base, optional in (
            (PAYMENT, ()),
            (REVERSAL, ("type",)),
            (OPENING, ("type",)),
            (VERSION_1, ("occurred_at", "memo")),
        )
        for name in base
        if name not in ("schema_version", *optional)
    ],
)
def test_each_missing_required_field_is_reported(base: dict[str, Any], name: str) -> None:
    refused = refusal(without(base, name))
    assert refused.reason is Reason.FIELD_MISSING
    assert refused.detail.startswith(f"{name} is missing")


@pytest.mark.parametrize("base", [PAYMENT, REVERSAL, OPENING, VERSION_1])
def test_an_unknown_field_is_refused_and_named(base: dict[str, Any]) -> None:
    refused = refusal(with_fields(base, ammount_minor=1))
    assert refused.reason is Reason.FIELD_UNKNOWN
    assert refused.detail.startswith("'ammount_minor' is not a field")


@pytest.mark.parametrize(
    ("amount", "reason"),
    [
        (0, Reason.AMOUNT_NOT_POSITIVE),
        (-1, Reason.AMOUNT_NOT_POSITIVE),
        (1.0, Reason.AMOUNT_NOT_INTEGER),
        (0.5, Reason.AMOUNT_NOT_INTEGER),
        (1e300, Reason.AMOUNT_NOT_INTEGER),
        (True, Reason.AMOUNT_NOT_INTEGER),
        ("700", Reason.AMOUNT_NOT_INTEGER),
        (None, Reason.AMOUNT_NOT_INTEGER),
        ([], Reason.AMOUNT_NOT_INTEGER),
        (2**53, Reason.FIELD_INVALID),
        (2**70, Reason.FIELD_INVALID),
    ],
)
@pytest.mark.parametrize("base", [PAYMENT, VERSION_1])
def test_amounts(base: dict[str, Any], amount: object, reason: Reason) -> None:
    refused = refusal(with_fields(base, amount_minor=amount))
    assert refused.reason is reason
    assert refused.detail.startswith("amount_minor is ")


@pytest.mark.parametrize("digits", [b"9" * 5000, b"1e999"])
def test_a_number_out_of_every_range_is_refused(digits: bytes) -> None:
    assert refusal(with_fields(PAYMENT).replace(b"70000", digits)).reason is Reason.FIELD_INVALID


def test_the_largest_amount_passes() -> None:
    payment = decode_payment(with_fields(PAYMENT, amount_minor=2**53 - 1), PARTITIONS)
    assert isinstance(payment, Payment)
    assert payment.amount_minor == 2**53 - 1


def test_an_amount_of_zero_says_what_to_send() -> None:
    detail = "amount_minor is 0: send a positive integer number of minor units"
    assert refusal(with_fields(PAYMENT, amount_minor=0)).detail == detail


@pytest.mark.parametrize(
    "account",
    [
        "",
        " 2378",
        "2378\n",
        "-2378",
        "a" * 65,
        "Žofie",
        "cash@6",
        "cash@-1",
        "cash@",
        "@3",
        "cash@33",
        "Cash@3",
        "2378@3",
        "in-transit@3",
        "suspense@3",
        "fx:EUR@3",
        "in-transit@3@3",
    ],
)
@pytest.mark.parametrize("name", ["debtor", "creditor"])
def test_accounts_that_no_payment_may_name(name: str, account: str) -> None:
    refused = refusal(with_fields(PAYMENT, **{name: account}))
    assert refused.reason is Reason.ACCOUNT_INVALID
    assert refused.detail.startswith(f"{name} is ")


@pytest.mark.parametrize("account", ["2378", "a", "A.b_c-9", "a" * 64, "cash@0", "other@5", "cash"])
def test_accounts_that_a_payment_may_name(account: str) -> None:
    payment = decode_payment(with_fields(PAYMENT, debtor=account), PARTITIONS)
    assert payment.debtor == account


@pytest.mark.parametrize("base", [PAYMENT, VERSION_1])
def test_two_equal_accounts(base: dict[str, Any]) -> None:
    names = ("account_from", "account_to") if base is VERSION_1 else ("debtor", "creditor")
    refused = refusal(with_fields(base, **dict.fromkeys(names, "2378")))
    assert refused.reason is Reason.SAME_ACCOUNT
    assert refused.detail.startswith(" and ".join(names))


@pytest.mark.parametrize("payment_id", [7, None, "", "a" * 129, "a\n", "\x00", "a\u2028b"])
@pytest.mark.parametrize(("base", "name"), [(PAYMENT, "payment_id"), (REVERSAL, "reverses")])
def test_payment_ids(base: dict[str, Any], name: str, payment_id: object) -> None:
    assert refusal(with_fields(base, **{name: payment_id})).reason is Reason.FIELD_INVALID


@pytest.mark.parametrize(
    ("base", "changes", "reason"),
    [
        (PAYMENT, {"currency": "XXX"}, Reason.CURRENCY_UNKNOWN),
        (PAYMENT, {"currency": "czk"}, Reason.CURRENCY_UNKNOWN),
        (PAYMENT, {"currency": 203}, Reason.FIELD_INVALID),
        (PAYMENT, {"currency": None}, Reason.FIELD_INVALID),
        (PAYMENT, {"credit_currency": "BTC"}, Reason.CURRENCY_UNKNOWN),
        (PAYMENT, {"credit_currency": 1}, Reason.FIELD_INVALID),
        (PAYMENT, {"debtor": 2378}, Reason.FIELD_INVALID),
        (PAYMENT, {"value_date": "1993-02-29"}, Reason.FIELD_INVALID),
        (PAYMENT, {"value_date": "19930101"}, Reason.FIELD_INVALID),
        (PAYMENT, {"value_date": "1993-W01-1"}, Reason.FIELD_INVALID),
        (PAYMENT, {"value_date": "1993-01-01T00:00"}, Reason.FIELD_INVALID),
        (PAYMENT, {"value_date": "١٩٩٣-01-01"}, Reason.FIELD_INVALID),
        (PAYMENT, {"value_date": 1993}, Reason.FIELD_INVALID),
        (PAYMENT, {"reference": "a" * 513}, Reason.FIELD_INVALID),
        (PAYMENT, {"reference": None}, Reason.FIELD_INVALID),
        (REVERSAL, {"debtor": "suspense@1"}, Reason.ACCOUNT_INVALID),
        (OPENING, {"debtor": "cash@1"}, Reason.ACCOUNT_INVALID),
        (OPENING, {"debtor": 2378}, Reason.FIELD_INVALID),
        (OPENING, {"payment_id": ""}, Reason.FIELD_INVALID),
        (OPENING, {"overdraft_minor": -1}, Reason.FIELD_INVALID),
        (OPENING, {"overdraft_minor": 2**53}, Reason.FIELD_INVALID),
        (OPENING, {"overdraft_minor": 1.5}, Reason.FIELD_INVALID),
        (OPENING, {"overdraft_minor": True}, Reason.FIELD_INVALID),
        (OPENING, {"expected_version": -1}, Reason.FIELD_INVALID),
        (OPENING, {"expected_version": "1"}, Reason.FIELD_INVALID),
        (OPENING, {"expected_version": False}, Reason.FIELD_INVALID),
        (OPENING, {"owner": ""}, Reason.FIELD_INVALID),
        (OPENING, {"owner": "a b"}, Reason.FIELD_INVALID),
        (OPENING, {"owner": 7}, Reason.FIELD_INVALID),
        (OPENING, {"owner": "alpha:house"}, Reason.FIELD_INVALID),
        (REVERSAL, {"value_date": "1993-13-01"}, Reason.FIELD_INVALID),
        (VERSION_1, {"occurred_at": "1993-01-01"}, Reason.FIELD_INVALID),
        (VERSION_1, {"occurred_at": "1993-01-01T25:00:00"}, Reason.FIELD_INVALID),
        (VERSION_1, {"occurred_at": "yesterday"}, Reason.FIELD_INVALID),
        (VERSION_1, {"occurred_at": 0}, Reason.FIELD_INVALID),
        (VERSION_1, {"memo": "a" * 513}, Reason.FIELD_INVALID),
        (VERSION_1, {"account_to": "suspense@1"}, Reason.ACCOUNT_INVALID),
    ],
)
def test_other_fields(base: dict[str, Any], changes: dict[str, object], reason: Reason) -> None:
    refused = refusal(with_fields(base, **changes))
    assert refused.reason is reason
    assert refused.detail.startswith(f"{next(iter(changes))} is ")


def test_a_detail_is_short_ascii_for_any_input() -> None:
    detail = refusal(with_fields(PAYMENT, currency="Ž" * 10_000)).detail
    assert detail.isascii()
    assert len(detail) < 250


@pytest.mark.parametrize(
    ("value", "account"),
    [
        (with_fields(PAYMENT), "2378"),
        (with_fields(PAYMENT, debtor="cash@4"), "cash@4"),
        (with_fields(VERSION_1), "2378"),
        (with_fields(PAYMENT, amount_minor=-1), "2378"),
        (with_fields(PAYMENT, debtor=None, account_from="2379"), "2379"),
    ],
)
def test_a_key_is_the_debtor_even_of_a_bad_record(value: bytes, account: str) -> None:
    assert key_of(value, PARTITIONS) == (account.encode(), partition_for(account))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"hello",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"debtor":' + b"[" * 100_000,
        without(PAYMENT, "debtor"),
        with_fields(PAYMENT, debtor=2378),
        with_fields(PAYMENT, debtor="suspense@1"),
        with_fields(PAYMENT, debtor="cash@9"),
    ],
)
def test_without_a_debtor_the_bytes_give_the_partition(value: bytes) -> None:
    assert key_of(value, PARTITIONS) == (None, partition_for_bytes(value))
