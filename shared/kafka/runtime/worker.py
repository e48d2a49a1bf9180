"""Work on the input partitions that an instance has, from assignment to release, in transactions of one scope.

Partitions come and go between transactions. One that is new is restored while the others go on.

Invariant: a partition is released when no transaction with it is open. After an abort, states and positions go back to
where the transaction began.
"""

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from shared.eos.audit import Outcome
from shared.eos.crash import CrashPoints
from shared.eos.errors import GENERATION, AbortableError, EosError, FatalError, RejoinError, UnknownOutcomeError
from shared.eos.states import State
from shared.kafka.client.access import access
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import is_denied
from shared.kafka.client.fetcher import Fetcher
from shared.kafka.runtime.partition_metrics import PartitionMetrics
from shared.kafka.runtime.recovery import Torn
from shared.kafka.runtime.scope import TransactionScope, classified
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.transaction_requests import GroupMember
from shared.settings import RuntimeSettings
from shared.telemetry import metrics

ABORTS_IN_A_ROW_MAX: Final = 3  # the same batch aborting again is a defect, not bad luck
ABORT_BACKOFF_S: Final = 0.5
ABORT_S: Final = 1.0  # beyond the deadline already; the broker, or the next InitProducerId, does the same

log = logging.getLogger(__name__)


class Resource(Protocol):
    """Something that the partitions of an instance share, such as reference data. It lives as long as a membership.

    Its failure ends the membership. The next one starts it again, with the connections and credentials of that time,
    and with nothing that the previous one held.
    """

    async def start(self) -> None:
        """Get ready, before the group is joined. Raises KafkaUnavailableError."""

    async def failed(self) -> None:
        """Wait until it fails, and raise why. It has started."""

    async def stop(self) -> None:
        """End it, however far `start` came; it may be started again."""


@dataclass(frozen=True, slots=True)
class Membership:
    """An instance's membership of its group, for its workers.

    Attributes:
        identity: the member at its present epoch.
        beat: has the next heartbeat sent now.
        crash_points: for tests, counted over the whole process.
    """

    settings: RuntimeSettings
    identity: Callable[[], GroupMember]
    beat: Callable[[], None]
    crash_points: CrashPoints


class Workload(Protocol):
    """The work of a service, for the runtime."""

    @property
    def service(self) -> str:
        """The service's name, which is its consumer group as well."""

    @property
    def topic(self) -> str:
        """The input topic."""

    @property
    def resources(self) -> tuple[Resource, ...]: ...

    def workers(self, membership: Membership) -> "Workers":
        """The work of one membership, not started."""


class Workers(Protocol):
    """The work on all partitions of an instance: one worker, or one for each partition."""

    @property
    def ready(self) -> frozenset[int]:
        """The partitions that it works on: assigned, restored and not released."""

    @property
    def waits_for(self) -> str:
        """What keeps a partition from being taken over, for the operator; empty if nothing does."""

    async def start(self) -> None:
        """Fence earlier processes of this instance, before it joins. Raises EosError."""

    def assign(self, partitions: set[int]) -> None:
        """Begin to take over partitions."""

    async def revoke(self, partitions: set[int]) -> None:
        """Release partitions; return when no transaction with them is open."""

    async def run(self) -> None:
        """Work until stopped. Raises EosError, except those that are handled by an abort."""

    def stop(self) -> None:
        """Request the end of the open transaction; no further one begins."""

    async def close(self) -> None:
        """Close the connections, whatever has ended before."""


