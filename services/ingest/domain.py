"""Decide which payments are new, by their identity: (debtor, payment_id). Pure.

Same identity and same content: a repeat. Other content: a conflict.
"""

from enum import Enum

from shared.events.identity import DIGEST_BYTES

_OFFSET_BYTES = 8


class Novelty(Enum):
    """How a valid payment compares with the first one of its identity."""

    NEW = "new"
    REPEAT = "repeat"
    CONFLICT = "conflict"


def remember(content: bytes, offset: int) -> bytes:
    """Encode the entry of an accepted payment: its content digest (16 bytes) and raw offset (8, big endian)."""
    return content + offset.to_bytes(_OFFSET_BYTES, "big")


def novelty(content: bytes, remembered: bytes | None) -> Novelty:
    """Classify a payment by its content digest and the entry of the first payment with its identity."""
    if remembered is None:
        return Novelty.NEW
    return Novelty.REPEAT if remembered[:DIGEST_BYTES] == content else Novelty.CONFLICT


def first_offset(remembered: bytes) -> int:
    return int.from_bytes(remembered[DIGEST_BYTES:], "big")
