"""Payments in bulk: the services' records for millions of payments, made by their own handlers and codecs.

Invariant: the system is at rest after every requested size, so the topics up to there are consistent, and a manifest of
those offsets is a smaller system. Records are written without transactions: offsets have no gaps, and a record's offset
is known before it is written. The changelogs of ingest and transform, which only their own service reads, are left out.
"""

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from services.ingest.service import IngestHandler
from services.ledger.service import LedgerHandler
from services.transform.domain import ReferenceData
from services.transform.service import TransformHandler
from shared.eos.progress import NEXT_OFFSET_KEY, NextOffset, encode_next_offset
from shared.eos.records import Handler, Record
from shared.events import catalogue
from shared.events.clients import BY_OPERATOR
from shared.events.effects import (
    EffectRequest,
    EffectResult,
    EffectState,
    Subscription,
    Subscriptions,
    Waiting,
    decode_request,
    encode_request,
    encode_result,
    encode_subscriptions,
    encode_waiting,
)
from shared.events.headers import DETAIL, REASON, SERVICE, SOURCE, Coordinates, Headers
from shared.events.payments import SCHEMA_VERSION, Payment, Reversal, encode_instruction
from shared.events.reference import Fee, Rate, encode_reference
from shared.events.transfers import AccountClosed, AccountOpened, encode_transfer
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import end_offsets
from spark.manifest import INPUTS, LANDED_TOPICS, Manifest, Range, seal
from tests.installation import INSTALLATION
from tests.partitions import PARTITIONS, partition_for, partition_for_bytes
from tests.topics import commit_offsets

SIZES = (250_000, 500_000, 1_000_000, 2_000_000)
BATCH = 25_000
ACCOUNTS = 20_000
HOURS = 20
"""The time span of the records' timestamps: a day's work."""
_REVERSAL_WINDOW = 400_000
_REPEATED, _REVERSED, _REFUSED, _CONVERTED, _BY_HOUSE = 0.005, 0.01, 0.012, 0.06, 0.25
_REMEMBERED = 10_000  # identities; a repeat follows within 8,000 payments
_FEES = {"CZK": Fee(fixed_minor=5, basis_points=10, max_minor=500)}
_RATES = {"CZK/EUR": Rate("0.0405"), "EUR/CZK": Rate("24.5")}
_SUBSCRIPTIONS = Subscriptions(
    (Subscription("receipt", "file:receipts"), Subscription("notice", "https://example.org/hook"))
)
_SUBSCRIBED_EVERY = 20
_ACKNOWLEDGED_S = 60.0

Offsets = dict[str, dict[int, int]]
Progress = Callable[[int, int], None]


class Size(NamedTuple):
    """The ends of all topics and groups after a number of payments.

    Attributes:
        payments: records of payments.raw.
        records: of all landed topics.
        ends: the offset after the last record, by topic and partition.
        groups: committed offsets by group and partition.
    """

    payments: int
    records: int
    ends: Offsets
    groups: Offsets

    def manifest(self, whole: Manifest) -> Manifest:
        """The cut at this size, made from a later cut of the same topics."""
        topics = {
            topic: {partition: Range(0, end, end) for partition, end in partitions.items()}
            for topic, partitions in self.ends.items()
        }
        return seal(msgspec.structs.replace(whole, topics=topics, groups=self.groups, settled=True))


