"""The records of payments.accepted: payments and reversals of the current schema, and when they were received. Pure.

Like every decoder of internal records, this one accepts fields of the same schema version that it does not know; see
docs/deployment.md for the order of an upgrade.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.events.codec import Extra, decoder, split
from shared.events.payments import Instruction, Payment, Reversal, encode_instruction

DAY_MS = 86_400_000
_TIME_END_MS = 253_402_300_800_000
TimeMs = Annotated[int, Meta(ge=0, lt=_TIME_END_MS)]
"""Milliseconds since 1970, before the year 10000."""


class AcceptedPayment(Payment, frozen=True, tag="payment", omit_defaults=True):
    """A record of payments.accepted: a payment, and when it was received.

    Attributes:
        received_at_ms: timestamp of the payment's raw record; None if it is unknown, as in records of former versions.
    """

    received_at_ms: TimeMs | None = None


class AcceptedReversal(Reversal, frozen=True, tag="reversal", omit_defaults=True):
    """A record of payments.accepted: a reversal, and when it was received, as in AcceptedPayment."""

    received_at_ms: TimeMs | None = None


Accepted = AcceptedPayment | AcceptedReversal

_decode_known: Callable[[bytes], Accepted] = decoder(Accepted)
_KNOWN = {"type", *AcceptedPayment.__struct_fields__, *AcceptedReversal.__struct_fields__}


def encode_accepted(instruction: Instruction, received_at_ms: int) -> bytes:
    """Encode a record of payments.accepted.

    Args:
        received_at_ms: timestamp of the raw record, which its producer sets; left out unless it is a TimeMs.
    """
    value = encode_instruction(instruction)
    if not 0 <= received_at_ms < _TIME_END_MS:
        return value
    return b'%b,"received_at_ms":%d}' % (value[:-1], received_at_ms)


def decode_accepted(value: bytes) -> tuple[Accepted, Extra]:
    """Decode a record of payments.accepted, and the fields that a later version of ingest added.

    Raises msgspec.DecodeError.
    """
    try:
        return _decode_known(value), {}
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
