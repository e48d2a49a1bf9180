"""Payments written by hand through every topic of the pipeline, as correct services would write them, or with an error.

Each error is one that a broken service or a torn transaction makes. `Planted` says which records a reconciliation must
name for it, and as what: no more, and no less. What balances say is right for the postings as they are written, so no
account differs from its postings.
"""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import NamedTuple

from deploy.drills.clients.stock import stock_producer
from shared.eos.crash import NO_CRASHES
from shared.eos.progress import NEXT_OFFSET_KEY, NextOffset, encode_next_offset
from shared.events import catalogue
from shared.events.clients import BY_OPERATOR, OPERATOR
from shared.events.headers import Coordinates
from shared.events.partitions import partition_for
from shared.events.payments import SCHEMA_VERSION, Payment, encode_accepted, encode_instruction
from shared.events.postings import (
    ACCOUNT_PREFIX,
    CREDIT,
    DEBIT,
    Account,
    Entry,
    NotifiedBy,
    Posting,
    encode_account,
    encode_ledger_event,
)
from shared.events.transfers import CreditLeg, PricedBy, Transfer, encode_transfer
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import stable_offsets
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.transaction_requests import GroupMember
from spark.manifest import INPUTS
from spark.night import Kind

CURRENCY, DAY = "CZK", "2026-01-05"
_TIMEOUT_MS = 60_000  # a broker that has just made its topics is busy


class Error(StrEnum):
    """An error in one payment."""

    NONE = "none"
    MISSING = "missing"
    """The credit was consumed and not posted."""
    DUPLICATE = "duplicate"
    """The debit was posted twice."""
    ALTERED = "altered"
    """The debit was posted with twice the amount."""
    ORPHAN = "orphan"
    """The credit names the raw record of another payment as its origin."""
    TORN = "torn"
    """Of the debit's transaction, the posting is there, and the credit leg is not."""
    ABORTED = "aborted"
    """The raw record was aborted, and everything was made from it."""


class Break(NamedTuple):
    """A break that a reconciliation must report."""

    kind: str
    topic: str | None
    partition: int | None
    offset: int | None


class Planted(NamedTuple):
    """An error, and the breaks by which a reconciliation must name it."""

    error: Error
    payment_id: str
    breaks: list[Break]


