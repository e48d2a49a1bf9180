"""One membership of the consumer group, from joining to having left.

Invariant: it ends by a stop, or by the first failure of the workers, of the membership, or of a resource. Nothing that
it started outlives it. `runtime` decides what an end means, and whether to join again.
"""

import asyncio
import logging
import sys
import time
from typing import Any, Final

from aiokafka.errors import KafkaError

from shared.eos.crash import CrashPoints
from shared.eos.errors import EosError, FatalError, FencedError, UnknownOutcomeError
from shared.kafka.client.access import access
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import KafkaUnavailableError, classify
from shared.kafka.runtime.member import Member
from shared.kafka.runtime.worker import Membership, Workload
from shared.settings import RuntimeSettings, SettingsError
from shared.telemetry import metrics
from shared.telemetry.server import Health

ASSIGNMENT: Final = "assignment"
WATCH_S: Final = 0.1

log = logging.getLogger(__name__)


class Instance:
    """A member of its service's group, and its work.

    Args:
        health: ready while it works on all partitions that it was assigned.
    """

    def __init__(
        self, workload: Workload, settings: RuntimeSettings, health: Health, crash_points: CrashPoints
    ) -> None:
        self._workload = workload
        self._settings = settings
        self._health = health
        self._assigned: set[int] = set()
        client_id = f"{workload.service}-{settings.instance}"
        self._cluster = Cluster(access(settings), client_id=client_id)
        self._member = Member(
            self._cluster, workload.service, workload.topic, client_id, self._on_assigned, self._on_revoked
        )
        membership = Membership(settings, lambda: self._member.identity, self._member.beat, crash_points)
        self._workers = workload.workers(membership)
        self._rebalancing_s: float | None = time.monotonic()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set or something fails.

        Raises:
            EosError: as classified.
        """
        stopped = asyncio.ensure_future(stop.wait())
        watching = asyncio.create_task(self._watch())
        starting = asyncio.create_task(self._start())
        running: list[asyncio.Task[Any]] = [starting]
        try:
            await asyncio.wait({stopped, starting}, return_when=asyncio.FIRST_COMPLETED)
            _raise_first(running)
            if starting.done():
                running = [
                    asyncio.create_task(self._workers.run()),
                    asyncio.create_task(self._member.run()),
                    *(asyncio.create_task(one.failed()) for one in self._workload.resources),
                ]
                await asyncio.wait({stopped, *running}, return_when=asyncio.FIRST_COMPLETED)
                _raise_first(running)
        except SettingsError as error:  # as when credentials are gone, which is no defect
            raise FatalError(str(error)) from error
        except KafkaError as error:
            raise classify(error) from error
        except KafkaUnavailableError as error:
            raise UnknownOutcomeError(str(error)) from error
        finally:
            stopped.cancel()
            watching.cancel()
            # The group knows a successor of the same name as the same member
            await self._end(running, leaves=not isinstance(sys.exception(), FencedError))

    async def _start(self) -> None:
        """Start what the work needs; fence earlier processes of this instance before it joins."""
        for one in self._workload.resources:
            await one.start()
        await self._cluster.open()
        await self._workers.start()

    async def _end(self, running: "list[asyncio.Task[Any]]", *, leaves: bool) -> None:
        """End the open transaction within its deadline, then leave the group, then everything else.

        Args:
            running: what is under way, the workers or the start first.
        """
        self._health.missing(ASSIGNMENT, "partitions are being assigned")
        if len(running) > 1:
            self._workers.stop()
            await asyncio.wait({running[0]}, timeout=self._settings.stop_deadline_s)
            if not running[0].done():
                log.warning("transactions not ended before the deadline")
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        metrics.ASSIGNED_PARTITIONS.set(0)
        if leaves:
            await self._member.leave()
        await self._workers.close()
        await self._cluster.close()
        await asyncio.gather(*(one.stop() for one in self._workload.resources))

    def _on_assigned(self, partitions: set[int]) -> None:
        self._assigned |= partitions
        self._rebalanced("partitions assigned", partitions)
        self._workers.assign(partitions)

    async def _on_revoked(self, partitions: set[int]) -> None:
        self._rebalancing_s = time.monotonic()
        await self._workers.revoke(partitions)
        self._assigned -= partitions
        self._rebalanced("partitions revoked", partitions)

    def _rebalanced(self, what: str, partitions: set[int]) -> None:
        metrics.REBALANCES.inc()
        if self._rebalancing_s is not None:
            metrics.REBALANCE_LATENCY.observe(time.monotonic() - self._rebalancing_s)
            self._rebalancing_s = None
        metrics.ASSIGNED_PARTITIONS.set(len(self._assigned))
        log.info(
            what,
            extra={
                "topic": self._workload.topic,
                "partitions": sorted(partitions),
                "member_epoch": self._member.identity.epoch,
            },
        )

    async def _watch(self) -> None:
        """Report when all assigned partitions are worked on, and else what they wait for."""
        while True:
            waits_for = self._workers.waits_for or self._member.waits_for
            if waits_for:
                self._health.missing(ASSIGNMENT, waits_for)
            elif self._member.settled and self._workers.ready == self._assigned:
                self._health.met(ASSIGNMENT)
            else:
                self._health.missing(ASSIGNMENT, "partitions are being assigned")
            await asyncio.sleep(WATCH_S)


def _raise_first(running: "list[asyncio.Task[Any]]") -> None:
    """Raise the error of what ended; the first in the list is the cause where several did. EosErrors are not logged."""
    for task in running:
        if not task.done() or task.cancelled() or (error := task.exception()) is None:
            continue
        if not isinstance(error, EosError | KafkaError | KafkaUnavailableError | SettingsError):
            log.error("partition ended", extra={"reason": str(error)}, exc_info=error)
            raise classify(error) from error
        raise error
