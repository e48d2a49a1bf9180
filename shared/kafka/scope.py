"""A transaction scope: the input partition, its handler, its producer. One transaction after another.

What holds: outputs, dead letters, changelog and consumed offset are in one transaction; the store's changes merge only
after its commit was acknowledged; after an abort, state and position go back to the batch's own first offset; only
`take_over` ever initialises the transactional.id. It must not know what the records mean.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError

from shared.eos import crash
from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError, EosError, FatalError, UnknownOutcomeError
from shared.eos.progress import NEXT_OFFSET_KEY, NextOffset, encode_next_offset, start_offset
from shared.eos.records import Handler, Output, Record
from shared.eos.safety import transactional_id
from shared.eos.states import State
from shared.events.headers import SOURCE, Coordinates
from shared.kafka.changelog import restore
from shared.kafka.errors import KafkaUnavailableError, classify
from shared.kafka.producer import TransactionalProducer
from shared.settings import RuntimeSettings
from shared.telemetry import metrics

POLL_MS = 200  # how long an idle poll waits; it bounds how late a stop is noticed
ABORTS_IN_A_ROW_MAX = 3  # the same batch aborting again is a defect, not bad luck
ABORT_S = 1.0  # beyond the deadline already; an heir's InitProducerId does the same
INIT_DEADLINE_S = 60.0  # the coordinator may itself be failing over
REST_RATIO = 4.0  # rest to work, where there is no backlog
CHUNK_RECORDS = 500  # processed at a stretch before the event loop gets its turn for heartbeats and other partitions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pipeline:
    """What a service's scopes have in common.

    Attributes:
        service: its name, which is its consumer group as well.
        topic: the input topic.
        changelog: the topic of its state, partitioned like the input.
        handler: makes the handler of a partition.
        observe: called with the outputs of each committed transaction, for the service's own metrics; None keeps none.
        beside: what must keep running beside the scopes; each one ends by raising, and the service with it.
    """

    service: str
    topic: str
    changelog: str
    handler: Callable[[int], Handler]
    observe: Callable[[list[Output]], None] | None = None
    beside: tuple[Callable[[], Awaitable[NoReturn]], ...] = ()


class Scope:
    """One input partition's work, from assignment to revocation.

    Args:
        pipeline: the service's.
        partition: the input partition.
        consumer: the group's consumer; this scope polls its own partition only.
        settings: the service's.
        crash_points: for tests, counted over all scopes of the process.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        partition: int,
        consumer: Any,
        settings: RuntimeSettings,
        crash_points: CrashPoints,
    ) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._consumer = consumer
        self._target = TopicPartition(pipeline.topic, partition)
        self._partition = partition
        self._handler = pipeline.handler(partition)
        self._producer = TransactionalProducer(
            settings.bootstrap_servers,
            transactional_id(settings.transactional_id, pipeline.service, pipeline.topic, partition),
            settings.transaction_timeout_ms,
            crash_points,
        )
        self._stopping = asyncio.Event()
        self._next_offset = 0
        self._aborts = 0
        self.ready = False

    def stop(self) -> None:
        """Ask for the end of the open transaction; no further one begins."""
        self._stopping.set()

    async def run(self) -> None:
        """Take over the partition and work until stopped.

        Raises:
            EosError: abortable ones are dealt with; every other ends the scope and with it the session.
        """
        try:
            await self._take_over()
            while not self._stopping.is_set():
                records = await self._poll(POLL_MS)
                if records:
                    begun = time.monotonic()
                    await self._transaction(records)
                    await self._rest(time.monotonic() - begun, self._next_offset - records[0].offset)
        finally:
            # A failure, or the deadline of a stop: end the transaction if that is still possible, and do not wait long
            if self._producer.state in {State.IN_TRANSACTION, State.ABORTABLE_ERROR}:
                with contextlib.suppress(EosError, TimeoutError):
                    await asyncio.wait_for(self._producer.abort(), timeout=ABORT_S)
            await self._producer.discard()

    async def _rest(self, taken_s: float, passed: int) -> None:
        """Let input gather where there is no backlog.

        Small transactions back to back take the brokers' time from each other, and each takes longer then. Resting in
        proportion to how long the last one took finds the rate that the brokers can bear.

        Args:
            taken_s: by the last transaction.
            passed: offsets that it passed.
        """
        rest_s = min(taken_s * REST_RATIO, self._settings.transaction_rest_max_ms / 1000)
        if rest_s > 0 and self._lag() <= passed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), rest_s)

    async def _take_over(self) -> None:
        """The steps of an assignment, in the order that leaves no gap.

        1. InitProducerId: fences the predecessor and settles its transaction.
        2. The committed offset, which is final only now.
        3. The state, from the changelog up to its end, which is final only now.
        4. Seek to the larger of the two.
        5. Resume.
        """
        begun = time.monotonic()
        await self._producer.init(INIT_DEADLINE_S)
        try:
            committed = await self._consumer.committed(self._target)
            restored = await restore(
                self._settings.bootstrap_servers,
                self._pipeline.changelog,
                self._partition,
                self._handler.store,
            )
            beginning = (await self._consumer.beginning_offsets([self._target]))[self._target]
        except KafkaError as error:
            raise classify(error) from error
        except KafkaUnavailableError as error:
            raise UnknownOutcomeError(str(error)) from error
        self._next_offset = start_offset(committed, restored.next_offset, beginning)
        self._consumer.seek(self._target, self._next_offset)
        # The client looked for an offset by itself and may have noted that there is none: the seek has settled it
        with contextlib.suppress(NoOffsetForPartitionError):
            await self._consumer.getmany(self._target, timeout_ms=0)
        self._consumer.resume(self._target)
        self.ready = True
        seconds = time.monotonic() - begun
        metrics.RESTORE_SECONDS.observe(seconds)
        metrics.RESTORED_RECORDS.inc(restored.records)
        producer_id, epoch = self._producer.epoch
        log.info(
            "partition taken over",
            extra={
                "topic": self._pipeline.topic,
                "partition": self._partition,
                "offset": self._next_offset,
                "restored": restored.records,
                "seconds": round(seconds, 3),
                "producer_id": producer_id,
                "producer_epoch": epoch,
            },
        )

    async def _poll(self, timeout_ms: int) -> list[Any]:
        try:
            polled = await self._consumer.getmany(self._target, timeout_ms=timeout_ms)
        except KafkaError as error:
            raise classify(error) from error
        records: list[Any] = polled.get(self._target, [])
        return records

    async def _transaction(self, records: list[Any]) -> None:
        """One transaction over these records and what follows while it is open; rewinds if it must be aborted."""
        first = records[0].offset
        observed: list[Output] = []
        try:
            await self._producer.begin()
            next_offset, consumed = await self._fill(records, observed)
            await self._finish(next_offset)
        except AbortableError as error:
            await self._rewind(first, error)
            return
        self._aborts = 0
        self._next_offset = next_offset
        self._handler.store.commit()
        metrics.RECORDS_CONSUMED.labels(self._pipeline.topic).inc(consumed)
        metrics.RECORDS_LAG.labels(self._pipeline.topic, str(self._partition)).set(self._lag())
        if self._pipeline.observe is not None:
            self._pipeline.observe(observed)

    async def _fill(self, records: list[Any], observed: list[Output]) -> tuple[int, int]:
        """Process records until the input runs dry or the transaction has been open for long enough."""
        deadline = time.monotonic() + self._settings.transaction_open_ms / 1000
        next_offset = self._next_offset
        consumed = 0
        while True:
            for start in range(0, len(records), CHUNK_RECORDS):
                self._process(records[start : start + CHUNK_RECORDS], observed)
                await asyncio.sleep(0)
            consumed += len(records)
            next_offset = max(next_offset, records[-1].offset + 1)
            if time.monotonic() >= deadline or self._stopping.is_set():
                return next_offset, consumed
            records = await self._poll(0)
            if not records:
                return next_offset, consumed

    def _process(self, records: list[Any], observed: list[Output]) -> None:
        process = self._handler.process
        outputs: list[Output] = []
        for r in records:
            if r.offset >= self._next_offset:
                record = Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
                outputs += process(record)
        self._producer.append(outputs, time.time_ns() // 1_000_000)
        if self._pipeline.observe is not None:
            observed += outputs

    async def _finish(self, next_offset: int) -> None:
        """Changelog, records, offset, commit: in this order, each one awaited."""
        producer, pipeline = self._producer, self._pipeline
        source = Coordinates(pipeline.topic, self._partition, next_offset - 1).encode()
        headers = ((SOURCE, source),)
        changes = [
            Output(pipeline.changelog, self._partition, key, value, headers)
            for key, value in self._handler.store.changes()
        ]
        progress = encode_next_offset(NextOffset(next_offset))
        changes.append(Output(pipeline.changelog, self._partition, NEXT_OFFSET_KEY, progress, headers))
        producer.append(changes, time.time_ns() // 1_000_000)
        producer.reach(crash.BEFORE_SEND)
        await producer.flush()
        producer.reach(crash.AFTER_SEND)
        await producer.send_offsets(pipeline.service, {(pipeline.topic, self._partition): next_offset})
        producer.reach(crash.AFTER_OFFSETS)
        await producer.commit()

    async def _rewind(self, first: int, error: EosError) -> None:
        self._aborts += 1
        log.warning(
            "transaction aborted",
            extra={
                "topic": self._pipeline.topic,
                "partition": self._partition,
                "offset": first,
                "reason": str(error),
            },
        )
        await self._producer.abort()
        self._handler.store.rollback()
        if self._aborts >= ABORTS_IN_A_ROW_MAX:
            raise FatalError(
                f"the batch at {self._pipeline.topic}:{self._partition}:{first} aborted {self._aborts} times: {error}"
            ) from error
        self._consumer.seek(self._target, first)

    def _lag(self) -> int:
        """Offsets between the position and the last stable offset, as of the last fetch."""
        stable = self._consumer.last_stable_offset(self._target)
        return 0 if stable is None else max(stable - self._next_offset, 0)