class Bulk:
    """A run of the whole system without its brokers.

    Args:
        sizes: ascending numbers of payments at which the system is at rest.
        accounts: clients; a few of them have no cover, and a few are closed.
        seed: of the payments.
        now_ms: time of the last record, milliseconds since 1970 UTC.

    Attributes:
        sizes: the sizes reached.
    """

    def __init__(self, sizes: Sequence[int], *, accounts: int = ACCOUNTS, seed: int = 1, now_ms: int) -> None:
        self.sizes: list[Size] = []
        self._wanted = tuple(sizes)
        self._accounts = accounts
        self._payments = payments(sizes[-1], accounts, random.Random(seed))
        self._begun_ms, self._span_ms = now_ms - HOURS * 3_600_000, HOURS * 3_600_000
        self._now_ms = self._begun_ms
        self._next: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._written: list[Record] = []
        self._decided = 0
        subscribed = {f"client-{number}": _SUBSCRIPTIONS for number in range(0, accounts, _SUBSCRIBED_EVERY)}
        fees, rates, subscriptions = (
            {key: self._refer(topic, key, encode(value)) for key, value in values.items()}
            for topic, values, encode in (
                (catalogue.REFERENCE_FEES, _FEES, encode_reference),
                (catalogue.REFERENCE_RATES, _RATES, encode_reference),
                (catalogue.REFERENCE_SUBSCRIPTIONS, subscribed, encode_subscriptions),
            )
        )
        reference = ReferenceData(_FEES, _RATES, fees, rates)
        partitions = range(PARTITIONS)
        self._ingest = [IngestHandler(partition, _REMEMBERED, partitions=PARTITIONS) for partition in partitions]
        self._transform = [TransformHandler(partition, reference, partitions=PARTITIONS) for partition in partitions]
        remembered = min(_REVERSAL_WINDOW, sizes[-1])
        self._ledger = [
            LedgerHandler(
                partition, remembered, subscribed, subscriptions, partitions=PARTITIONS, installation=INSTALLATION
            )
            for partition in partitions
        ]

    @property
    def total(self) -> int:
        """The number of payments."""
        return self._wanted[-1]

    def batches(self) -> Iterator[list[Record]]:
        """All records in the order of writing, some payments at a time."""
        self._open_accounts()
        yield self._take()
        done = 0
        for wanted in self._wanted:
            while done < wanted:
                count = min(BATCH, wanted - done)
                self._pass(count, done)
                done += count
                yield self._take()
            self.sizes.append(self._size(done))

    def _take(self) -> list[Record]:
        taken, self._written = self._written, []
        return taken

    def _size(self, payments: int) -> Size:
        ends = {topic: {p: self._next[topic, p] for p in range(PARTITIONS)} for topic in LANDED_TOPICS}
        groups = {group: dict(ends[topic]) for group, topic in INPUTS.items()}
        return Size(payments, sum(sum(offsets.values()) for offsets in ends.values()), ends, groups)

    def _append(self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers) -> Record:
        at = topic, partition
        offset = self._next[at]
        self._next[at] = offset + 1
        record = Record(topic, partition, offset, self._now_ms, key, value, headers)
        self._written.append(record)
        return record

    def _refer(self, topic: str, key: str, value: bytes) -> str:
        """Write a record of reference data; returns its place, as decisions name it."""
        record = self._append(topic, partition_for(key), key.encode(), value, ())
        return f"{record.partition}:{record.offset}"

    def _open_accounts(self) -> None:
        ordered = []
        for number in range(self._accounts):
            account = f"client-{number}"
            if number % 50:  # the others keep the terms of an account that was never opened: no overdraft
                ordered.append(self._order(account, AccountOpened(account, None)))
            if number % 500 == 1:
                ordered.append(self._order(account, AccountClosed(account)))
        self._book(ordered)

    def _order(self, account: str, event: AccountOpened | AccountClosed) -> Record:
        value = encode_transfer(event)
        return self._append(catalogue.LEDGER_TRANSFERS, partition_for(account), account.encode(), value, ())

    def _pass(self, count: int, done: int) -> None:
        """Take some payments through all services."""
        raw: list[Record] = []
        for number in range(done, done + count):
            self._now_ms = self._begun_ms + self._span_ms * number // self.total
            debtor, value = next(self._payments)
            partition = partition_for_bytes(value) if debtor is None else partition_for(debtor)
            raw.append(
                self._append(
                    catalogue.PAYMENTS_RAW,
                    partition,
                    None if debtor is None else debtor.encode(),
                    value,
                    BY_OPERATOR,
                )
            )
        accepted = [
            record for record in self._process(self._ingest, raw) if record.topic == catalogue.PAYMENTS_ACCEPTED
        ]
        self._book(self._process(self._transform, accepted))

    def _process(self, handlers: Sequence[Handler], inputs: list[Record]) -> list[Record]:
        """Run a service on inputs without committing its stores; returns its records."""
        append = self._append
        outputs: list[Record] = []
        for record in inputs:
            self._now_ms = record.timestamp_ms
            outputs += [append(*output) for output in handlers[record.partition].process(record)]
        return outputs

    def _book(self, transfers: list[Record]) -> None:
        """Run the ledger: debits, then their credit legs; its changelog after each."""
        while transfers:
            outputs = self._process(self._ledger, transfers)
            for partition, handler in enumerate(self._ledger):
                self._log(partition, handler)
            self._decide([record for record in outputs if record.topic == catalogue.EFFECTS_REQUESTS])
            transfers = [record for record in outputs if record.topic == catalogue.LEDGER_TRANSFERS]

    def _log(self, partition: int, handler: LedgerHandler) -> None:
        next_offset = self._next[catalogue.LEDGER_TRANSFERS, partition]
        headers = ((SOURCE, Coordinates(catalogue.LEDGER_TRANSFERS, partition, next_offset - 1).encode()),)
        for key, value in handler.store.changes():
            self._append(catalogue.LEDGER_BALANCES, partition, key, value, headers)
        progress = encode_next_offset(NextOffset(next_offset))
        self._append(catalogue.LEDGER_BALANCES, partition, NEXT_OFFSET_KEY, progress, headers)
        handler.store.commit()

    def _decide(self, requests: list[Record]) -> None:
        """Run the outbox: most effects are sent at once, some after a wait, a few fail, are in doubt or still wait."""
        for record in requests:
            self._decided += 1
            self._now_ms = record.timestamp_ms
            request = decode_request(record.value or b"")
            assert isinstance(request, EffectRequest)
            if self._decided % 50 == 0:
                self._wait(record, request, ends=self._decided % 1000 != 0)
            if self._decided % 1000:
                self._result(record, request, _STATES.get(self._decided % 200, EffectState.SENT))

    def _wait(self, record: Record, request: EffectRequest, *, ends: bool) -> None:
        source = Coordinates(record.topic, record.partition, record.offset).encode()
        origin = record.headers[0][1].decode()
        now_ms = self._now_ms
        waiting = Waiting(request, source.decode(), origin, 1, now_ms, now_ms + 60_000, record.offset)
        for value in (encode_waiting(waiting), None)[: 2 if ends else 1]:
            key = b"waiting/" + request.effect_id.encode()
            self._append(catalogue.EFFECTS_WAITING, record.partition, key, value, ((SOURCE, source),))

    def _result(self, record: Record, request: EffectRequest, state: EffectState) -> None:
        source = Coordinates(record.topic, record.partition, record.offset).encode()
        headers = (record.headers[0], (SOURCE, source))
        kept = None if state == EffectState.SENT else request
        reason = "refused" if state == EffectState.FAILED else ""
        result = EffectResult(request.effect_id, state, self._now_ms, 1, reason=reason, request=kept)
        key = request.effect_id.encode()
        self._append(catalogue.EFFECTS_RESULTS, record.partition, key, encode_result(result), headers)
        if state == EffectState.FAILED:
            why = ((SERVICE, b"outbox"), (REASON, reason.encode()), (DETAIL, b"410"))
            key, value = request.account.encode(), encode_request(request)
            self._append(catalogue.EFFECTS_DEAD_LETTER, record.partition, key, value, (*headers, *why))


