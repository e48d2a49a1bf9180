"""The one validator of instructions, used by the gateway and by ingest, so that both decide alike. Pure.

A payment of the current version takes one strict decode and a few checks. Any other record takes the slow path, which
finds the reason, or converts an older version to the current one.
"""

from collections.abc import Container
from typing import Any

import msgspec

from shared.events.dead_letters import Reason
from shared.events.fields import is_account, is_date, shapes, shown
from shared.events.partitions import partition_for, partition_for_bytes
from shared.events.payments import SCHEMA_VERSION, VERSIONS, Fields, Instruction, Payment, upcast
from shared.events.reference import MINOR_DIGITS


class InvalidPaymentError(ValueError):
    """A record is not a valid payment: a reason for machines, and a detail that says what to send instead.

    The detail is ASCII and quotes no payload beyond a short value.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class _Debtor(msgspec.Struct):
    """The debtor, readable in any schema version; other fields are skipped."""

    debtor: Any = None
    account_from: Any = None


_decode_current = msgspec.json.Decoder(Payment).decode
_decode_debtor = msgspec.json.Decoder(_Debtor).decode
_decode_any = msgspec.json.Decoder().decode


def decode_payment(value: bytes | None, partitions: int) -> Instruction:
    """Decode and check one record of payments.raw; None is a record without a value.

    Raises InvalidPaymentError where it is not a valid payment. No bytes raise any other error.
    """
    if value is None:
        raise InvalidPaymentError(Reason.NOT_JSON, "the record has no value: send a payment as a JSON object")
    try:
        payment = _decode_current(value)
    except (ValueError, RecursionError):  # of msgspec, or not UTF-8: the slow path finds the reason
        return _decode_exactly(value, partitions)
    if (
        payment.schema_version == SCHEMA_VERSION
        and payment.debtor != payment.creditor
        and is_account(payment.debtor, partitions)
        and is_account(payment.creditor, partitions)
        and payment.currency in MINOR_DIGITS
        and (payment.value_date is None or is_date(payment.value_date))
        and (payment.credit_currency is None or payment.credit_currency in MINOR_DIGITS)
        and payment.payment_id.isprintable()
    ):
        return payment
    return _decode_exactly(value, partitions)


def _decode_exactly(value: bytes, partitions: int) -> Instruction:
    fields = _object(value)
    version = _version(fields)
    known = shapes(partitions)
    kind = _type(fields, version, known)
    fault = known[version, kind].fault(fields)
    if fault is not None:
        raise InvalidPaymentError(*fault)
    instruction: Instruction = msgspec.convert({**upcast(fields, version), "type": kind}, Instruction)
    return instruction


def _object(value: bytes) -> Fields:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise InvalidPaymentError(
            Reason.NOT_UTF8, f"byte {error.start} is not UTF-8: send JSON encoded in UTF-8"
        ) from error
    try:
        fields = _decode_any(value)
    except msgspec.ValidationError as error:  # well formed, but a number does not fit into 64 bits
        raise InvalidPaymentError(Reason.FIELD_INVALID, f"a number is out of range: {error}") from error
    except msgspec.DecodeError as error:
        raise InvalidPaymentError(Reason.NOT_JSON, f"{error}: send one JSON object") from error
    except RecursionError as error:
        raise InvalidPaymentError(Reason.NOT_JSON, "nested too deeply: send one flat JSON object") from error
    if not isinstance(fields, dict):
        raise InvalidPaymentError(Reason.NOT_AN_OBJECT, f"the value is {shown(fields)}: send one JSON object")
    return fields


def _version(fields: Fields) -> int:
    versions = " or ".join(map(str, VERSIONS))
    if "schema_version" not in fields:
        missing = f"schema_version is missing: send {versions} (now {SCHEMA_VERSION})"
        raise InvalidPaymentError(Reason.SCHEMA_VERSION_MISSING, missing)
    version = fields["schema_version"]
    if isinstance(version, bool) or not isinstance(version, int) or version not in VERSIONS:
        raise InvalidPaymentError(
            Reason.SCHEMA_VERSION_UNKNOWN, f"schema_version is {shown(version)}: send the integer {versions}"
        )
    return version


def _type(fields: Fields, version: int, known: Container[tuple[int, str]]) -> str:
    """Read the type field, payment by default. Version 1 had none: its shape refuses the field."""
    kind = fields.get("type", "payment")
    if version < SCHEMA_VERSION:
        return "payment"
    if not isinstance(kind, str) or (version, kind) not in known:
        raise InvalidPaymentError(
            Reason.TYPE_UNKNOWN, f"type is {shown(kind)}: send payment, reversal or account_opening"
        )
    return kind


def key_of(value: bytes, partitions: int) -> tuple[bytes | None, int]:
    """Return record key and partition of a record for payments.raw, valid or not.

    The debtor account and its partition, if any schema version's debtor field holds an account. Otherwise no key, and a
    partition by the crc32 of the bytes.
    """
    try:
        found = _decode_debtor(value)
    except (ValueError, RecursionError):
        return None, partition_for_bytes(value, partitions)
    for account in (found.debtor, found.account_from):
        if isinstance(account, str) and is_account(account, partitions):
            return account.encode(), partition_for(account, partitions)
    return None, partition_for_bytes(value, partitions)
