"""Payments, reversals and openings of accounts, as they come in and as they are accepted. Pure.

The schema version is 2; older versions are upcast.

`validation` reports what is wrong with a record. The bounds are part of the types here, so that one strict decode
checks them and the published schema shows them. The upcast has one function for each version step, from dict to dict.
A step is never edited once records of its version exist; a new version adds one. The fields were checked before
(`fields`), so a step only renames and reshapes, and cannot fail.

A decoder of internal records accepts fields of the same schema version that it does not know, so that services of two
versions can run together; docs/deployment.md has the order of an upgrade.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.events.clients import SubmittedBy
from shared.events.codec import NO_EXTRA, Extra, decoder, split

SCHEMA_VERSION = 2

MAX_AMOUNT_MINOR = 2**53 - 1
"""The largest amount: every JSON reader represents integers up to here exactly (RFC 8259, section 6)."""
MAX_PAYMENT_ID_CHARS = 128
MAX_REFERENCE_CHARS = 512

AmountMinor = Annotated[int, Meta(ge=1, le=MAX_AMOUNT_MINOR)]
PaymentId = Annotated[str, Meta(min_length=1, max_length=MAX_PAYMENT_ID_CHARS)]
Reference = Annotated[str, Meta(max_length=MAX_REFERENCE_CHARS)]

DAY_MS = 86_400_000
_TIME_END_MS = 253_402_300_800_000
TimeMs = Annotated[int, Meta(ge=0, lt=_TIME_END_MS)]
"""Milliseconds since 1970, before the year 10000."""


class Payment(
    msgspec.Struct, frozen=True, tag="payment", tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """An instruction to move money from debtor to creditor.

    Attributes:
        payment_id: unique per debtor; (debtor, payment_id) is the payment's identity.
        debtor, creditor: accounts; a house account is `<name>@<partition>`.
        amount_minor: in minor units of `currency`, positive, at most MAX_AMOUNT_MINOR.
        currency: ISO 4217, what the debtor is charged in.
        credit_currency: ISO 4217, what the creditor receives; None for `currency`.
        value_date: business date, YYYY-MM-DD; None means the day of receipt (UTC), which transform fills in:
            that of the raw record's timestamp.
        reference: free text for both sides, at most 512 characters.
    """

    payment_id: PaymentId
    debtor: str
    creditor: str
    amount_minor: AmountMinor
    currency: str
    schema_version: int = msgspec.field(default=0)  # a valid one never equals the default: always written
    credit_currency: str | None = None
    value_date: str | None = None
    reference: Reference = ""


class Reversal(
    msgspec.Struct, frozen=True, tag="reversal", tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """An instruction to reverse an earlier payment of the same debtor, in full, once.

    Attributes:
        payment_id: of the reversal itself, unique per debtor among payments and reversals.
        debtor: of the payment to be reversed.
        reverses: payment_id of the payment to be reversed.
        value_date, reference: as in Payment.
    """

    payment_id: PaymentId
    debtor: str
    reverses: PaymentId
    schema_version: int = msgspec.field(default=0)
    value_date: str | None = None
    reference: Reference = ""


class AccountOpening(
    msgspec.Struct,
    frozen=True,
    tag="account_opening",
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """An instruction to open an account for the client that sends it, or to give its account new terms.

    Attributes:
        payment_id: of this command, unique per account among payments, reversals and openings; the identity of all
            three is (debtor, payment_id).
        debtor: the account, never a house account.
        overdraft_minor: how far below zero each currency may go, in minor units; None is unlimited. Anything but 0
            needs the scope `house`.
        expected_version: of the account; the ledger declines the command if it has another one. None is any.
        owner: a client; None for the one that sends it. Another one needs the scope `house`.
    """

    payment_id: PaymentId
    debtor: str
    overdraft_minor: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MINOR)] | None = 0
    expected_version: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MINOR)] | None = None
    owner: str | None = None
    schema_version: int = msgspec.field(default=0)


Instruction = Payment | Reversal | AccountOpening

encode_instruction = msgspec.json.Encoder().encode


class Repeat(msgspec.Struct, frozen=True):
    """A record of payments.deduplicated: the identity of a payment that was received again."""

    payment_id: str
    debtor: str
    first: str  # coordinates of the first payment's raw record; the repeat's are in `origin`


encode_repeat = msgspec.json.Encoder().encode


class AcceptedPayment(Payment, frozen=True, tag="payment", omit_defaults=True):
    """A record of payments.accepted: a payment, and when it was received.

    Attributes:
        received_at_ms: timestamp of the payment's raw record; None if it is unknown, as in records of former versions.
        submitted_by: who sent it, from the raw record's header; None if the header is missing or malformed.
    """

    received_at_ms: TimeMs | None = None
    submitted_by: SubmittedBy | None = None


class AcceptedReversal(Reversal, frozen=True, tag="reversal", omit_defaults=True):
    """A record of payments.accepted: a reversal, and when it was received, as in AcceptedPayment."""

    received_at_ms: TimeMs | None = None
    submitted_by: SubmittedBy | None = None


class AcceptedOpening(AccountOpening, frozen=True, tag="account_opening", omit_defaults=True):
    """A record of payments.accepted: an account's opening, as in AcceptedPayment."""

    received_at_ms: TimeMs | None = None
    submitted_by: SubmittedBy | None = None