_STATES: Mapping[int, EffectState] = {17: EffectState.FAILED, 99: EffectState.IN_DOUBT}


def payments(
    count: int, accounts: int, chance: random.Random, prefix: str = "payment"
) -> Iterator[tuple[str | None, bytes]]:
    """Raw records with their debtors: payments, and a few repeats, reversals and malformed records.

    Args:
        count: how many.
        accounts: between so many clients, and house accounts.
        chance: source of all choices.
        prefix: of each payment_id.
    """
    draw = chance.random
    recent: deque[tuple[str, str, bytes]] = deque(maxlen=500)
    for number in range(count):
        kind = draw()
        payment_id = f"{prefix}-{number:08d}"
        if kind < _REVERSED and recent:
            debtor, first_id, value = recent[int(draw() * len(recent))]
            if kind >= _REPEATED:
                value = encode_instruction(Reversal(payment_id, debtor, first_id, SCHEMA_VERSION))
            yield debtor, value
            continue
        if kind < _REFUSED:
            yield None, b'{"no": "payment", "number": %d}' % number
            continue
        client, other = int(draw() * accounts), int(draw() * (accounts - 1))
        by_house = _CONVERTED <= kind < _BY_HOUSE
        debtor = f"cash@{client % PARTITIONS}" if by_house else f"client-{client}"
        creditor = f"client-{other + (other >= client)}"
        currency, bought = ("CZK", "EUR") if kind < _CONVERTED else ("EUR" if client & 1 else "CZK", None)
        day = None if client & 2 else f"2026-01-{1 + client % 28:02d}"
        amount = 100 + int(draw() * 1_000_000)
        payment = Payment(payment_id, debtor, creditor, amount, currency, SCHEMA_VERSION, bought, day, "invoice")
        value = encode_instruction(payment)
        if number % 16 == 0:
            recent.append((debtor, payment_id, value))
        yield debtor, value


async def write_bulk(bootstrap_servers: str, bulk: Bulk, progress: Progress = lambda _done, _of: None) -> list[Size]:
    """Write the records to empty topics, and commit the groups' offsets.

    Args:
        bootstrap_servers: brokers, comma separated.
        bulk: what to write.
        progress: called with payments written and payments in total.

    Returns:
        The ends at each size.

    Raises:
        AssertionError: the topics were not empty.
    """
    done = 0
    async with IdempotentWriter(bootstrap_servers, request_timeout_s=_ACKNOWLEDGED_S) as writer:
        write = writer.write
        for records in bulk.batches():
            for topic, partition, _, timestamp_ms, key, value, headers in records:
                await write(topic, partition, key, value, headers, timestamp_ms)
            done = min(done + BATCH, bulk.total)
            progress(done, bulk.total)
        await writer.flush()
    last = bulk.sizes[-1]
    # Making the topics writes the installation's id
    topics = [topic for topic in LANDED_TOPICS if topic != catalogue.INSTALLATION]
    ends = await end_offsets(bootstrap_servers, topics)
    assert ends == {(topic, p): last.ends[topic][p] for topic, p in ends}
    await commit_offsets(bootstrap_servers, last.groups)
    return bulk.sizes


def bulk_now(sizes: Sequence[int], *, accounts: int = ACCOUNTS) -> Bulk:
    """A run whose last record is of now."""
    return Bulk(sizes, accounts=accounts, now_ms=time.time_ns() // 1_000_000)
