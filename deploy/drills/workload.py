"""Payments for drills: Zipf-distributed accounts, bursts, repeats and bad records, all from a seed.

Most debtors are house accounts, whose payments are never declined. The others are clients: cover decides.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import accumulate, islice
from typing import Final

import msgspec

from deploy import PROJECT_ROOT
from deploy.drills.bad_records import BAD_RECORDS, CONFLICT
from deploy.drills.stage import Stage
from deploy.drills.waiting import until
from shared.events.catalogue import PAYMENTS_RAW, REFERENCE_SUBSCRIPTIONS
from shared.events.clients import BY_OPERATOR
from shared.events.effects import (
    EVERY_ACCOUNT,
    EffectKind,
    Subscription,
    Subscriptions,
    decode_subscriptions,
    encode_subscriptions,
)
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.events.validation import key_of
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import partition_count, read_table

SAMPLE: Final = PROJECT_ROOT / "deploy" / "sample" / "trans_1993.csv.gz"
ACCOUNTS: Final = 200
_SKEW: Final = 1.1
"""Exponent of the Zipf distribution: the first account gets a fifth of the payments."""
_BY_CLIENT, _REPEATED, _BAD = 0.2, 0.03, 0.01
_REMEMBERED: Final = 500
_SPOILED: Final = tuple(name for name in BAD_RECORDS if name != CONFLICT)  # which depends on what was accepted
_TICK_S: Final = 0.1
_BURST_SHARE, _BURST_FACTOR = 0.05, 5
_ACKNOWLEDGED_S: Final = 60.0  # longer than a drill keeps a broker away
_STARTED_S: Final = 120.0
RECEIPTS: Final = Subscriptions(
    tuple(Subscription(kind.value, "file:receipts") for kind in (EffectKind.RECEIPT, EffectKind.NOTICE))
)
"""One of every payment in the bank's file: each has one client side there, which is debited or credited."""


def payments(
    prefix: str, seed: int, partitions: int, *, repeated: float = _REPEATED, bad: float = _BAD
) -> Iterator[bytes]:
    """Generate payments without end: valid ones, byte-equal repeats, and records that ingest refuses.

    Args:
        prefix: of each payment_id; another one makes other payments.
        partitions: of payments.raw; each has a house account.
        repeated, bad: shares of repeats and of records to be refused.
    """
    chance = random.Random(seed)  # noqa: S311 # repeatable is what is wanted
    weights = list(accumulate(1 / rank**_SKEW for rank in range(1, ACCOUNTS + 1)))
    recent: deque[bytes] = deque(maxlen=_REMEMBERED)
    number = 0
    while True:
        drawn = chance.random()
        if drawn < repeated and recent:
            yield chance.choice(recent)
            continue
        number += 1
        creditor, client = (f"client-{one}" for one in chance.choices(range(ACCOUNTS), cum_weights=weights, k=2))
        by_client = chance.random() < _BY_CLIENT and client != creditor
        value = encode_instruction(
            Payment(
                payment_id=f"{prefix}-{number}",
                debtor=client if by_client else f"cash@{chance.randrange(partitions)}",
                creditor=creditor,
                amount_minor=chance.randrange(1, 100_000),
                currency="CZK",
                schema_version=SCHEMA_VERSION,
                value_date="2026-01-05",
            )
        )
        if drawn > 1 - bad:
            yield BAD_RECORDS[chance.choice(_SPOILED)](msgspec.json.decode(value))
            continue
        recent.append(value)
        yield value


async def send_raw(access: Bootstrap, values: Iterable[bytes]) -> int:
    """Write values to payments.raw as they are, each to its debtor's partition.

    Returns:
        How many; all in-sync replicas have them.
    """
    partitions = await partition_count(access, [PAYMENTS_RAW])
    count = 0
    async with IdempotentWriter(access, client_id="drill-load", request_timeout_s=_ACKNOWLEDGED_S) as writer:
        for value in values:
            key, partition = key_of(value, partitions)
            await writer.write(PAYMENTS_RAW, partition, key, value, BY_OPERATOR)
            count += 1
    return count