Accepted = AcceptedPayment | AcceptedReversal | AcceptedOpening

_decode_known: Callable[[bytes], Accepted] = decoder(Accepted)
_KNOWN = {
    "type",
    *AcceptedPayment.__struct_fields__,
    *AcceptedReversal.__struct_fields__,
    *AcceptedOpening.__struct_fields__,
}


def encode_accepted(instruction: Instruction, received_at_ms: int, submitted_by: SubmittedBy | None) -> bytes:
    """Encode a record of payments.accepted.

    Args:
        received_at_ms: timestamp of the raw record, which its producer sets; left out unless it is a TimeMs.
        submitted_by: left out if None.
    """
    value = encode_instruction(instruction)
    end = b"}" if submitted_by is None else _end(submitted_by)
    if 0 <= received_at_ms < _TIME_END_MS:
        return b'%b,"received_at_ms":%d%b' % (value[:-1], received_at_ms, end)
    return value[:-1] + end


@lru_cache(maxsize=4096)
def _end(submitted_by: SubmittedBy) -> bytes:
    return b',"submitted_by":%b}' % msgspec.json.encode(submitted_by)


def decode_accepted(value: bytes) -> tuple[Accepted, Extra]:
    """Decode a record of payments.accepted, and the fields that a later version of ingest added.

    Raises msgspec.DecodeError.
    """
    try:
        return _decode_known(value), NO_EXTRA
    except msgspec.ValidationError:
        known, extra = split(value, _KNOWN)
        return _decode_known(known), extra


def received_on(accepted: Accepted, written_at_ms: int) -> str:
    """The day of receipt, UTC, YYYY-MM-DD.

    Args:
        written_at_ms: timestamp of the accepted record, for records without the time of their receipt.
    """
    received_at_ms = accepted.received_at_ms
    return _utc_date((written_at_ms if received_at_ms is None else received_at_ms) // DAY_MS)


@lru_cache(maxsize=16)
def _utc_date(day: int) -> str:
    """The date of a day counted from 1970-01-01 UTC."""
    return datetime.fromtimestamp(day * 86_400, UTC).date().isoformat()


Fields = Mapping[str, object]


def _from_1_to_2(old: Fields) -> Fields:
    """Rename accounts and memo to debtor, creditor and reference; keep only the date of the time."""
    occurred_at = old.get("occurred_at")
    return {
        "schema_version": 2,
        "payment_id": old["payment_id"],
        "debtor": old["account_from"],
        "creditor": old["account_to"],
        "amount_minor": old["amount_minor"],
        "currency": old["currency"],
        "value_date": occurred_at[:10] if isinstance(occurred_at, str) else None,
        "reference": old.get("memo", ""),
    }


_STEPS: dict[int, Callable[[Fields], Fields]] = {1: _from_1_to_2}

VERSIONS = (*_STEPS, SCHEMA_VERSION)
"""Every schema version that is read, oldest first."""


def upcast(fields: Fields, version: int) -> Fields:
    """Convert the checked fields of a payment of any version in VERSIONS to the current version."""
    for step in range(version, SCHEMA_VERSION):
        fields = _STEPS[step](fields)
    return fields
