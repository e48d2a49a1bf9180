"""Full windows of ingest, written to their changelog."""

import random
from typing import Final

from services.ingest.domain import remember
from services.ingest.service import IDENTITY_PREFIX
from shared.events import catalogue
from shared.events.identity import content_digest, identity_digest
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.kafka.client.idempotent import IdempotentWriter
from tests.partitions import PARTITIONS

ENTRY_BYTES: Final = 40  # two digests and an offset
KNOWN_EVERY: Final = 10_000


def known(partition: int, number: int) -> Payment:
    """Return a payment whose identity is in the window."""
    return Payment(f"known-{number}", f"cash@{partition}", "2378", 100 + number, "CZK", SCHEMA_VERSION)


async def fill(servers: str, window: int) -> list[bytes]:
    """Write a full window of each partition to the changelog and return the payments of some entries."""
    chance = random.Random(1)
    repeats = []
    async with IdempotentWriter(servers) as writer:
        for partition in range(PARTITIONS):
            for number in range(window):
                entry = chance.randbytes(ENTRY_BYTES)
                if number % KNOWN_EVERY == 0:
                    payment = known(partition, number)
                    identity = identity_digest(payment.debtor, payment.payment_id)
                    # Not at the offset of the repeat: a record is not a repeat of itself
                    entry = identity + remember(content_digest(payment), window + number)
                    repeats.append(encode_instruction(payment))
                assert len(entry) == ENTRY_BYTES
                key = b"%b%d" % (IDENTITY_PREFIX, number)
                await writer.write(catalogue.PAYMENTS_IDENTITIES, partition, key, entry)
    return repeats
