"""Payments for tests: seeded, between a few client accounts and house accounts, in the current schema."""

import random
from collections.abc import Callable, Iterator

import msgspec

from shared.events.codec import decoder
from shared.events.payments import SCHEMA_VERSION, Instruction, Payment, encode_instruction
from tests.partitions import PARTITIONS

decode_instruction: Callable[[bytes], Instruction] = decoder(Instruction)
"""Decodes what was written to payments.raw in the current version."""


def payments(
    prefix: str, count: int, seed: int = 1, accounts: int = 200, partitions: int = PARTITIONS
) -> Iterator[bytes]:
    """Valid payments whose debtors are house accounts, so that none is declined.

    Args:
        prefix: of each payment_id; another one makes other identities.
        count: how many.
        partitions: of the topics; each has a house account.
    """
    chance = random.Random(seed)
    for number in range(count):
        payment = Payment(
            payment_id=f"{prefix}-{number}",
            debtor=f"cash@{chance.randrange(partitions)}",
            creditor=f"client-{chance.randrange(accounts)}",
            amount_minor=chance.randrange(1, 100_000),
            currency="CZK",
            schema_version=SCHEMA_VERSION,
            value_date="2026-01-05",
        )
        yield encode_instruction(payment)


def with_fields(value: bytes, **changes: object) -> bytes:
    """The same payment with other fields."""
    return msgspec.json.encode(msgspec.json.decode(value) | changes)
