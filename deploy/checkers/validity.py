"""The rules for an instruction, written down a second time: what is wrong with a raw record. Pure.

Invariant: nothing here comes from the services' own validation. A record may break several rules, and a refusal may
name any of them.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from shared.events.codec import decoder
from shared.events.dead_letters import Reason
from shared.events.payments import (
    MAX_AMOUNT_MINOR,
    MAX_PAYMENT_ID_CHARS,
    MAX_REFERENCE_CHARS,
    SCHEMA_VERSION,
    AccountOpening,
    Instruction,
    Payment,
    Reversal,
)
from shared.events.reference import MINOR_DIGITS

_HOUSE: Final = frozenset({"cash", "clearing", "interest", "fees", "insurance", "loans", "other"})
_CLIENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TIMESTAMP_CHARS_MAX: Final = 40

_decode_payment = decoder(Payment)
_decode_any: Callable[[bytes], Any] = decoder(Any)


_Rule = Callable[[object, int], Reason | None]
"""Returns the rule that a field's value breaks; it takes the number of partitions as well."""


class Judged(NamedTuple):
    """A raw record: the instruction that it holds, in the current version, or the rules that it breaks."""

    instruction: Instruction | None
    faults: frozenset[Reason]


def judge(value: bytes | None, partitions: int) -> Judged:
    """Judge a record of payments.raw; None is one without a value."""
    if value is None:
        return _broken(Reason.NOT_JSON)
    try:
        payment = _decode_payment(value)
    except msgspec.DecodeError:
        return _judge_fields(value, partitions)
    if (
        payment.schema_version == SCHEMA_VERSION
        and payment.debtor != payment.creditor
        and _is_account(payment.debtor, partitions)
        and _is_account(payment.creditor, partitions)
        and payment.currency in MINOR_DIGITS
        and payment.payment_id.isprintable()
        and (payment.value_date is None or _is_date(payment.value_date))
        and (payment.credit_currency is None or payment.credit_currency in MINOR_DIGITS)
    ):
        return Judged(payment, frozenset())
    return _judge_fields(value, partitions)


def _broken(*faults: Reason) -> Judged:
    return Judged(None, frozenset(faults))


def _judge_fields(value: bytes, partitions: int) -> Judged:
    fields = _fields(value)
    if isinstance(fields, Reason):
        return _broken(fields)
    if "schema_version" not in fields:
        return _broken(Reason.SCHEMA_VERSION_MISSING)
    version = fields["schema_version"]
    if type(version) is not int or version not in {1, SCHEMA_VERSION}:
        return _broken(Reason.SCHEMA_VERSION_UNKNOWN)
    kind = "payment" if version == 1 else fields.get("type", "payment")
    if not isinstance(kind, str) or (version, kind) not in _SHAPES:
        return _broken(Reason.TYPE_UNKNOWN)
    faults = frozenset(_faults(fields, _SHAPES[version, kind], partitions))
    return Judged(None if faults else _instruction(fields, version, kind), faults)


def _fields(value: bytes) -> dict[str, Any] | Reason:
    try:
        value.decode()
        fields = _decode_any(value)
    except UnicodeDecodeError:
        return Reason.NOT_UTF8
    except msgspec.ValidationError:  # a number beyond 64 bits
        return Reason.FIELD_INVALID
    except msgspec.DecodeError:
        return Reason.NOT_JSON
    return fields if isinstance(fields, dict) else Reason.NOT_AN_OBJECT


def _faults(fields: Mapping[str, object], shape: "_Shape", partitions: int) -> set[Reason]:
    faults = {Reason.FIELD_UNKNOWN} if fields.keys() - shape.rules.keys() else set()
    if shape.required - fields.keys():
        faults.add(Reason.FIELD_MISSING)
    for name, rule in shape.rules.items():
        fault = rule(fields[name], partitions) if name in fields else None
        if fault is not None:
            faults.add(fault)
    debtor, creditor = shape.parties
    if creditor and debtor in fields and fields[debtor] == fields.get(creditor):
        faults.add(Reason.SAME_ACCOUNT)
    return faults


_OTHERS: Final[Mapping[str, type[Reversal | AccountOpening]]] = {
    "reversal": Reversal,
    "account_opening": AccountOpening,
}


def _instruction(fields: Mapping[str, Any], version: int, kind: str) -> Instruction:
    named = {name: value for name, value in fields.items() if name != "type"}
    if kind in _OTHERS:
        return _OTHERS[kind](**named)
    if version == SCHEMA_VERSION:
        return Payment(**named)
    occurred_at = fields.get("occurred_at")
    return Payment(
        fields["payment_id"],
        fields["account_from"],
        fields["account_to"],
        fields["amount_minor"],
        fields["currency"],
        SCHEMA_VERSION,
        value_date=None if occurred_at is None else occurred_at[:10],
        reference=fields.get("memo", ""),
    )


