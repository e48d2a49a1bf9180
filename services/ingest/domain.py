"""Which payments are new: the decision on an identity. Pure; knows no topics, offsets of its own, or stores.

A payment's identity is (debtor, payment_id). Same identity and same content: a repeat. Other content: a
conflict.
"""

from enum import Enum

from shared.events.identity import DIGEST_BYTES

_OFFSET_BYTES = 8


class Novelty(Enum):
    """What a valid payment is, seen beside the first one of its identity."""

    NEW = "new"
    REPEAT = "repeat"
    CONFLICT = "conflict"


def remember(content: bytes, offset: int) -> bytes:
    """What is kept of an accepted payment: its content digest (16 bytes) and raw offset (8, big endian)."""
    return content + offset.to_bytes(_OFFSET_BYTES, "big")


def novelty(content: bytes, remembered: bytes | None) -> Novelty:
    """Decide on a payment.

    Args:
        content: its content digest.
        remembered: what was kept of the first one of its identity; None if there is none in the window.
    """
    if remembered is None:
        return Novelty.NEW
    return Novelty.REPEAT if remembered[:DIGEST_BYTES] == content else Novelty.CONFLICT


def first_offset(remembered: bytes) -> int:
    """The raw offset of the first one, from what was kept of it."""
    return int.from_bytes(remembered[DIGEST_BYTES:], "big")