class Worker(ABC):
    """The work on partitions that share a scope. A subclass processes the records.

    Attributes:
        tasks: by partition, those that were taken over.
    """

    # Whether records below the state's next offset are skipped where the group's offset was set back; else they are
    # handed out again
    skips_processed = True

    def __init__(self, workload: Workload, membership: Membership, scope: TransactionScope) -> None:
        self._topic = workload.topic
        self._fetching = Cluster(
            access(membership.settings), client_id=f"{workload.service}-{membership.settings.instance}"
        )
        self._fetcher = Fetcher(self._fetching)
        self._membership = membership
        self._settings = membership.settings
        self._scope = scope
        self.tasks: dict[int, Task] = {}
        self._restoring: dict[int, asyncio.Task[tuple[Task, Torn | None]]] = {}
        self._leaving: set[int] = set()
        self._released = asyncio.Event()
        self._stopping = asyncio.Event()
        self._aborts = 0

    @property
    def ready(self) -> frozenset[int]:
        return frozenset(self.tasks) - self._leaving

    @property
    def waits_for(self) -> str:
        return self._scope.waits_for

    async def start(self) -> None:
        await self._scope.init()
        with classified():
            await self._fetching.open()
        await self._fetcher.start()

    def assign(self, partitions: set[int]) -> None:
        for number in partitions:
            restoring = asyncio.create_task(self._restore(number), name=f"restore-{self._topic}-{number}")
            restoring.add_done_callback(lambda _: self._fetcher.wake())
            self._restoring[number] = restoring

    async def revoke(self, partitions: set[int]) -> None:
        self._leaving |= partitions
        self._fetcher.wake()
        self._released.clear()
        await self._released.wait()

    def stop(self) -> None:
        self._stopping.set()
        self._fetcher.wake()

    async def run(self) -> None:
        try:
            while not self._stopping.is_set():
                await self._release()
                await self._take_over()
                await self._work()
            await self._let_go()
        finally:
            # A failure, or the deadline of a stop: end the transaction if that is still possible, and do not wait long
            if self._scope.producer.state in {State.IN_TRANSACTION, State.ABORTABLE_ERROR}:
                with contextlib.suppress(EosError, TimeoutError):
                    await asyncio.wait_for(self._scope.producer.abort(), timeout=ABORT_S)
            for restoring in self._restoring.values():
                self._drop(restoring)
            for task in self.tasks.values():
                self._hide(task)
            self.tasks.clear()

    async def close(self) -> None:
        await self._fetcher.stop()
        await self._fetching.close()
        await self._scope.close()

    async def _input(self, timeout_s: float | None = None) -> None:
        """Wait for records, a change of partitions, or a stop, for `timeout_s` seconds at most."""
        with classified():
            await self._fetcher.wait(timeout_s)

    @abstractmethod
    def _new_task(self, partition: int) -> Task:
        """Make the task of a partition, its state empty."""

    @abstractmethod
    async def _work(self) -> None:
        """One round: take records and process them. An idle round ends when the fetcher wakes it."""

    async def _taken_over(self, task: Task) -> None:  # noqa: B027 # a hook
        """Hook before a partition's first record: its state is restored."""

    async def _let_go(self) -> None:  # noqa: B027 # a hook
        """Hook after the last round, when it was asked to stop."""

    async def _release(self) -> None:
        """Release what is to be given back. No transaction is open."""
        for number in self._leaving:
            if (restoring := self._restoring.pop(number, None)) is not None:
                self._drop(restoring)
            if (task := self.tasks.pop(number, None)) is not None:
                self._hide(task)
        self._leaving.clear()
        self._released.set()

    def _drop(self, restoring: "asyncio.Task[tuple[Task, Torn | None]]") -> None:
        """End a restore, or forget what it has restored."""
        if not restoring.cancel() and not restoring.cancelled() and restoring.exception() is None:
            self._hide(restoring.result()[0])

    def _hide(self, task: Task) -> None:
        self._fetcher.remove(task.target)
        if task.shown is not None:
            task.shown.hide()

    async def _restore(self, number: int) -> tuple[Task, Torn | None]:
        begun_s = time.monotonic()
        task = self._new_task(number)
        task.shown = shown = PartitionMetrics(self._fetcher, task.target, task.store)
        try:
            torn = await self._scope.recover(task, skips_processed=self.skips_processed, progress=shown.restoring)
        except BaseException:
            shown.hide()
            raise
        metrics.RESTORE_SECONDS.observe(time.monotonic() - begun_s)
        return task, torn

    async def _take_over(self) -> None:
        """Begin to work on the partitions that have been restored."""
        for number, restoring in list(self._restoring.items()):
            if not restoring.done():
                continue
            task, torn = restoring.result()
            if torn is not None:
                await self._scope.complete(task, torn)
            await self._taken_over(task)
            del self._restoring[number]
            self._fetcher.add(task.target, task.next_offset)
            self.tasks[number] = task
            log.info("partition taken over", extra={**self._context(task), "offset": task.next_offset})

    def _context(self, task: Task) -> dict[str, object]:
        """Which partition, and under which ids it is worked on, for logs."""
        return {"topic": task.topic, "partition": task.partition, **self._scope.context}

    async def _rewind(self, firsts: Mapping[Task, int], error: AbortableError) -> None:
        """Abort, and go back to where the transaction began.

        Args:
            firsts: the tasks of the transaction, and the offset of the first record that each took.

        Raises EosError for a denial, at once. It would be denied again, and a transaction to which no partition could
        be added cannot even be aborted. The next InitProducerId settles what there is.
        """
        if is_denied(error):
            raise error
        for task, first in firsts.items():
            log.warning("transaction aborted", extra={**self._context(task), "offset": first, "reason": str(error)})
        await self._scope.abort(firsts, error.cause)
        self._seek(firsts)
        if error.cause in GENERATION:
            self._membership.beat()  # its answer says what the member has now, or that it is none
        else:
            self._aborts += 1
        if self._aborts >= ABORTS_IN_A_ROW_MAX:
            places = ", ".join(f"{task.topic}:{task.partition}:{first}" for task, first in firsts.items())
            raise FatalError(f"the batch at {places} aborted {self._aborts} times: {error}") from error
        # A batch that was just refused would be refused again: give the brokers time, and monitoring a count to see
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), ABORT_BACKOFF_S)

    def _seek(self, firsts: Mapping[Task, int]) -> None:
        for task, first in firsts.items():
            self._fetcher.add(task.target, first)

    async def _resolve(self, firsts: Mapping[Task, int], error: UnknownOutcomeError) -> dict[Task, Outcome]:
        """Find out how the transaction ended for each task, and go on from there. Raises EosError."""
        log.warning("outcome unknown", extra={**self._scope.context, "reason": str(error)})
        ended = await self._scope.resolve(self.tasks.values())
        self._seek({task: firsts[task] for task, outcome in ended.items() if outcome is Outcome.ABORTED})
        torn = {task.partition for task, outcome in ended.items() if outcome is Outcome.TORN}
        for number in torn:
            self._hide(self.tasks.pop(number))
        self.assign(torn)
        log.info("outcome found", extra={"ended": {str(task): outcome.value for task, outcome in ended.items()}})
        return ended