class Hand:
    """Writes payments from house accounts to clients, one after the other.

    Args:
        brokers: whose topics were empty before.
        partitions: of each topic.

    Attributes:
        records: written so far.
    """

    def __init__(self, brokers: str, writer: IdempotentWriter, partitions: int) -> None:
        self._brokers = brokers
        self._writer = writer
        self._partitions = partitions
        self._balances: dict[str, int] = defaultdict(int)
        self._first_raw: Coordinates | None = None
        self.records = 0

    async def pay(self, number: int, error: Error = Error.NONE) -> Planted:
        """Write a payment through all topics."""
        p = number % self._partitions
        debtor, creditor, amount = f"cash@{p}", f"client-{number}", 1000 + number
        q = partition_for(creditor, self._partitions)
        payment_id = f"{error}-{number}"
        payment = Payment(payment_id, debtor, creditor, amount, CURRENCY, SCHEMA_VERSION, None, DAY)
        value = encode_instruction(payment)
        raw = await (self._abort(p, value) if error is Error.ABORTED else self._send(p, value))
        origin = self._first_raw or raw
        self._first_raw = origin
        value = encode_accepted(payment, -1, OPERATOR)
        accepted = await self._put(catalogue.PAYMENTS_ACCEPTED, p, value, origin=raw, source=raw)
        priced_by = PricedBy(None, None)
        money = amount, CURRENCY, amount, CURRENCY
        transfer = Transfer(payment_id, debtor, creditor, *money, DAY, priced_by=priced_by, submitted_by=OPERATOR)
        ordered = await self._put(catalogue.LEDGER_TRANSFERS, p, encode_transfer(transfer), origin=raw, source=accepted)
        moved = amount * 2 if error is Error.ALTERED else amount
        debits = Entry(debtor, CURRENCY, -moved), Entry(f"in-transit@{p}", CURRENCY, moved)
        debit = Posting(payment_id, DEBIT, debtor, creditor, debits, DAY, submitted_by=OPERATOR)
        posted = await self._post(debit, raw, ordered)
        if error is Error.TORN:
            return Planted(error, payment_id, [_break(Kind.TORN, posted)])
        leg = CreditLeg(payment_id, debtor, creditor, amount, CURRENCY, DAY)
        sent = await self._put(catalogue.LEDGER_TRANSFERS, q, encode_transfer(leg), origin=raw, source=ordered)
        if error is Error.MISSING:
            return Planted(error, payment_id, [_break(Kind.MISSING, sent)])
        entries = Entry(f"in-transit@{q}", CURRENCY, -amount), Entry(creditor, CURRENCY, amount)
        credit = Posting(payment_id, CREDIT, debtor, creditor, entries, DAY, notified_by=NotifiedBy(None, None))
        credited = await self._post(credit, origin if error is Error.ORPHAN else raw, sent)
        if error is Error.DUPLICATE:
            posted = await self._post(debit, raw, ordered)
        breaks = {
            Error.DUPLICATE: [_break(Kind.DUPLICATE, posted)],
            Error.ALTERED: [_break(Kind.AMOUNT, posted), _break(Kind.AMOUNT, sent)],
            Error.ORPHAN: [_break(Kind.ORPHAN, credited)],
            Error.ABORTED: [_break(Kind.UNCOMMITTED, accepted)],
        }
        return Planted(error, payment_id, breaks.get(error, []))

    async def consume(self) -> None:
        """Commit the services' offsets: every record was consumed."""
        producer = TransactionalProducer(self._brokers, "by-hand", _TIMEOUT_MS, NO_CRASHES)
        try:
            await producer.init(_TIMEOUT_MS / 1000)
            for group, topic in INPUTS.items():
                ends = {target: end for target, end in (await stable_offsets(self._brokers, [topic])).items() if end}
                if ends:
                    await producer.begin()
                    await producer.send_offsets(GroupMember(group), ends)
                    await producer.commit()
        finally:
            await producer.discard()

    async def _put(
        self, topic: str, partition: int, value: bytes, key: bytes | None = None, **links: Coordinates
    ) -> Coordinates:
        headers = tuple((name, at.encode()) for name, at in links.items())
        written = await self._writer.send(topic, partition, key, value, headers)
        self.records += 1
        return Coordinates(topic, partition, written.offset)

    async def _send(self, partition: int, value: bytes) -> Coordinates:
        """Write a raw record."""
        written = await self._writer.send(catalogue.PAYMENTS_RAW, partition, None, value, BY_OPERATOR)
        self.records += 1
        return Coordinates(catalogue.PAYMENTS_RAW, partition, written.offset)

    async def _abort(self, partition: int, value: bytes) -> Coordinates:
        """Write a raw record in a transaction, and abort it."""
        async with stock_producer(
            self._brokers, transactional_id="by-hand-aborted", request_timeout_ms=_TIMEOUT_MS
        ) as producer:
            await producer.begin_transaction()
            written = await producer.send_and_wait(
                catalogue.PAYMENTS_RAW, value, partition=partition, headers=list(BY_OPERATOR)
            )
            await producer.abort_transaction()
        self.records += 1
        return Coordinates(catalogue.PAYMENTS_RAW, partition, written.offset)

    async def _post(self, posting: Posting, origin: Coordinates, source: Coordinates) -> Coordinates:
        """Write a posting, and the states of its accounts as the ledger writes them."""
        value = encode_ledger_event(posting)
        at = await self._put(catalogue.LEDGER_POSTINGS, source.partition, value, origin=origin, source=source)
        for entry in posting.entries:
            self._balances[entry.account] += entry.amount_minor
            overdraft_minor = None if "@" in entry.account else 0
            state = encode_account(Account({CURRENCY: self._balances[entry.account]}, overdraft_minor))
            await self._state(source, ACCOUNT_PREFIX + entry.account.encode(), state)
        await self._state(source, NEXT_OFFSET_KEY, encode_next_offset(NextOffset(source.offset + 1)))
        return at

    async def _state(self, source: Coordinates, key: bytes, value: bytes) -> None:
        await self._put(catalogue.LEDGER_BALANCES, source.partition, value, key, source=source)


@asynccontextmanager
async def by_hand(brokers: str, partitions: int) -> AsyncIterator[Hand]:
    """Open a writer of payments."""
    async with IdempotentWriter(brokers, request_timeout_s=_TIMEOUT_MS / 1000) as writer:
        yield Hand(brokers, writer, partitions)


def _break(kind: Kind, at: Coordinates) -> Break:
    return Break(kind.value, *at)
