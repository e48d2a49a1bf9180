"""One input partition owned by an instance, from assignment to revocation: taken over, worked on, released.

Invariant: a transaction has all outputs and the consumed offset. After an abort, state and position go back to where
the transaction began. Only `_take_over` initialises the transactional.id. A subclass processes the records.
"""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError

from shared.eos.crash import CrashPoints
from shared.eos.errors import EosError, FatalError
from shared.eos.progress import start_offset
from shared.eos.states import State
from shared.eos.store import Change, Store
from shared.kafka.admin.coordinator_state import Wait, explained_wait
from shared.kafka.client.access import access
from shared.kafka.client.errors import classify, is_denied
from shared.kafka.client.leaving import forget
from shared.kafka.runtime.owned import OwnedPartition, classified
from shared.kafka.runtime.partition_metrics import PartitionMetrics
from shared.kafka.runtime.recovery import Restored
from shared.settings import RuntimeSettings
from shared.telemetry import metrics

POLL_MS = 200  # how long an idle poll waits; it bounds how late a stop is noticed
ABORTS_IN_A_ROW_MAX = 3  # the same batch aborting again is a defect, not bad luck
ABORT_BACKOFF_S = 0.5
ABORT_S = 1.0  # beyond the deadline already; the new owner's InitProducerId does the same
INIT_DEADLINE_S = 60.0  # the coordinator may itself be failing over
REST_RATIO = 4.0  # pause to work, where there is no backlog

log = logging.getLogger(__name__)


class Beside(Protocol):
    """A resource of the scopes besides their input, such as reference data. It lives as long as one group membership.

    Its failure ends the membership. The next one starts it again, with the connections and credentials of that time,
    and with nothing that the previous one held.
    """

    async def start(self) -> None:
        """Get ready, before the group is joined. Raises KafkaUnavailableError."""

    def check(self) -> None:
        """Raise the error that ended it. It has not failed before it has started."""

    async def stop(self) -> None:
        """End it, however far `start` came; it may be started again."""


class Workload(Protocol):
    """The work of a service, for the runtime."""

    @property
    def service(self) -> str:
        """The service's name, which is its consumer group as well."""

    @property
    def topic(self) -> str:
        """The input topic."""

    @property
    def beside(self) -> tuple[Beside, ...]: ...

    def scope(
        self, partition: int, consumer: Any, settings: RuntimeSettings, crash_points: CrashPoints
    ) -> "PartitionScope":
        """The work on one input partition.

        Args:
            consumer: the group's consumer; a scope polls its own partition only.
            crash_points: for tests, counted over all scopes of the process.
        """


