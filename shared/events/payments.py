"""Payments and reversals as they come in: the current schema (version 2). Pure.

Older versions are brought up to it in `upcast`; what is wrong with a record is said by `validation`. The
bounds stand here as types, so that one strict decode checks them and the published schema shows them.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.events.codec import decoder

SCHEMA_VERSION = 2

MAX_AMOUNT_MINOR = 2**53 - 1
"""The largest amount: the integers up to here are exact in every JSON reader (RFC 8259, section 6)."""
MAX_PAYMENT_ID_CHARS = 128
MAX_REFERENCE_CHARS = 512

AmountMinor = Annotated[int, Meta(ge=1, le=MAX_AMOUNT_MINOR)]
PaymentId = Annotated[str, Meta(min_length=1, max_length=MAX_PAYMENT_ID_CHARS)]
Reference = Annotated[str, Meta(max_length=MAX_REFERENCE_CHARS)]


class Payment(
    msgspec.Struct,
    frozen=True,
    tag="payment",
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """An instruction to move money from debtor to creditor.

    Attributes:
        payment_id: unique per debtor; (debtor, payment_id) is the payment's identity.
        debtor, creditor: accounts; a house account is `<name>@<partition>`.
        amount_minor: in minor units of `currency`, positive, at most MAX_AMOUNT_MINOR.
        currency: ISO 4217, what the debtor is charged in.
        credit_currency: ISO 4217, what the creditor receives; None for `currency`.
        value_date: business date, YYYY-MM-DD; None lets transform take the day of receipt (UTC).
        reference: free text for both sides, at most 512 characters.
    """

    payment_id: PaymentId
    debtor: str
    creditor: str
    amount_minor: AmountMinor
    currency: str
    schema_version: int = msgspec.field(default=0)  # never equal to the default: always written
    credit_currency: str | None = None
    value_date: str | None = None
    reference: Reference = ""


class Reversal(
    msgspec.Struct,
    frozen=True,
    tag="reversal",
    tag_field="type",
    omit_defaults=True,
    forbid_unknown_fields=True,
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


Instruction = Payment | Reversal

encode_instruction = msgspec.json.Encoder().encode
decode_instruction: Callable[[bytes], Instruction] = decoder(Instruction)
"""Decodes what ingest wrote to payments.accepted."""


class Repeat(msgspec.Struct, frozen=True):
    """A record of payments.deduplicated: the same payment, once more.

    Attributes:
        payment_id, debtor: the identity.
        first: coordinates of the first one's raw record, `payments.raw:3:1207`. Its own are in `origin`.
    """

    payment_id: str
    debtor: str
    first: str


encode_repeat = msgspec.json.Encoder().encode
