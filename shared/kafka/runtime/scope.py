"""Transactions over input partitions that share a producer: all of an instance's, or one alone.

A transaction has the outputs of each of its tasks, their states' changes, a note of itself in each changelog, and the
consumed offsets. Zombies are fenced twice: by the producer's epoch (KIP-98), and by the member's epoch in its group,
with which the offsets are committed (KIP-447).

Invariant: a state's changes merge only when it is certain that their transaction was committed. Where no answer says
so, the committed offsets and the markers in the logs do.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from aiokafka.errors import KafkaError

from shared.eos import crash
from shared.eos.audit import Outcome, TornTransactionError, raise_if_state_lost
from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError, FatalError, RejoinError, UnknownOutcomeError
from shared.eos.progress import (
    NEXT_OFFSET_KEY,
    CommittedOffset,
    TransactionId,
    TransactionNote,
    encode_next_offset,
    offset_metadata,
    start_offset,
)
from shared.eos.records import Output
from shared.events.catalogue import TOPICS
from shared.events.headers import Headers
from shared.kafka.admin.coordinator_state import Wait, explained_wait
from shared.kafka.client.access import access
from shared.kafka.client.batches import CorruptBatchError
from shared.kafka.client.cluster import EARLIEST, Cluster
from shared.kafka.client.errors import KafkaUnavailableError, classify
from shared.kafka.client.parts import left_open
from shared.kafka.client.reader import OnProgress, committed_at
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.recovery import Restored, Torn, find_torn, how_ended, restore
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.transaction_requests import GroupMember
from shared.settings import RuntimeSettings
from shared.telemetry import metrics

INIT_DEADLINE_S: Final = 60.0  # the coordinator may itself be failing over
STATE_DEADLINE_S: Final = 10.0
"""How long a new owner waits for a changelog that ends before the transaction that committed the offset: its leader may
have been cut off, and not yet know it."""
STATE_POLL_S: Final = 0.2

log = logging.getLogger(__name__)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class TransactionScope:
    """A producer, and the transactions of its tasks.

    Args:
        group: the service, which is its consumer group as well.
        topic: the input.
        transactional_id: no other scope's.
        member: the member of the group at its present epoch; asked when offsets are committed.
        outputs: the topics that its transactions write to.
        version_max: as for the producer.
    """

    def __init__(
        self,
        group: str,
        topic: str,
        transactional_id: str,
        settings: RuntimeSettings,
        crash_points: CrashPoints,
        member: Callable[[], GroupMember],
        *,
        outputs: Iterable[str] = (),
        version_max: int = 2,
    ) -> None:
        self._group = group
        self._topic = topic
        self._transactional_id = transactional_id
        self._settings = settings
        self._crash_points = crash_points
        self._member = member
        self._outputs = list(outputs) or [topic.name for topic in TOPICS if group in topic.writers]
        self._version_max = version_max
        self.producer = self._new_producer()
        self.waits_for = ""  # what keeps InitProducerId from being answered, for the operator
        self._begun_ms = self._stamp_ms = 0

    def _new_producer(self) -> TransactionalProducer:
        return TransactionalProducer(
            access(self._settings),
            self._transactional_id,
            self._settings.transaction_timeout_ms,
            self._crash_points,
            version_max=self._version_max,
        )

    async def init(self) -> None:
        """Fence the predecessor, settle its transaction, and close what brokers left open of it; raises EosError."""
        async with explained_wait(access(self._settings), self._transactional_id, self._wait_for):
            await self.producer.init(INIT_DEADLINE_S)
        self.waits_for = ""
        with classified():
            targets = await left_open(self.producer.cluster, self._outputs, self.producer.epoch[0])
        if targets:
            log.warning("transaction without a marker aborted", extra={**self.context, "partitions": targets})
        # The marker of a producer's transaction ends everything that the producer has open in the partition. The
        # group's offsets are always among them: to see what is open there takes the right to read them of all groups
        await self.begin()
        self.producer.append([Output(*target, b"closed", None, ()) for target in targets], self._stamp_ms)
        await self.producer.flush()
        await self.producer.send_offsets(GroupMember(self._group), {(self._topic, 0): 0})
        await self.producer.abort()

    def _wait_for(self, wait: Wait) -> None:
        self.waits_for = wait.reason
        self.producer.init_waits_for = (wait.coordinator, wait.state)

    async def recover(
        self, task: Task, *, skips_processed: bool = True, progress: OnProgress = lambda *_: None
    ) -> Torn | None:
        """Read a task's offset and state, in an order that leaves no gap.

        1. The committed offset, when no transaction that commits it is open (KIP-447).
        2. The state, from the changelog up to its end, when no transaction in it is open.
        3. The markers of the last transaction, which brokers may have torn.

        Args:
            skips_processed: whether records below the state's next offset are skipped where the group's offset was set
                back; else they are handed out again.
            progress: offsets of the changelog read, and to be read in all.

        Returns:
            A torn transaction, to be passed to `complete`.

        Raises:
            TornTransactionError: it cannot be completed, or the state is older than the offset.
            EosError: as classified.
        """
        with classified():
            async with Cluster(access(self._settings)) as cluster:
                committed = await committed_at(cluster, self._group, *task.target)
                restored = Restored(task.store, task.written)
                await self._restore(cluster, task, restored, committed, progress)
                torn = await find_torn(cluster, task, restored, committed)
                await cluster.partitions([task.topic])
                beginning = (await cluster.offsets([task.target], EARLIEST))[task.target]
        metrics.RESTORED_RECORDS.inc(restored.records)
        if torn is not None:
            changes = [output for output in torn.outputs if output.topic == task.changelog]
            restored.complete([(output.key or b"", output.value) for output in changes], torn.noted)
        task.restored(restored.committed, restored.sources, committed)
        # Another machine's clock may be ahead: transactions of a partition are ordered by their times
        noted = [one.ended_ms for one in (restored.kept, *restored.passed_over) if one is not None]
        self._stamp_ms = max([self._stamp_ms, *noted])
        if torn is None:
            offset = None if committed is None else committed.offset
            task.next_offset = start_offset(offset, restored.next_offset if skips_processed else None, beginning)
            raise_if_gap(task, beginning)
        return torn

    async def _restore(
        self, cluster: Cluster, task: Task, restored: Restored, committed: CommittedOffset | None, progress: OnProgress
    ) -> None:
        deadline_s = time.monotonic() + STATE_DEADLINE_S
        while True:
            await restore(cluster, (task.changelog, task.partition), restored, progress)
            try:
                kept, aborted = restored.kept, [one.id for one in restored.passed_over]
                raise_if_state_lost(str(task), committed, None if kept is None else kept.id, aborted)
            except TornTransactionError:
                if time.monotonic() > deadline_s:
                    raise
                await cluster.refresh()
                await asyncio.sleep(STATE_POLL_S)
            else:
                return

    async def complete(self, task: Task, torn: Torn) -> None:
        """Write the aborted parts of a torn transaction again, with its offset, in one transaction; raises EosError."""
        begun_s = time.monotonic()
        task.next_offset = torn.transaction.first_offset
        await self.commit_alone(task, torn.outputs, torn.noted.next_offset, completes=torn.transaction)
        metrics.TORN_TRANSACTIONS.inc()
        log.warning(
            "torn transaction completed",
            extra={
                **self.context,
                "topic": task.topic,
                "partition": task.partition,
                "first_offset": torn.transaction.first_offset,
                "next_offset": torn.noted.next_offset,
                "parts": torn.described,
                "records": len(torn.outputs),
                "seconds": round(time.monotonic() - begun_s, 3),
            },
        )

    @property
    def context(self) -> dict[str, object]:
        """The ids that it works under, for logs."""
        producer_id, epoch = self.producer.epoch
        return {
            "transactional_id": self._transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "member_epoch": self._member().epoch,
        }

    async def begin(self) -> None:
        """Begin a transaction; none of its records is as old as any of an earlier one."""
        await self.producer.begin()
        self._stamp_ms = self._begun_ms = max(now_ms(), self._stamp_ms + 1)

    def append(self, task: Task, outputs: Sequence[Output]) -> None:
        """Append a task's records to the open transaction; AbortableError if one is larger than any topic accepts."""
        task.count(outputs)
        self._stamp_ms = max(now_ms(), self._stamp_ms)
        self.producer.append(outputs, self._stamp_ms)

    async def commit(
        self,
        progress: Mapping[Task, int],
        headers: Callable[[Task, int], Headers] = lambda *_: (),
        *,
        completes: TransactionNote | None = None,
    ) -> None:
        """Append the states' changes, send everything with the offsets, commit, and merge.

        Args:
            progress: the tasks of the transaction, and the next offset of each.
            headers: of the changes, by task and next offset.
            completes: as in `TransactionNote`.

        Raises:
            AbortableError: it was refused: abort it.
            UnknownOutcomeError: call `resolve`.
            EosError: as classified.
        """
        self._close(progress, headers, completes)
        await self._send(progress)
        await self.producer.commit()
        for task in progress:
            task.commit()

    def _close(
        self,
        progress: Mapping[Task, int],
        headers: Callable[[Task, int], Headers],
        completes: TransactionNote | None,
    ) -> None:
        """Append changes and notes; the notes last, as they count all records, and under one time, as they say when."""
        self._raise_if_unnamed(progress)
        transaction = self._transaction_id()
        for task, next_offset in progress.items():
            task.begin().next_offset = next_offset
            changes = task.changes(headers(task, next_offset))
            self._stamp_ms = max(now_ms(), self._stamp_ms)
            self.producer.append(changes, self._stamp_ms)
        for task, next_offset in progress.items():
            value = encode_next_offset(task.note(transaction, self._stamp_ms, completes=completes))
            note = Output(task.changelog, task.partition, NEXT_OFFSET_KEY, value, headers(task, next_offset))
            self.producer.append([note], self._stamp_ms)

    def _raise_if_unnamed(self, tasks: Iterable[Task]) -> None:
        """Refuse topics in which the next owner would not look for what brokers left open."""
        unnamed = {topic for task in tasks for topic in task.begin().records}.difference(self._outputs)
        if unnamed:
            raise FatalError(
                f"{self._group} writes to {', '.join(sorted(unnamed))}: name all topics that it writes to in "
                "`Pipeline.outputs`, or with it as their writer in the topic catalogue"
            )

    def _transaction_id(self) -> TransactionId:
        return TransactionId(*self.producer.epoch, self._begun_ms)

    async def _send(self, progress: Mapping[Task, int]) -> None:
        """Send what was appended, then the offsets, each awaited: all of a transaction except its end."""
        producer = self.producer
        producer.reach(crash.BEFORE_SEND)
        await producer.flush()
        producer.reach(crash.AFTER_SEND)
        offsets = {task.target: next_offset for task, next_offset in progress.items()}
        await producer.send_offsets(self._member(), offsets, offset_metadata(self._transaction_id()))
        producer.reach(crash.AFTER_OFFSETS)

    async def abort(self, tasks: Iterable[Task], cause: str = metrics.STOPPED) -> None:
        """Abort the open transaction, and drop what it changed; raises EosError."""
        await self.producer.abort(cause)
        for task in tasks:
            task.rollback()

    async def commit_alone(
        self,
        task: Task,
        outputs: Sequence[Output],
        next_offset: int,
        headers: Headers = (),
        *,
        completes: TransactionNote | None = None,
    ) -> None:
        """Commit outputs, a state's changes and its offset in a transaction that processes no input.

        Raises:
            RejoinError: it was refused and aborted.
            EosError: as classified.
        """
        task.drop_admitted()
        try:
            await self.begin()
            self.append(task, outputs)
            await self.commit({task: next_offset}, lambda *_: headers, completes=completes)
        except AbortableError as error:
            await self.abort([task], error.cause)
            raise RejoinError(f"the state of {task} was refused: {error}") from error

    async def resolve(self, tasks: Iterable[Task]) -> dict[Task, Outcome]:
        """Find out how the open transaction ended, without leaving the group.

        InitProducerId ends it one way or the other. Each task's offset and the markers say which. A task whose
        transaction was committed merges it, others roll back; one that was torn must recover.

        Args:
            tasks: all tasks of this producer, those without a part in the transaction included.

        Returns:
            How it ended, by task with a part in it.

        Raises:
            RejoinError: another process has worked on a task: drop all state.
            EosError: as classified.
        """
        await self.producer.discard()
        self.producer = self._new_producer()
        await self.init()
        ended: dict[Task, Outcome] = {}
        with classified():
            for task in tasks:
                found = await self._outcome(task)
                if found is Outcome.COMMITTED:
                    task.commit()
                elif task.open is not None:
                    task.rollback()
                if found is not None:
                    ended[task] = found
        return ended

    async def _outcome(self, task: Task) -> Outcome | None:
        """How the open transaction ended for a task; None where it had no part in it."""
        cluster = self.producer.cluster
        committed = await committed_at(cluster, self._group, *task.target)
        by = None if committed is None else committed.transaction
        noted = None if task.open is None else task.open.noted
        expected = {task.last}
        if noted is not None and noted.transaction is not None:
            expected.add(noted.transaction.id)
        if by not in expected:
            raise RejoinError(f"the offset of {task} is of a transaction of another process")
        if task.open is None:
            return None
        if noted is None:
            return Outcome.ABORTED  # its end was never asked for
        return await how_ended(cluster, task, noted, committed)

    async def close(self) -> None:
        """Drop the producer without another request."""
        await self.producer.discard()


def raise_if_gap(task: Task, beginning: int) -> None:
    """Raise FatalError if records that were not processed are no longer in the log, which begins at an offset."""
    if task.next_offset < beginning:
        raise FatalError(
            f"{task.topic}:{task.partition} was processed up to {task.next_offset}, and its log begins at {beginning}: "
            "the records between have expired unprocessed. Find out what they were, then set the offset of group "
            f"{task.group} to {beginning} with kafka-consumer-groups --reset-offsets"
        )


@contextmanager
def classified() -> Iterator[None]:
    """Translate errors of reading the cluster into EosErrors."""
    try:
        yield
    except KafkaError as error:
        raise classify(error) from error
    except KafkaUnavailableError as error:
        raise UnknownOutcomeError(str(error)) from error
    except CorruptBatchError as error:
        raise FatalError(str(error)) from error
