"""The strict transactional producer: one transactional.id, one transaction at a time, every record acknowledged.

Invariant: a commit is sent only after every record of the transaction was acknowledged. An operation whose outcome is
unknown is never repeated. A fenced producer never writes again. All waits of a transaction end at one deadline, before
the coordinator would abort it.
"""

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import IllegalOperation, KafkaError

from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError, EosError, FencedError, RejoinError, UnknownOutcomeError
from shared.eos.records import Output
from shared.eos.states import Event, State, advance
from shared.kafka.client.access import Bootstrap, client_options
from shared.kafka.client.errors import classify, gravity
from shared.kafka.client.leaving import forget, give_up
from shared.kafka.client.measured import replace_sender
from shared.kafka.runtime.sender import (
    BATCH_BYTES,
    RECORD_BYTES_MAX,
    EndTxnOutcomeUnknownError,
    Pending,
    StrictSender,
    Target,
)
from shared.telemetry import metrics
from shared.telemetry.instruments import Reading

RETRY_BACKOFF_MS = 50

T = TypeVar("T")


class TransactionalProducer:
    """A producer under one transactional.id, which is unique per service and input partition.

    Args:
        transaction_timeout_ms: after it the broker aborts an abandoned transaction; operations end well before it.
        crash_points: for tests.
    """

    def __init__(
        self,
        bootstrap_servers: Bootstrap,
        transactional_id: str,
        transaction_timeout_ms: int,
        crash_points: CrashPoints,
    ) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        # Shorter than the broker's timeout, so that this producer ends the transaction
        self._transaction_s = transaction_timeout_ms * 0.8 / 1000
        self._crash_points = crash_points
        self._producer = AIOKafkaProducer(
            **client_options(bootstrap_servers),
            client_id=transactional_id,
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            acks="all",
            enable_idempotence=True,
            max_batch_size=BATCH_BYTES,
            max_request_size=2 * RECORD_BYTES_MAX,
            linger_ms=0,
            request_timeout_ms=transaction_timeout_ms,
            retry_backoff_ms=RETRY_BACKOFF_MS,
        )
        self._sender = replace_sender(self._producer, StrictSender, RETRY_BACKOFF_MS, crash_points=crash_points)
        self._manager = self._sender._txn_manager  # noqa: SLF001 # no public access
        self._pending = Pending(self._producer)
        self._begun_s: float | None = None
        self._init_s: float | None = None
        # Coordinator and transaction state that InitProducerId waits for; Prometheus drops empty labels
        self.init_waits_for = (metrics.UNKNOWN, metrics.UNKNOWN)
        self._records = 0
        self._hide = [
            metrics.OPEN_TRANSACTION_AGE.add(self._age),
            metrics.INIT_WAIT.add(self._init_wait),
            metrics.PRODUCER_EPOCH.add(self._known_epoch),
        ]

    @property
    def epoch(self) -> tuple[int, int]:
        """Producer id and epoch, as the coordinator gave them."""
        return self._manager.producer_id, self._manager.producer_epoch

    async def init(self, deadline_s: float) -> None:
        """InitProducerId: fence the predecessor and wait until its transaction is settled.

        The deadline allows for the predecessor's markers, which may take a while to be written. Raises
        UnknownOutcomeError if no coordinator answered in time, other EosErrors as classified.
        """
        self._advance(Event.INIT)
        self._init_s = begun = time.monotonic()
        await self._guarded(self._producer.start(), deadline_s, "InitProducerId")
        self._init_s = None
        metrics.TXN_INIT.observe(time.monotonic() - begun)
        self._advance(Event.INITIALIZED)

    async def begin(self) -> None:
        """Begin a transaction. Nothing is sent: the broker's timeout starts with the first partition added."""
        begun = time.monotonic()
        self._advance(Event.BEGIN)
        await self._producer.begin_transaction()
        self._sender.coordinators.clear()
        self._begun_s, self._records = begun, 0
        metrics.TXN_BEGIN.observe(time.monotonic() - begun)

    def append(self, outputs: Iterable[Output], timestamp_ms: int) -> None:
        """Append records to the transaction's batches, with one timestamp. Nothing is sent yet.

        Raises AbortableError if a record is larger than any topic accepts.
        """
        self._pending.append(outputs, timestamp_ms)

    def appended(self) -> dict[str, dict[int, int]]:
        """How many records were appended and not sent yet, by topic and partition."""
        return self._pending.counts()

    async def flush(self) -> None:
        """Send every batch and wait until each was acknowledged.

        Raises:
            AbortableError: a batch was refused; the transaction must be aborted.
            UnknownOutcomeError: not all were acknowledged before the deadline.
            FencedError, FatalError: as classified.
        """
        for batches in self._pending.take():
            await self._send_round(batches)

    async def _send_round(self, batches: list[tuple[Target, Any]]) -> None:
        """Send one batch per partition, all at once."""
        sequences = self._manager._sequence_numbers  # noqa: SLF001 # no public access
        self._sender.resent.clear()
        sent: list[tuple[TopicPartition, int, int, asyncio.Future[Any]]] = []
        for (topic, partition), batch in batches:
            target = TopicPartition(topic, partition)
            base = sequences[target]
            future = await self._call(self._producer.send_batch(batch, topic, partition=partition))
            future.add_done_callback(forget)
            sent.append((target, base, batch.record_count(), future))
        futures = [future for *_, future in sent]
        # After the deadline no answer counts, as when this process was stopped: the coordinator aborts the transaction
        # under the next epoch, which need not be that of another producer
        _, late = await asyncio.wait(futures, timeout=max(self._left_s(), 0))
        failures: list[EosError] = []
        if late:
            failures.append(UnknownOutcomeError("records were not acknowledged in time", "Produce"))
        for target, base, count, future in sent:
            if future in late:
                continue
            error = future.exception()
            if error is None:
                metrics.records_sent(target.topic, count)
                self._records += count
                continue
            metrics.records_failed(type(error).__name__, count)
            kind = self._classified(error)
            if isinstance(kind, AbortableError) and target in self._sender.resent:
                # An earlier copy may still be on its way, and the next transaction would be taken for that one's repeat
                kind = UnknownOutcomeError(f"a batch was refused after it had been sent before: {kind}", "Produce")
            elif isinstance(kind, AbortableError):
                # Refused whole, so never appended: the broker still expects this sequence number
                sequences[target] = base
            failures.append(kind)
        if failures:
            gravest = max(failures, key=gravity)
            self._fail(gravest)
            raise gravest

    async def send_offsets(self, group: str, offsets: dict[tuple[str, int], int], metadata: str = "") -> None:
        """Add consumed offsets to the transaction (AddOffsetsToTxn, TxnOffsetCommit).

        Args:
            offsets: by (topic, partition), the next offset to read.
            metadata: stored with each; at most 4,096 characters (the brokers' offset.metadata.max.bytes).
        """
        begun = time.monotonic()
        wanted = {TopicPartition(*target): (offset, metadata) for target, offset in offsets.items()}
        await self._guarded(
            self._producer.send_offsets_to_transaction(wanted, group), self._left_s(), "TxnOffsetCommit"
        )
        metrics.TXN_SEND_OFFSETS.observe(time.monotonic() - begun)

    async def commit(self) -> None:
        """End the transaction with COMMIT.

        Raises:
            UnknownOutcomeError: no answer came, or not all partitions may have a marker. Discard the producer.
            FencedError, FatalError: as classified; nothing was committed by this call.
        """
        begun = time.monotonic()
        self._advance(Event.COMMIT)
        await self._guarded(self._producer.commit_transaction(), self._left_s(), "EndTxn(COMMIT)")
        self._raise_if_moved()
        self._advance(Event.ENDED)
        self._begun_s = None
        metrics.TXN_COMMIT.observe(time.monotonic() - begun)
        metrics.TRANSACTION_RECORDS.observe(self._records)
        metrics.TRANSACTIONS.labels(metrics.COMMITTED, metrics.NO_CAUSE).inc()

    async def abort(self, cause: str = metrics.STOPPED) -> None:
        """End the transaction with ABORT, for a cause: an error's, or STOPPED. What was not sent is dropped.

        Raises:
            UnknownOutcomeError: no answer came. Discard the producer; the next owner settles the transaction.
            FencedError, FatalError: as classified.
        """
        begun = time.monotonic()
        self._pending.clear()
        self._advance(Event.ABORT)
        await self._guarded(self._producer.abort_transaction(), self._left_s(), "EndTxn(ABORT)")
        self._raise_if_moved()
        self._advance(Event.ENDED)
        self._begun_s = None
        metrics.TXN_ABORT.observe(time.monotonic() - begun)
        metrics.TRANSACTIONS.labels(metrics.ABORTED, cause).inc()

    async def discard(self) -> None:
        """Drop the producer without another request. The next InitProducerId, or the broker, ends its transaction."""
        if self.state is State.CLOSED:
            return
        self._advance(Event.CLOSE)
        self._pending.clear()
        for hide in self._hide:
            hide()
        self._producer._closed = True  # noqa: SLF001 # stop() would flush
        await give_up(self._producer)
        waiter = self._manager._transaction_waiter  # noqa: SLF001 # no public access
        if waiter is not None:
            waiter.add_done_callback(forget)  # the end of a transaction that was given up on

    def reach(self, point: str) -> None:
        self._crash_points.reach(point)

    def _raise_if_moved(self) -> None:
        """Raise UnknownOutcomeError if the coordinator may not have known all partitions that it had to end."""
        if len(self._sender.coordinators) > 1:
            error = UnknownOutcomeError("the coordinator moved within the transaction: parts may be open", "EndTxn")
            self._fail(error)
            raise error

    async def _guarded(self, operation: Awaitable[T], deadline_s: float, what: str) -> T:
        """Await an operation until its deadline, and classify how it fails."""
        try:
            # Not wait_for, which may swallow a cancellation that meets the answer
            async with asyncio.timeout(deadline_s):
                return await self._call(operation)
        except TimeoutError:
            error = UnknownOutcomeError(f"{what} was not answered within {deadline_s:.1f} s", what.partition("(")[0])
            self._fail(error)
            raise error from None

    async def _call(self, operation: Awaitable[T]) -> T:
        try:
            return await operation
        except EndTxnOutcomeUnknownError as error:
            unknown = UnknownOutcomeError(f"EndTxn was not answered: {error}", "EndTxn")
            self._fail(unknown)
            raise unknown from error
        except (KafkaError, IllegalOperation, AssertionError) as error:  # the client checks its own state by assert
            kind = self._classified(error)
            self._fail(kind)
            raise kind from error

    def _classified(self, error: BaseException) -> EosError:
        kind = classify(error)
        if isinstance(kind, FencedError) and self._sender.unanswered_inits:
            return RejoinError(f"fenced, possibly by its own InitProducerId, which arrived late: {error}", kind.cause)
        return kind

    def _left_s(self) -> float:
        """Seconds until the open transaction's deadline."""
        begun_s = time.monotonic() if self._begun_s is None else self._begun_s
        return begun_s + self._transaction_s - time.monotonic()

    def _fail(self, error: EosError) -> None:
        if isinstance(error, AbortableError):
            if self.state is State.IN_TRANSACTION:
                self._advance(Event.SEND_FAILED)
            return
        if isinstance(error, UnknownOutcomeError):
            metrics.TRANSACTIONS.labels(metrics.UNKNOWN, error.cause).inc()
        if self.state not in {State.UNKNOWN, State.FATAL_ERROR, State.CLOSED}:
            self._advance(Event.OUTCOME_UNKNOWN if isinstance(error, UnknownOutcomeError) else Event.FATAL)

    def _advance(self, event: Event) -> None:
        self.state = advance(self.state, event)

    def _age(self) -> list[Reading]:
        begun_s = self._begun_s
        return [((self.transactional_id,), 0.0 if begun_s is None else time.monotonic() - begun_s)]

    def _init_wait(self) -> list[Reading]:
        init_s = self._init_s
        labels = (self.transactional_id, *self.init_waits_for)
        return [(labels, 0.0 if init_s is None else time.monotonic() - init_s)]

    def _known_epoch(self) -> list[Reading]:
        producer_id, epoch = self.epoch
        return [((self.transactional_id,), epoch)] if producer_id >= 0 else []
