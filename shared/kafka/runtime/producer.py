"""The transactional producer: one transactional.id, one transaction at a time, every request awaited.

The requests, in their order (KIP-98):

1. InitProducerId to the transaction's coordinator. It fences the predecessor and ends its transaction.
2. AddPartitionsToTxn to the coordinator: each partition before its first record.
3. Produce to the partitions' leaders.
4. AddOffsetsToTxn to the coordinator: the partition that has the group's offsets.
5. TxnOffsetCommit to the group's coordinator.
6. EndTxn to the transaction's coordinator.

Requests 2 to 6 end at one deadline, before the coordinator would abort the transaction. Where an answer asks to wait,
or no answer comes, the same request follows: repeated within its transaction, it has one effect. A copy that arrives
after the end of its transaction must not reach the next one, which therefore has another epoch:

- In version 2 of the protocol each EndTxn raises the epoch (KIP-890).
- In version 1 the producer raises its epoch itself when a request of the transaction was not answered: InitProducerId
  again, as the holder of the present epoch (KIP-360), before the next transaction begins.

Invariant: a commit is sent only after every record and the offsets were acknowledged. A fenced producer never writes
again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from aiokafka.errors import ConcurrentTransactions, KafkaError

from shared.eos import crash
from shared.eos.crash import CrashPoints
from shared.eos.errors import (
    AbortableError,
    EosError,
    FencedError,
    RejoinError,
    Severity,
    UnknownOutcomeError,
    severity,
)
from shared.eos.records import Output
from shared.eos.states import Event, State, advance
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Cluster, Target
from shared.kafka.client.errors import KafkaUnavailableError, classify, error_name, gravity
from shared.kafka.client.measured import SEQUENCES, measure_client
from shared.kafka.runtime.outgoing import Numbered, OpenBatch, Outgoing
from shared.kafka.runtime.transaction_requests import GroupMember, NoResponseError, TransactionRequests
from shared.telemetry import metrics
from shared.telemetry.instruments import Reading

RETRY_BACKOFF_S: Final = 0.05
CONCURRENT_BACKOFF_S: Final = 0.001
"""First pause after CONCURRENT_TRANSACTIONS, the answer until the previous transaction's markers are written. A whole
transaction takes a few milliseconds."""


class TransactionalProducer:
    """A producer under one transactional.id: an instance's, or one for an input partition of the outbox.

    Args:
        transaction_timeout_ms: after it the broker aborts an abandoned transaction; operations end well before it.
        crash_points: for tests.
        version_max: the highest version of the protocol that it speaks. With version 2 the producer id and epoch change
            from transaction to transaction.

    Attributes:
        cluster: its connections, open from `init` to `discard`; between transactions others may read over them.
    """

    def __init__(
        self,
        bootstrap_servers: Bootstrap,
        transactional_id: str,
        transaction_timeout_ms: int,
        crash_points: CrashPoints,
        *,
        version_max: int = 2,
    ) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALIZED
        # Shorter than the broker's timeout, so that this producer ends the transaction
        self._transaction_s = transaction_timeout_ms * 0.8 / 1000
        self._crash_points = crash_points
        self._version_max = version_max
        self.cluster = Cluster(
            bootstrap_servers,
            client_id=transactional_id,
            request_timeout_s=transaction_timeout_ms / 1000,
            measure=measure_client,
        )
        self._requests = TransactionRequests(self.cluster, transactional_id, transaction_timeout_ms)
        self._coordinators: dict[str | None, int] = {}  # by group; None is the transaction's
        self._outgoing = Outgoing()
        self._topics: set[str] = set()  # whose leaders are known
        self._sequences: dict[Target, int] = {}
        self._added: set[Target | str] = set()  # partitions and the group of the open transaction
        self._added_by: set[int] = set()  # coordinators that confirmed them
        self._touched = False  # whether one may have been added
        self._in_doubt = False  # whether sequence numbers, or the coordinator's state, may not be as noted here
        self._unanswered_inits = 0
        self._pending: dict[int, list[Target]] = {}  # batches that no leader has answered for, by leader
        self._records = 0
        self._begun_s: float | None = None
        self._init_s: float | None = None
        # Coordinator and transaction state that InitProducerId waits for; Prometheus drops empty labels
        self.init_waits_for = (metrics.UNKNOWN, metrics.UNKNOWN)
        self._hide = [
            metrics.OPEN_TRANSACTION_AGE.add(self._age),
            metrics.INIT_WAIT.add(self._init_wait),
            metrics.PRODUCER_EPOCH.add(self._known_epoch),
        ]

    @property
    def epoch(self) -> tuple[int, int]:
        """Producer id and epoch, as the coordinator gave them."""
        return self._requests.producer_id, self._requests.epoch

    async def init(self, deadline_s: float) -> None:
        """InitProducerId: fence the predecessor and wait until its transaction is settled.

        The deadline allows for the predecessor's markers, which may take a while to be written. Raises
        UnknownOutcomeError if no coordinator answered in time, other EosErrors as classified.
        """
        self._advance(Event.INIT)
        self._init_s = begun = time.monotonic()
        async with self._until(begun + deadline_s, "InitProducerId"):
            await self.cluster.open()
            if self._version_max > 1:
                await self._requests.negotiate()
            await self._initialise(own=False)
        self._init_s = None
        metrics.TXN_INIT.observe(time.monotonic() - begun)
        self._advance(Event.INITIALIZED)

    async def _initialise(self, *, own: bool) -> None:
        """Get a new epoch. Nothing of an earlier one has an effect any more."""
        before = self._requests.unanswered
        await self._coordinated(lambda node_id: self._requests.init_producer_id(node_id, own=own))
        self._unanswered_inits += self._requests.unanswered - before
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        """Begin the sequences of a new epoch. No request of an earlier one has an effect any more."""
        self._requests.unanswered = 0
        self._in_doubt = False
        self._sequences.clear()

    async def begin(self) -> None:
        """Begin a transaction. Nothing is sent: the broker's timeout starts with the first partition added."""
        begun = time.monotonic()
        self._advance(Event.BEGIN)
        self._begun_s, self._records = begun, 0
        self._added.clear()
        self._added_by.clear()
        metrics.TXN_BEGIN.observe(time.monotonic() - begun)

    def append(self, outputs: Iterable[Output], timestamp_ms: int) -> None:
        """Append records to the transaction's batches, with one timestamp. Nothing is sent yet.

        Raises AbortableError if a record is larger than any topic accepts.
        """
        self._outgoing.append(outputs, timestamp_ms)

    async def flush(self) -> None:
        """Send every batch and wait until each was acknowledged.

        Raises:
            AbortableError: a batch was refused; the transaction must be aborted.
            UnknownOutcomeError: not all were acknowledged before the deadline.
            FencedError, FatalError: as classified.
        """
        new = [target for target in self._outgoing.targets if target not in self._added]
        async with self._in_time("Produce"):
            if unknown := {topic for topic, _ in new} - self._topics:
                await self.cluster.partitions(unknown)
                self._topics |= unknown
            if new:
                await self._add(new, lambda node_id: self._requests.add_partitions(node_id, new))
            for batches in self._outgoing.take():
                await self._produce({target: self._numbered(target, batch) for target, batch in batches.items()})

    def _numbered(self, target: Target, batch: OpenBatch) -> Numbered:
        sequence = self._sequences.get(target, 0)
        self._sequences[target] = (sequence + batch.records) % SEQUENCES
        return batch.number(*self.epoch, sequence)

    async def _add(self, what: Iterable[Target | str], request: Callable[[int], Awaitable[None]]) -> None:
        """Add partitions, or a group, to the transaction."""
        self._touched = True
        self._added_by.add(await self._coordinated(request))
        self._added.update(what)

    async def _produce(self, batches: dict[Target, Numbered]) -> None:
        """Send one batch per partition, until each is acknowledged or one is refused."""
        now_s = time.monotonic()
        for batch in batches.values():
            metrics.RECORD_QUEUE_TIME.observe(now_s - batch.begun_s)
        while True:
            errors = await self._send_to_leaders(batches)
            failures = []
            for target, error in errors.items():
                count = batches[target].records
                if error is None:
                    metrics.records_sent(target[0], count)
                    self._records += count
                elif not _asks_to_repeat(error):
                    metrics.records_failed(type(error).__name__, count)
                    failures.append(self._classified(error))
            if failures:
                self._in_doubt = True
                raise max(failures, key=gravity)
            batches = {target: batches[target] for target, error in errors.items() if error is not None}
            if not batches:
                return
            metrics.records_retried(sum(batch.records for batch in batches.values()))
            await asyncio.sleep(RETRY_BACKOFF_S)
            await self.cluster.refresh()

    async def _send_to_leaders(self, batches: dict[Target, Numbered]) -> dict[Target, KafkaError | None]:
        """Send each leader its batches in one request, and return each partition's error."""

        async def send(node_id: int, led: list[Target]) -> dict[Target, KafkaError | None]:
            try:
                answered = await self._requests.produce(node_id, {target: batches[target].data for target in led})
            except KafkaError as error:
                answered = dict.fromkeys(led, error)
            del self._pending[node_id]
            return answered

        try:
            leaders = self.cluster.by_leader(batches)
        except KafkaError as error:
            return dict.fromkeys(batches, error)
        self._pending = dict(leaders)
        found: dict[Target, KafkaError | None] = {}
        for errors in await asyncio.gather(*(send(*one) for one in leaders.items())):
            found |= errors
        return found

    async def send_offsets(self, member: GroupMember, offsets: dict[Target, int], metadata: str = "") -> None:
        """Add consumed offsets to the transaction (AddOffsetsToTxn, TxnOffsetCommit).

        Args:
            member: whose offsets they are.
            offsets: by (topic, partition), the next offset to read.
            metadata: stored with each; at most 4,096 characters (the brokers' offset.metadata.max.bytes).
        """
        begun = time.monotonic()
        group = member.group
        async with self._in_time("TxnOffsetCommit"):
            if group not in self._added:
                await self._add([group], lambda node_id: self._requests.add_offsets(node_id, group))
            await self._coordinated(
                lambda node_id: self._requests.commit_offsets(node_id, member, offsets, metadata), group
            )
        metrics.TXN_SEND_OFFSETS.observe(time.monotonic() - begun)

    async def commit(self) -> None:
        """End the transaction with COMMIT.

        Raises:
            UnknownOutcomeError: no answer came in time, or not all partitions may have a marker. Discard the producer.
            FencedError, FatalError: as classified; nothing was committed by this call.
        """
        begun = time.monotonic()
        self._advance(Event.COMMIT)
        await self._end(commit=True)
        metrics.TXN_COMMIT.observe(time.monotonic() - begun)
        metrics.TRANSACTION_RECORDS.observe(self._records)
        metrics.TRANSACTIONS.labels(metrics.COMMITTED, metrics.NO_CAUSE).inc()

    async def abort(self, cause: str = metrics.STOPPED) -> None:
        """End the transaction with ABORT, for a cause: an error's, or STOPPED. What was not sent is dropped.

        Raises:
            UnknownOutcomeError: no answer came in time. Discard the producer; the next InitProducerId ends it.
            FencedError, FatalError: as classified.
        """
        begun = time.monotonic()
        self._outgoing.clear()
        self._advance(Event.ABORT)
        await self._end(commit=False)
        metrics.TXN_ABORT.observe(time.monotonic() - begun)
        metrics.TRANSACTIONS.labels(metrics.ABORTED, cause).inc()

    async def _end(self, *, commit: bool) -> None:
        async with self._in_time("EndTxn"):
            if self._touched:
                ended = await self._decide(commit=commit)
                self._raise_if_moved()
                if ended and self._requests.second:
                    self._begin_epoch()
            if self._requests.unanswered or self._in_doubt:
                await self._initialise(own=True)
        self._touched = False
        self._advance(Event.ENDED)
        self._begun_s = None

    async def _decide(self, *, commit: bool) -> bool:
        """End the transaction at its coordinator; return whether there was one."""
        try:
            self._added_by.add(await self._coordinated(lambda node_id: self._send_end(node_id, commit=commit)))
        except KafkaError as error:
            if severity(error_name(error)) is not Severity.ABORTABLE:
                raise
            if commit or self._added:
                raise UnknownOutcomeError("the coordinator does not know the transaction", "EndTxn") from error
            self._in_doubt = True  # it was never opened, or the request that opens it is still on its way
            return False
        return True

    async def _send_end(self, node_id: int, *, commit: bool) -> None:
        if not commit:
            await self._requests.end(node_id, commit=commit)
            return
        points = self._crash_points
        asked = asyncio.ensure_future(self._requests.end(node_id, commit=commit))
        try:
            if points.armed(crash.END_TXN_SENT):
                await self.cluster.written(node_id, asked)
            points.reach(crash.END_TXN_SENT)
            await asked
        finally:
            asked.cancel()
        points.reach(crash.END_TXN_ACKNOWLEDGED)

    def _raise_if_moved(self) -> None:
        """Raise UnknownOutcomeError if the coordinator may not have known all partitions that it had to end.

        A coordinator without followers may have confirmed partitions that its successor does not have, and those get no
        marker (docs/upstream.md).
        """
        if len(self._added_by) > 1:
            raise UnknownOutcomeError("the coordinator moved within the transaction: parts may be open", "EndTxn")

    async def discard(self) -> None:
        """Drop the producer without another request. The next InitProducerId, or the broker, ends its transaction."""
        if self.state is State.CLOSED:
            return
        self._advance(Event.CLOSE)
        self._outgoing.clear()
        for hide in self._hide:
            hide()
        await self.cluster.close()

    def reach(self, point: str) -> None:
        self._crash_points.reach(point)

    async def _find_coordinator(self, group: str | None) -> int:
        name = self.transactional_id if group is None else group
        return await self.cluster.coordinator(name, transactional=group is None)

    async def _coordinated(self, request: Callable[[int], Awaitable[None]], group: str | None = None) -> int:
        """Send a request to a coordinator until it is carried out; return which one did.

        Args:
            group: whose coordinator; None for the transaction's.

        Raises KafkaError: it is refused for good.
        """
        concurrent_s = CONCURRENT_BACKOFF_S
        while True:
            try:
                node_id = self._coordinators.get(group)
                if node_id is None:
                    node_id = self._coordinators[group] = await self._find_coordinator(group)
                await request(node_id)
            except KafkaError as error:
                if not _asks_to_repeat(error):
                    raise
                if isinstance(error, ConcurrentTransactions):
                    await asyncio.sleep(concurrent_s)
                    concurrent_s = min(2 * concurrent_s, RETRY_BACKOFF_S)
                    continue
                self._coordinators.pop(group, None)
                await asyncio.sleep(RETRY_BACKOFF_S)
            else:
                return node_id

    def _in_time(self, what: str) -> AbstractAsyncContextManager[None]:
        """Work within the open transaction's deadline."""
        begun_s = time.monotonic() if self._begun_s is None else self._begun_s
        return self._until(begun_s + self._transaction_s, what)

    @asynccontextmanager
    async def _until(self, deadline_s: float, what: str) -> AsyncIterator[None]:
        """Work until a deadline, and classify how it fails.

        After the deadline no answer counts, as when this process was stopped: the coordinator aborts the transaction
        under the next epoch, which need not be that of another producer.
        """
        try:
            # Not wait_for, which may swallow a cancellation that meets the answer
            async with asyncio.timeout(deadline_s - time.monotonic()):
                yield
        except TimeoutError:
            by = [f"broker {node} for {', '.join(f'{t}:{n}' for t, n in led)}" for node, led in self._pending.items()]
            who = f" by {'; '.join(by)}" if by else ""
            error: EosError = UnknownOutcomeError(f"{what} was not answered in time{who}", what)
            self._fail(error)
            raise error from None
        except (EosError, KafkaError, KafkaUnavailableError) as failure:
            error = self._classified(failure)
            if isinstance(error, FencedError) and time.monotonic() > deadline_s:
                error = UnknownOutcomeError(f"{what} was answered too late: {failure}", what)
            self._fail(error)
            if error is failure:
                raise
            raise error from failure

    def _classified(self, error: BaseException) -> EosError:
        if isinstance(error, KafkaUnavailableError):
            return UnknownOutcomeError(str(error))
        kind = classify(error)
        if isinstance(kind, FencedError) and (self._unanswered_inits or self._requests.unanswered):
            return RejoinError(f"fenced, possibly by its own request, which arrived late: {error}", kind.cause)
        return kind

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


def _asks_to_repeat(error: KafkaError) -> bool:
    return isinstance(error, NoResponseError) or severity(error_name(error)) is Severity.RETRIABLE