@lru_cache(maxsize=65_536)
def _is_account(text: str, partitions: int) -> bool:
    name, at, number = text.partition("@")
    if not at:
        return _CLIENT.fullmatch(text) is not None
    return name in _HOUSE and number in _numbers(partitions)


@lru_cache(maxsize=8)
def _numbers(partitions: int) -> frozenset[str]:
    return frozenset(map(str, range(partitions)))


@lru_cache(maxsize=4096)
def _is_date(text: str) -> bool:
    if len(text) != len("1970-01-01"):
        return False
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _payment_id(value: object, _: int) -> Reason | None:
    good = isinstance(value, str) and 0 < len(value) <= MAX_PAYMENT_ID_CHARS and value.isprintable()
    return None if good else Reason.FIELD_INVALID


def _account(value: object, partitions: int) -> Reason | None:
    if not isinstance(value, str):
        return Reason.FIELD_INVALID
    return None if _is_account(value, partitions) else Reason.ACCOUNT_INVALID


def _own_account(value: object, partitions: int) -> Reason | None:
    """Refuse a house account, which exists without being opened."""
    fault = _account(value, partitions)
    return Reason.ACCOUNT_INVALID if fault is None and "@" in str(value) else fault


def _client(value: object, _: int) -> Reason | None:
    return None if isinstance(value, str) and _CLIENT.fullmatch(value) else Reason.FIELD_INVALID


def _count(value: object, _: int) -> Reason | None:
    return None if type(value) is int and 0 <= value <= MAX_AMOUNT_MINOR else Reason.FIELD_INVALID


def _amount(value: object, _: int) -> Reason | None:
    if type(value) is not int:
        return Reason.AMOUNT_NOT_INTEGER
    if value <= 0:
        return Reason.AMOUNT_NOT_POSITIVE
    return Reason.FIELD_INVALID if value > MAX_AMOUNT_MINOR else None


def _currency(value: object, _: int) -> Reason | None:
    if not isinstance(value, str):
        return Reason.FIELD_INVALID
    return None if value in MINOR_DIGITS else Reason.CURRENCY_UNKNOWN


def _date(value: object, _: int) -> Reason | None:
    return None if isinstance(value, str) and _is_date(value) else Reason.FIELD_INVALID


def _timestamp(value: object, _: int) -> Reason | None:
    if not isinstance(value, str) or not _is_date(value[:10]) or value[10:11] not in {"T", " "}:
        return Reason.FIELD_INVALID
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return Reason.FIELD_INVALID
    return None if len(value) <= _TIMESTAMP_CHARS_MAX else Reason.FIELD_INVALID


def _reference(value: object, _: int) -> Reason | None:
    return None if isinstance(value, str) and len(value) <= MAX_REFERENCE_CHARS else Reason.FIELD_INVALID


def _or_null(rule: _Rule) -> _Rule:
    return lambda value, partitions: None if value is None else rule(value, partitions)


def _read_before(_value: object, _: int) -> Reason | None:
    """Accept the version and the type, which chose the shape."""
    return None


class _Shape(NamedTuple):
    rules: Mapping[str, _Rule]  # for each field that it knows
    required: frozenset[str]
    parties: tuple[str, str]  # fields of the two accounts, which must differ; the second is empty where there is one


_SHAPES: Final[Mapping[tuple[int, str], _Shape]] = {
    (1, "payment"): _Shape(
        {
            "schema_version": _read_before,
            "payment_id": _payment_id,
            "account_from": _account,
            "account_to": _account,
            "amount_minor": _amount,
            "currency": _currency,
            "occurred_at": _or_null(_timestamp),
            "memo": _reference,
        },
        frozenset({"payment_id", "account_from", "account_to", "amount_minor", "currency"}),
        ("account_from", "account_to"),
    ),
    (2, "payment"): _Shape(
        {
            "schema_version": _read_before,
            "type": _read_before,
            "payment_id": _payment_id,
            "debtor": _account,
            "creditor": _account,
            "amount_minor": _amount,
            "currency": _currency,
            "credit_currency": _or_null(_currency),
            "value_date": _or_null(_date),
            "reference": _reference,
        },
        frozenset({"payment_id", "debtor", "creditor", "amount_minor", "currency"}),
        ("debtor", "creditor"),
    ),
    (2, "reversal"): _Shape(
        {
            "schema_version": _read_before,
            "type": _read_before,
            "payment_id": _payment_id,
            "debtor": _account,
            "reverses": _payment_id,
            "value_date": _or_null(_date),
            "reference": _reference,
        },
        frozenset({"payment_id", "debtor", "reverses"}),
        ("debtor", ""),
    ),
    (2, "account_opening"): _Shape(
        {
            "schema_version": _read_before,
            "type": _read_before,
            "payment_id": _payment_id,
            "debtor": _own_account,
            "overdraft_minor": _or_null(_count),
            "expected_version": _or_null(_count),
            "owner": _or_null(_client),
        },
        frozenset({"payment_id", "debtor"}),
        ("debtor", ""),
    ),
}
