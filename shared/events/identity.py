"""Digests of an instruction: one of its identity, one of its content. Pure.

Both are BLAKE2b-128 (RFC 7693) over an encoding in which no two different inputs look alike. They are stored
in changelogs, so their bytes never change; golden tests ensure that.
"""

from hashlib import blake2b

import msgspec

from shared.events.payments import Instruction, Payment, Reversal

DIGEST_BYTES = 16

_encode = msgspec.json.Encoder().encode


def identity_digest(debtor: str, payment_id: str) -> bytes:
    """Return 16 bytes for the identity (debtor, payment_id), each prefixed by its length in bytes."""
    account, name = debtor.encode(), payment_id.encode()
    framed = b"%d:%b%d:%b" % (len(account), account, len(name), name)
    return blake2b(framed, digest_size=DIGEST_BYTES).digest()


def content_digest(instruction: Instruction) -> bytes:
    """Return 16 bytes for the business content, including the type, without identity and schema version.

    The same payment in another notation, or in an older schema version, has the same content.
    """
    if isinstance(instruction, Payment):
        fields: tuple[str | int | None, ...] = (
            "payment",
            instruction.creditor,
            instruction.amount_minor,
            instruction.currency,
            instruction.credit_currency or instruction.currency,
            instruction.value_date,
            instruction.reference,
        )
    elif isinstance(instruction, Reversal):
        fields = ("reversal", instruction.reverses, instruction.value_date, instruction.reference)
    else:
        terms = instruction.overdraft_minor, instruction.expected_version, instruction.owner
        fields = ("account_opening", *terms)
    return blake2b(_encode(fields), digest_size=DIGEST_BYTES).digest()