class WorkerPerPartition:
    """A worker, with a scope of its own, for each partition. One that must drop its state takes over again by itself.

    Args:
        make: the worker of a partition, not started.
        stop_deadline_s: seconds to end the transactions of partitions that are released.
    """

    def __init__(self, make: Callable[[int], Worker], stop_deadline_s: float) -> None:
        self._make = make
        self._stop_deadline_s = stop_deadline_s
        self._workers: dict[int, Worker] = {}
        self._working: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stopping = asyncio.Event()

    @property
    def ready(self) -> frozenset[int]:
        return frozenset(number for number, worker in self._workers.items() if worker.ready)

    @property
    def waits_for(self) -> str:
        return "; ".join(sorted({worker.waits_for for worker in self._workers.values() if worker.waits_for}))

    async def start(self) -> None:
        """Nothing is shared: each partition's worker fences its own predecessor."""

    def assign(self, partitions: set[int]) -> None:
        for number in partitions:
            self._working[number] = working = asyncio.create_task(self._work_on(number), name=f"worker-{number}")
            working.add_done_callback(self._ended)

    async def _work_on(self, number: int) -> None:
        while True:
            worker = self._workers[number] = self._make(number)
            try:
                await worker.start()
                worker.assign({number})
                await worker.run()
            except RejoinError as error:
                if is_denied(error):
                    raise
                if self._workers.get(number) is not worker:
                    return  # revoked meanwhile: another instance takes it over
                log.warning("partition is taken over again", extra={"partition": number, "reason": str(error)})
            else:
                return
            finally:
                await worker.close()
            await asyncio.sleep(ABORT_BACKOFF_S)

    def _ended(self, working: "asyncio.Task[None]") -> None:
        if not working.cancelled() and not self._failed.done() and (error := working.exception()) is not None:
            self._failed.set_exception(error)

    async def revoke(self, partitions: set[int]) -> None:
        await self._until_ended(self._release(partitions))

    def _release(self, partitions: set[int]) -> "set[asyncio.Task[None]]":
        """Request the end of the work on partitions, and return the tasks that end."""
        released = set()
        for number in partitions:
            working, worker = self._working.pop(number), self._workers.pop(number, None)
            if worker is not None and worker.ready:
                worker.stop()
            else:
                working.cancel()  # still taking over: no transaction is open
            released.add(working)
            self._ending.add(working)
            working.add_done_callback(self._ending.discard)
        return released

    async def _until_ended(self, ending: "set[asyncio.Task[None]]") -> None:
        """Wait for tasks. Those that are late are cancelled, or all of them where this is cancelled."""
        if not ending:
            return
        late = ending
        try:
            _, late = await asyncio.wait(ending, timeout=self._stop_deadline_s)
        finally:
            for working in late:
                working.cancel()
            if late:
                log.warning("transactions not ended before the deadline", extra={"partitions": len(late)})
                await asyncio.wait(late)

    async def run(self) -> None:
        stopping: asyncio.Future[Any] = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait([stopping, self._failed], return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
        finally:
            stopping.cancel()
            self._release(set(self._working))
            # Those of a revocation that is under way as well: a stop ends it
            await self._until_ended(set(self._ending))

    def stop(self) -> None:
        self._stopping.set()

    async def close(self) -> None:
        """Each worker has closed its own."""
