"""Write the services' records step by step, for tests of code that only reads topics."""

import time

import msgspec

from shared.eos.records import Output
from shared.events import catalogue
from shared.events.headers import ORIGIN, SOURCE, Coordinates, Headers
from shared.events.postings import DEBIT, Entry, LedgerEvent, Posting, encode_ledger_event
from shared.kafka.admin.groups import PIPELINE
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets, stable_offsets
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.transaction_requests import GroupMember
from tests.harness import eventually, settled
from tests.partitions import partition_for

RAW, ACCEPTED = catalogue.PAYMENTS_RAW, catalogue.PAYMENTS_ACCEPTED
TRANSFERS, POSTINGS = catalogue.LEDGER_TRANSFERS, catalogue.LEDGER_POSTINGS
DEBTOR, CREDITOR = "alice", "dora"
HOME, AWAY = partition_for(DEBTOR), partition_for(CREDITOR)


async def send_raw(brokers: str, payment_id: str, headers: Headers = (), **fields: object) -> Coordinates:
    async with IdempotentWriter(brokers) as writer:
        at = await writer.send(RAW, HOME, DEBTOR.encode(), _payment(payment_id, **fields), headers)
    return Coordinates(RAW, HOME, at.offset)


async def send_raw_ahead(brokers: str, payment_id: str, headers: Headers = (), *, ahead_ms: int) -> Coordinates:
    """Write a raw record with a clock that is ahead of the services'."""
    stamp_ms = time.time_ns() // 1_000_000 + ahead_ms
    async with IdempotentWriter(brokers) as writer:
        await writer.write(RAW, HOME, DEBTOR.encode(), _payment(payment_id), headers, stamp_ms)
    return Coordinates(RAW, HOME, (await end_offsets(brokers, [RAW]))[RAW, HOME] - 1)


def _payment(payment_id: str, **fields: object) -> bytes:
    value = {"schema_version": 2, "type": "payment", "payment_id": payment_id, "debtor": DEBTOR, **fields}
    return msgspec.json.encode(value)


class Pipeline:
    """Writes the services' records, each step in its own transaction."""

    def __init__(self, brokers: str, producer: TransactionalProducer) -> None:
        self._brokers = brokers
        self._producer = producer

    async def write(
        self,
        topic: str,
        value: bytes,
        origin: Coordinates,
        *,
        partition: int = HOME,
        commit: bool = True,
        extra: Headers = (),
    ) -> None:
        headers: Headers = ((ORIGIN, origin.encode()), (SOURCE, origin.encode()), *extra)
        await self.begin([Output(topic, partition, b"key", value, headers)])
        await self.end(topic, commit=commit)

    async def begin(self, outputs: list[Output]) -> None:
        await self._producer.begin()
        self._producer.append(outputs, time.time_ns() // 1_000_000)
        await self._producer.flush()

    async def end(self, topic: str, *, commit: bool) -> None:
        await (self._producer.commit() if commit else self._producer.abort())
        await eventually(lambda: settled(self._brokers, [topic]), "markers written")

    async def advance(self) -> None:
        """Commit every group's offsets at the end of its input, in a transaction as the services do."""
        for group, topic in PIPELINE:
            ends = await stable_offsets(self._brokers, [topic])
            if not any(ends.values()):
                continue
            await self._producer.begin()
            await self._producer.send_offsets(GroupMember(group), {target: end for target, end in ends.items() if end})
            await self._producer.commit()


def posting(leg: str) -> Posting:
    partition = HOME if leg == DEBIT else AWAY
    sign = -1 if leg == DEBIT else 1
    entries = (
        Entry(DEBTOR if leg == DEBIT else CREDITOR, "EUR", sign * 100),
        Entry(f"in-transit@{partition}", "EUR", -sign * 100),
    )
    return Posting("p", leg, DEBTOR, CREDITOR, entries, "2026-11-02")


def event(made: LedgerEvent) -> bytes:
    return encode_ledger_event(made)
