"""One membership of the consumer group, from joining to having left.

Invariant: it ends by a stop, or by the first failure of a scope, of a resource besides them, or of the group. Nothing
that it started outlives it. `runtime` decides what an end means, and whether to join again.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

from shared.eos.crash import CrashPoints
from shared.eos.errors import EosError, FatalError, FencedError, RejoinError, UnknownOutcomeError
from shared.kafka.client.access import Bootstrap, access, client_options
from shared.kafka.client.consumer import PatientConsumer
from shared.kafka.client.errors import KafkaUnavailableError, classify
from shared.kafka.client.leaving import abandon, leave
from shared.kafka.client.measured import REMOVED
from shared.kafka.runtime.partition import PartitionScope, Workload
from shared.settings import RuntimeSettings, SettingsError
from shared.telemetry import metrics
from shared.telemetry.server import Health

FETCH_BYTES = 1024 * 1024  # per partition and request: thousands of records, and a bound on what waits in memory
FETCH_WAIT_MS = 50  # a fetch under way blocks its broker's other partitions, so an empty one must be short
# The client enforces it by itself: it would leave the group in the middle of a long restore, and again in the next one.
# The progress of scopes is watched here instead (`refuse_standing`)
POLL_INTERVAL_MAX_MS = 2**31 - 1
REBALANCE_TIMEOUT_MS = 30_000
WATCH_S = 0.1
STANDING_S = 180.0  # InitProducerId has 60 s, reading offsets 30 s, a transaction's three operations 8 s each

ASSIGNMENT = "assignment"

log = logging.getLogger(__name__)


def group_member(
    brokers: Bootstrap, group: str, instance: str, session_timeout_ms: int, **options: Any
) -> PatientConsumer:
    """Make the consumer of a static group member (KIP-345), not started, that reads committed records.

    The instance is unique in the group and stable over restarts, so that it has its partitions back at once. Without a
    heartbeat for `session_timeout_ms` the group gives them to others.
    """
    return PatientConsumer(
        **client_options(brokers),
        client_id=f"{group}-{instance}",
        group_id=group,
        group_instance_id=f"{group}-{instance}",
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",  # an offset that is no longer there must not be passed over
        partition_assignment_strategy=(StickyPartitionAssignor,),
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 6,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        max_partition_fetch_bytes=FETCH_BYTES,
        **options,
    )


class Session(ConsumerRebalanceListener):  # type: ignore[misc] # the client ships no types
    def __init__(
        self, workload: Workload, settings: RuntimeSettings, health: Health, crash_points: CrashPoints
    ) -> None:
        self._workload = workload
        self._settings = settings
        self._health = health
        self._crash_points = crash_points
        self._tasks: dict[PartitionScope, asyncio.Task[None]] = {}
        self._assigned = False
        self._removed = False
        self._over = False
        self._rebalancing_s: float | None = None
        self._ending = asyncio.Lock()
        self._failed: asyncio.Future[EosError] = asyncio.get_running_loop().create_future()
        self._consumer = group_member(
            access(settings),
            workload.service,
            settings.instance,
            settings.session_timeout_ms,
            max_poll_interval_ms=POLL_INTERVAL_MAX_MS,
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set or something fails.

        Raises EosError: a scope, a resource besides them or the group failed, or the client did not end.
        """
        stopped = asyncio.ensure_future(stop.wait())
        tasks = [asyncio.ensure_future(self._belong()), asyncio.ensure_future(self._watch())]
        try:
            waited: set[asyncio.Future[Any]] = {stopped, self._failed, *tasks}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            if self._failed.done():
                raise self._failed.result()
        except KafkaError as error:
            raise classify(error) from error
        except KafkaUnavailableError as error:
            raise UnknownOutcomeError(str(error)) from error
        finally:
            for ended in (stopped, *tasks):
                ended.cancel()
            self._over = True
            await self._end_scopes()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(one.stop() for one in self._workload.beside))
            under_way = sys.exception()
            if not await self._leave() and not stop.is_set() and _rejoins(under_way):
                raise FatalError(
                    "the client did not end, so this process must not join again: it is started anew"
                ) from under_way

    async def _belong(self) -> NoReturn:
        """Start what the scopes need, and join the group. It ends by raising."""
        for one in self._workload.beside:
            await one.start()
        self._consumer.subscribe([self._workload.topic], listener=self)
        self._rebalancing_s = time.monotonic()
        await self._consumer.start()  # until partitions are assigned, whenever that is
        await asyncio.Event().wait()
        raise AssertionError("nobody ends a membership but its session")

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Only pause: the client sends no heartbeat until this returns, and a restore may outlast the session."""
        partitions = sorted(target.partition for target in assigned)
        self._consumer.pause(*(TopicPartition(self._workload.topic, partition) for partition in partitions))
        if self._over:
            return
        metrics.REBALANCES.inc()
        if self._rebalancing_s is not None:
            metrics.REBALANCE_LATENCY.observe(time.monotonic() - self._rebalancing_s)
            self._rebalancing_s = None
        metrics.ASSIGNED_PARTITIONS.set(len(partitions))
        generation = self._consumer._coordinator.generation  # noqa: SLF001 # no public access
        log.info(
            "partitions assigned",
            extra={"topic": self._workload.topic, "partitions": partitions, "generation": generation},
        )
        self._assigned = True
        for partition in partitions:
            try:
                scope = self._workload.scope(partition, self._consumer, self._settings, self._crash_points)
            except Exception as error:
                # The client would only log it, and the partition would stay paused
                if not isinstance(error, SettingsError):  # as when credentials are gone, which is no defect
                    log.exception("partition not begun", extra={"partition": partition})
                if not self._failed.done():
                    self._failed.set_result(FatalError(str(error)))
                return
            task = asyncio.create_task(scope.run(), name=f"{self._workload.service}-{partition}")
            task.add_done_callback(partial(self._scope_done, scope))
            self._tasks[scope] = task

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """End every open transaction before the partitions go, within one deadline.

        A member that the group has removed (its session timed out while it was paused, or its static id joined again)
        is a zombie: it does not rejoin, it stops. Two processes under one id would otherwise take turns for ever.
        """
        if self._over or not any(True for _ in revoked):
            return
        self._rebalancing_s = time.monotonic()
        self._removed = not self._consumer._coordinator.member_id  # noqa: SLF001 # no public access
        await self._end_scopes()
        if self._removed:
            metrics.FENCED.labels(*REMOVED).inc()
            if not self._failed.done():
                self._failed.set_result(FencedError("the group removed this member: another one has its partitions"))
            # The client would rejoin as soon as this returned
            await asyncio.Event().wait()

    def _scope_done(self, scope: PartitionScope, task: "asyncio.Task[None]") -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is None or self._failed.done():
            return
        known = isinstance(error, EosError)
        log.error("partition ended", extra={**scope.context, "reason": str(error)}, exc_info=None if known else error)
        self._failed.set_result(error if isinstance(error, EosError) else classify(error))

    async def _leave(self) -> bool:
        if not self._removed:
            return await leave(self._consumer)
        await abandon(self._consumer)
        return True

    async def _end_scopes(self) -> None:
        """End all scopes. A second caller waits for the first: nothing outlives its session."""
        async with self._ending:
            scopes, self._tasks, self._assigned = self._tasks, {}, False
            self._health.missing(ASSIGNMENT, "partitions are being assigned")
            metrics.ASSIGNED_PARTITIONS.set(0)
            for scope, task in scopes.items():
                scope.stop()
                if not scope.ready:
                    task.cancel()  # still taking over: no transaction is open
            if not scopes:
                return
            _, late = await asyncio.wait(scopes.values(), timeout=self._settings.stop_deadline_s)
            for task in late:
                task.cancel()
            if late:
                log.warning("transactions not ended before the deadline", extra={"partitions": len(late)})
                await asyncio.wait(late)

    async def _watch(self) -> NoReturn:
        """Raise what no task waits for, and report when all partitions are taken over.

        That is a refusal by the group, which the client reports only to a poll, the failure of a resource besides the
        scopes, and a scope without progress.
        """
        while True:
            await asyncio.sleep(WATCH_S)
            for one in self._workload.beside:
                one.check()
            coordinator = self._consumer._coordinator  # noqa: SLF001 # no public access without a poll
            if coordinator is not None:  # the consumer has started
                coordinator.check_errors()
            refuse_dead(self._consumer._fetcher)  # noqa: SLF001 # the same
            refuse_standing({scope.partition: scope.beat_s for scope in self._tasks}, time.monotonic())
            waits = {scope.waits_for for scope in self._tasks if scope.waits_for}
            if waits:
                self._health.missing(ASSIGNMENT, "; ".join(sorted(waits)))
            elif self._assigned and all(scope.ready for scope in self._tasks):
                self._health.met(ASSIGNMENT)


def _rejoins(under_way: BaseException | None) -> bool:
    """Whether the group is joined again after a session; every other error ends the process by itself."""
    return under_way is None or isinstance(under_way, RejoinError)


def refuse_dead(fetcher: Any) -> None:
    """Raise FatalError if the client's fetch task has died by a defect: polls would find nothing, without an error."""
    if fetcher is not None and (fetching := fetcher.error_future).done():
        raise FatalError("the client fetches no more") from (None if fetching.cancelled() else fetching.exception())


def refuse_standing(beats_s: Mapping[int, float], now_s: float) -> None:
    """Raise FatalError if a scope made no progress for longer than all step timeouts combined: that is a defect."""
    for partition, beat_s in beats_s.items():
        if now_s - beat_s > STANDING_S:
            raise FatalError(f"partition {partition} has not gone on for {now_s - beat_s:.0f} s")
