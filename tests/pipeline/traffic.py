"""Load for a cluster: payments at a steady rate, and reference data that changes meanwhile."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from shared.events import catalogue
from shared.events.clients import BY_OPERATOR
from shared.events.effects import EVERY_ACCOUNT, Subscription, Subscriptions, encode_subscriptions
from shared.events.reference import Fee, Rate, encode_reference
from shared.events.transfers import AccountOpened, encode_transfer
from shared.kafka.client.idempotent import IdempotentWriter
from tests.bulk import payments
from tests.harness import eventually
from tests.partitions import partition_for, partition_for_bytes

CLIENTS = 40
CHANGES_PER_S = 1.0
"""Each changes one fee, rate or list of subscriptions."""


async def prepare(brokers: str) -> None:
    """Open most of the accounts, and subscribe all accounts to effects."""
    subscriptions = Subscriptions(
        (Subscription("receipt", "file:receipts"), Subscription("event", "https://example.org/hook"))
    )
    async with IdempotentWriter(brokers) as writer:
        await writer.send(
            catalogue.REFERENCE_SUBSCRIPTIONS, 0, EVERY_ACCOUNT.encode(), encode_subscriptions(subscriptions)
        )
        for number in range(CLIENTS - 4):
            account = f"client-{number}"
            value = encode_transfer(AccountOpened(account, None))
            await writer.send(catalogue.LEDGER_TRANSFERS, partition_for(account), account.encode(), value)


class Traffic:
    """Payments of all kinds at a steady rate: one by one, or all of a second at once, in few transactions."""

    def __init__(self, records_per_s: int) -> None:
        self._records_per_s = records_per_s
        self._at_once = 1
        self._sent = 0

    def in_bursts(self) -> None:
        self._at_once = self._records_per_s

    async def one_by_one(self) -> None:
        """Leave bursts, and wait until half a second of records was sent since: then some are in flight at any time."""
        self._at_once = 1
        wanted = self._sent + self._records_per_s // 2

        async def sent() -> bool:
            return self._sent >= wanted

        await eventually(sent, f"{wanted} records sent")

    async def send(self, brokers: str, seed: int) -> None:
        """Send until cancelled."""
        begun = time.monotonic()
        async with IdempotentWriter(brokers) as writer:
            for debtor, value in payments(10**6, CLIENTS, random.Random(seed), prefix=f"night-{seed}"):
                partition = partition_for_bytes(value) if debtor is None else partition_for(debtor)
                key = None if debtor is None else debtor.encode()
                await writer.write(catalogue.PAYMENTS_RAW, partition, key, value, BY_OPERATOR)
                self._sent += 1
                if self._sent % self._at_once == 0:
                    await asyncio.sleep(max(begun + self._sent / self._records_per_s - time.monotonic(), 0))


@asynccontextmanager
async def traffic(brokers: str, seed: int, records_per_s: int) -> AsyncIterator[Traffic]:
    """Payments, one by one at first, until the context is left."""
    sent = Traffic(records_per_s)
    async with _meanwhile(sent.send(brokers, seed)):
        yield sent


@asynccontextmanager
async def reference_changes(brokers: str, seed: int) -> AsyncIterator[None]:
    """Fees, rates and subscriptions that change, or are deleted, until the context is left."""
    async with _meanwhile(_change(brokers, random.Random(seed))):
        yield


@asynccontextmanager
async def _meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _change(brokers: str, chance: random.Random) -> None:
    async with IdempotentWriter(brokers) as writer:
        while True:
            topic, key, value = _changed(chance)
            await writer.send(topic, 0, key.encode(), None if chance.random() < 0.2 else value)
            await asyncio.sleep(1 / CHANGES_PER_S)


def _changed(chance: random.Random) -> tuple[str, str, bytes]:
    """Another version of one key: topic, key and value."""
    match chance.randrange(3):
        case 0:
            fee = Fee(chance.randrange(50), chance.randrange(30), max_minor=chance.choice([60, 500, 10**6]))
            return catalogue.REFERENCE_FEES, chance.choice(["CZK", "EUR"]), encode_reference(fee)
        case 1:
            rate = Rate(f"0.0{chance.randrange(300, 500)}")
            return catalogue.REFERENCE_RATES, "CZK/EUR", encode_reference(rate)
        case _:
            kinds = chance.sample(["receipt", "notice", "decline_notice", "event"], chance.randrange(4))
            asked = Subscriptions(tuple(Subscription(kind, f"file:{kind}-{chance.randrange(3)}") for kind in kinds))
            account = EVERY_ACCOUNT if chance.random() < 0.3 else f"client-{chance.randrange(CLIENTS)}"
            return catalogue.REFERENCE_SUBSCRIPTIONS, account, encode_subscriptions(asked)