async def pay(stage: Stage, count: int) -> int:
    """Send payments of the drill's seed and count them in its journal."""
    partitions = await partition_count(stage.access, [PAYMENTS_RAW])
    prefix = f"{stage.name}-{stage.journal.records}"
    sent = await send_raw(stage.access, islice(payments(prefix, stage.random.getrandbits(32), partitions), count))
    stage.journal.records += sent
    return sent


class Load:
    """Payments at a rate, in bursts.

    Args:
        values: the payments, without end.
        chance: of bursts; None for none.

    Attributes:
        sent: so far; the brokers may not have all of them yet.
    """

    def __init__(self, access: Bootstrap, values: Iterator[bytes], per_s: int, chance: random.Random | None) -> None:
        self.sent = 0
        self.per_s = per_s
        self._access = access
        self._values = values
        self._chance = chance
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Send until `finish`."""
        partitions = await partition_count(self._access, [PAYMENTS_RAW])
        per_tick, chance = max(1, int(self.per_s * _TICK_S)), self._chance
        async with IdempotentWriter(self._access, client_id="drill-load", request_timeout_s=_ACKNOWLEDGED_S) as writer:
            while not self._over.is_set():
                burst = _BURST_FACTOR if chance is not None and chance.random() < _BURST_SHARE else 1
                for value in islice(self._values, per_tick * burst):
                    key, partition = key_of(value, partitions)
                    await writer.write(PAYMENTS_RAW, partition, key, value, BY_OPERATOR)
                    self.sent += 1
                await asyncio.sleep(_TICK_S)  # keeps the rate

    def finish(self) -> None:
        """Send no more; `run` returns when the brokers have all payments."""
        self._over.set()


@asynccontextmanager
async def sending(load: Load) -> AsyncIterator[Load]:
    """Send payments while the context is entered.

    Raises:
        KafkaUnavailableError: on leaving, when not all of them were taken.
    """
    running = asyncio.create_task(load.run())
    try:
        await until(lambda: load.sent >= load.per_s or running.done(), "payments flow")
        yield load
    except BaseException:
        running.cancel()
        await asyncio.wait({running})
        raise
    load.finish()
    await running


@asynccontextmanager
async def flowing(stage: Stage, per_s: int = 100) -> AsyncIterator[Load]:
    """Send payments while the context is entered, and count them in the drill's journal; raises as `sending`."""
    partitions = await partition_count(stage.access, [PAYMENTS_RAW])
    values = payments(f"{stage.name}-load", stage.random.getrandbits(32), partitions)
    async with sending(Load(stage.access, values, per_s, stage.random)) as load:
        stage.step(f"payments flow: {per_s} a second, in bursts, with repeats and bad records")
        yield load
    stage.journal.records += load.sent


async def subscribe(writer: IdempotentWriter, subscriptions: Subscriptions | None) -> None:
    """Subscribe every account, or end that with None. The ledger knows of it from its next start on."""
    value = None if subscriptions is None else encode_subscriptions(subscriptions)
    await writer.send(REFERENCE_SUBSCRIPTIONS, 0, EVERY_ACCOUNT.encode(), value)


def subscribe_to_receipts(brokers: Bootstrap) -> None:
    """Subscribe every account to receipts in a file, before the ledger starts: `prepare` of a stack."""

    async def send() -> None:
        # The brokers have just come up, on a machine that may be busy
        async with IdempotentWriter(brokers, request_timeout_s=_STARTED_S) as writer:
            await subscribe(writer, RECEIPTS)

    asyncio.run(send())


@asynccontextmanager
async def subscribed(stage: Stage) -> AsyncIterator[None]:
    """Subscribe every account to receipts and notices in a file while the context is entered.

    The ledger is started again on entering, so that it knows the subscription. On leaving, what was subscribed before
    is in force again.
    """
    before = await read_table(stage.access, REFERENCE_SUBSCRIPTIONS, decode_subscriptions)
    async with IdempotentWriter(stage.access) as writer:
        try:
            await subscribe(writer, RECEIPTS)
            stage.target.kill("ledger")
            await stage.target.ready("ledger")
            yield
        finally:
            await subscribe(writer, before.get(EVERY_ACCOUNT))