class PartitionScope(OwnedPartition, ABC):
    """One input partition's work: a transaction scope with a producer of its own.

    Args:
        changelog: the topic of its state, partitioned like the input.
        store: the partition's state, empty.
    """

    # Whether records below the state's next offset are skipped where the group's offset was set back; else they are
    # handed out again
    skips_processed = True

    def __init__(
        self,
        workload: Workload,
        changelog: str,
        store: Store,
        partition: int,
        consumer: Any,
        settings: RuntimeSettings,
        crash_points: CrashPoints,
    ) -> None:
        super().__init__(workload.service, workload.topic, partition, changelog, store, settings, crash_points)
        self.partition = partition
        self._consumer = consumer
        self._target = TopicPartition(workload.topic, partition)
        self._stopping = asyncio.Event()
        self._aborts = 0
        self._shown = PartitionMetrics(consumer, self._target, store)
        self.ready = False  # whether the partition was taken over
        self.waits_for = ""  # what keeps it from being taken over, for the operator
        self.beat_s = time.monotonic()  # its last progress: a round, a page of a restore, a poll while it waits

    def stop(self) -> None:
        """Request the end of the open transaction; no further one begins."""
        self._stopping.set()

    async def run(self) -> None:
        """Take over the partition and work until stopped.

        Raises EosError, except abortable ones, which are handled here. It ends the scope and with it the session.
        """
        try:
            await self._take_over()
            while not self._stopping.is_set():
                self.beat_s = time.monotonic()
                await self._work()
            await self._let_go()
        finally:
            # A failure, or the deadline of a stop: end the transaction if that is still possible, and do not wait long
            if self._producer.state in {State.IN_TRANSACTION, State.ABORTABLE_ERROR}:
                with contextlib.suppress(EosError, TimeoutError):
                    await asyncio.wait_for(self._producer.abort(), timeout=ABORT_S)
            self._shown.hide()
            await self._producer.discard()

    @abstractmethod
    async def _work(self) -> None:
        """One round: poll and process. An idle round ends within POLL_MS."""

    async def _taken_over(self) -> None:
        """Hook before the first round: state is restored, no record was read yet."""

    async def _let_go(self) -> None:
        """Hook after the last round, when it was asked to stop."""

    async def _take_over(self) -> None:
        """The steps of an assignment, in the order that leaves no gap.

        1. InitProducerId: fences the predecessor and settles its transaction.
        2. The committed offset, which is final only now.
        3. The state, from the changelog up to its end, which is final only now.
        4. The predecessor's last transaction, completed if the brokers tore it.
        5. Seek to the larger of offset and state.
        6. Resume.
        """
        begun = time.monotonic()
        async with explained_wait(access(self._settings), self._producer.transactional_id, self._wait_for):
            await self._producer.init(INIT_DEADLINE_S)
        recovered = await self._recover()
        with classified():
            beginning = (await self._consumer.beginning_offsets([self._target]))[self._target]
        next_offset = recovered.restored.next_offset if self.skips_processed else None
        self._next_offset = start_offset(recovered.offset, next_offset, beginning)
        self._refuse_gap(beginning)
        await self._taken_over()
        self._consumer.seek(self._target, self._next_offset)
        await self._touch()
        self._consumer.resume(self._target)
        self.ready = True
        self._tell(time.monotonic() - begun, recovered.restored)

    def _changed(self, changes: Sequence[Change]) -> None:
        self._shown.changed(changes)

    def _wait_for(self, wait: Wait) -> None:
        self.waits_for = wait.reason
        self._producer.init_waits_for = (wait.coordinator, wait.state)

    def _restoring(self, done: int, total: int) -> None:
        self.beat_s = time.monotonic()
        self._shown.restoring(done, total)

    def _refuse_gap(self, beginning: int) -> None:
        if self._next_offset < beginning:
            raise FatalError(
                f"{self._topic}:{self._partition} was processed up to {self._next_offset}, and its log begins at "
                f"{beginning}: the records between have expired unprocessed. Find out what they were, then set the "
                f"offset of group {self._group} to {beginning} with kafka-consumer-groups --reset-offsets"
            )

    def _tell(self, seconds: float, restored: Restored) -> None:
        metrics.RESTORE_SECONDS.observe(seconds)
        metrics.RESTORED_RECORDS.inc(restored.records)
        log.info(
            "partition taken over",
            extra={
                **self.context,
                "offset": self._next_offset,
                "restored": restored.records,
                "seconds": round(seconds, 3),
            },
        )

    @property
    def context(self) -> dict[str, object]:
        """Which partition, and under which ids it is worked on, for logs."""
        generation = self._consumer._coordinator.generation  # noqa: SLF001 # no public access
        return {**super().context, "generation": generation}

    async def _end(self, next_offset: int) -> None:
        await super()._end(next_offset)
        self._aborts = 0

    async def _poll(self, timeout_ms: int, records_max: int | None = None) -> list[Any]:
        """Poll records; none when `timeout_ms` have passed or the scope is to stop.

        In a rebalance the client's own poll would wait for the next assignment, which waits until this scope has ended.
        """
        if self._stopping.is_set():
            return []
        polling = self._consumer.getmany(self._target, timeout_ms=timeout_ms, max_records=records_max)
        try:
            polled = await (self._until_stopped(polling) if timeout_ms else polling)
        except KafkaError as error:
            raise classify(error) from error
        records: list[Any] = polled.get(self._target, [])
        return records

    async def _until_stopped(
        self, polling: Awaitable[dict[TopicPartition, list[Any]]]
    ) -> dict[TopicPartition, list[Any]]:
        poll, stop = asyncio.ensure_future(polling), asyncio.ensure_future(self._stopping.wait())
        poll.add_done_callback(forget)
        try:
            await asyncio.wait({poll, stop}, return_when=asyncio.FIRST_COMPLETED)
            return poll.result() if poll.done() else {}
        finally:
            poll.cancel()  # it holds no records while it waits
            stop.cancel()

    async def _touch(self) -> None:
        """Poll the partition while it is paused.

        The client looked for an offset by itself and may have noted that there is none: a seek has settled it. It also
        treats a member that never polls as dead (max.poll.interval.ms).
        """
        self.beat_s = time.monotonic()
        with contextlib.suppress(NoOffsetForPartitionError):
            await self._consumer.getmany(self._target, timeout_ms=0)

    async def _position(self) -> int:
        """The offset of the next record to be polled. Unlike the committed one it is behind transaction markers."""
        position: int = await self._consumer.position(self._target)
        return position

    async def _end_offset(self) -> int:
        """The partition's high watermark: no record beyond it was ever read."""
        try:
            end: int = (await self._consumer.end_offsets([self._target]))[self._target]
        except KafkaError as error:
            raise classify(error) from error
        return end

    async def _rewind(self, first: int, error: EosError) -> None:
        """Abort, and go back to where the transaction began.

        Raises EosError for a denial, at once. It would be denied again, and a transaction to which no partition could
        be added cannot even be aborted. The next owner's InitProducerId settles what there is.
        """
        if is_denied(error):
            raise error
        self._aborts += 1
        log.warning("transaction aborted", extra={**self.context, "offset": first, "reason": str(error)})
        await self._producer.abort(error.cause)
        self._roll_back()
        if self._aborts >= ABORTS_IN_A_ROW_MAX:
            raise FatalError(
                f"the batch at {self._topic}:{self._partition}:{first} aborted {self._aborts} times: {error}"
            ) from error
        self._consumer.seek(self._target, first)
        # A batch that was just refused would be refused again: give the brokers time, and monitoring a count to see
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), ABORT_BACKOFF_S)

    async def _rest(self, taken_s: float, passed: int) -> None:
        """Pause to let input gather where there is no backlog.

        Small transactions back to back take the brokers' time from each other, and each then takes longer. A pause in
        proportion to the duration of the last transaction finds the rate that the brokers can bear. `passed` is the
        number of offsets that it passed.
        """
        rest_s = min(taken_s * REST_RATIO, self._settings.transaction_rest_max_ms / 1000)
        if rest_s > 0 and (self._shown.lag() or 0) <= passed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), rest_s)
