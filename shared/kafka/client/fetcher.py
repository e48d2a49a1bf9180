"""Fetches committed records of partitions that are added and removed while it runs.

There are up to two requests in flight to each leader, on two connections: a broker serves the requests of a connection
one after the other. The first one is a long poll. The second one is short, for partitions that became ready to be
fetched after the long poll was sent: they were added, or their buffer was full.

Invariant: no partition waits for another one, nor for one that has failed. A failure is retried until a deadline or
raised in `wait`; none is only logged.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.errors import KafkaError, LeaderNotAvailableError, NoError, OffsetOutOfRangeError

from shared.eos.records import Record
from shared.kafka.client.buffer import FULL_BYTES, PartitionBuffer, PartitionState
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.client.errors import denied, error_for, error_name, is_denied, is_retriable, unavailable
from shared.kafka.client.fetch import Fetched, fetch_request, fetched, out_of_range

LONG_WAIT_MS: Final = 2000
"""Longer than the Java client's fetch.max.wait.ms of 500: an answer comes at once when a partition has records, and the
brokers of a stack at rest are asked a quarter as often."""
SHORT_WAIT_MS: Final = 20
BACKOFF_S: Final = 0.1
BACKOFF_MAX_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Partition:
    """A partition between `add` and the next `add` or `remove`.

    Attributes:
        is_requested: a request in flight has it.
        is_backing_off: it failed a moment ago.
        failures: in a row.
        failing_since_s: monotonic time of the first of them.
    """

    buffer: PartitionBuffer
    is_requested: bool = False
    is_backing_off: bool = False
    failures: int = 0
    failing_since_s: float = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether it should be in the next request."""
        return not (self.is_requested or self.is_backing_off or self.buffer.is_full)


class Fetcher:
    """Fetches from `start` to `stop`. Its methods must be called on one event loop.

    Args:
        cluster: an open connection of its own: long polls occupy it. The caller closes it after `stop`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._partitions: dict[Target, _Partition] = {}
        self._with_records: dict[Target, None] = {}
        self._topics: dict[str, bool] = {}  # whether the metadata has them
        self._in_flight: dict[tuple[int, bool], int] = {}  # waits in ms, by leader and whether it is the long poll
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: asyncio.Task[None] | None = None
        self._is_refreshing = False
        self._is_woken = False
        self._changed = asyncio.Event()  # a task ended, or a partition became ready to be fetched
        self._arrived = asyncio.Event()  # `wait` must look again

    async def start(self) -> None:
        """Begin to fetch."""
        self._running = asyncio.create_task(self._run(), name="fetcher")
        self._running.add_done_callback(lambda _: self._arrived.set())

    async def stop(self) -> None:
        """End all requests. The connection stays open."""
        running, self._running = self._running, None
        self._arrived.set()
        if running is not None:
            running.cancel()
            await asyncio.wait([running])

    def add(self, target: Target, offset: int) -> None:
        """Begin at an offset, or begin again: what was buffered is dropped, and what a request in flight returns."""
        self._partitions[target] = _Partition(PartitionBuffer(target, offset))
        self._with_records.pop(target, None)
        self._changed.set()

    def remove(self, target: Target) -> None:
        """End a partition and drop its records. A partition that was not added is ignored."""
        self._partitions.pop(target, None)
        self._with_records.pop(target, None)

    def take(self, target: Target, records_max: int | None = None) -> list[Record]:
        """Return records that have arrived, in order, without waiting.

        The position moves behind what is returned, and behind markers and aborted records that follow it.

        Raises:
            CorruptBatchError: the checksum of a batch is wrong, or it cannot be decoded.
        """
        buffer = self._partitions[target].buffer
        was_full = buffer.is_full
        records = buffer.take(records_max)
        if not buffer.has_records:
            self._with_records.pop(target, None)
        if was_full and not buffer.is_full:
            self._changed.set()
        return records

    def position(self, target: Target) -> int:
        """Return the next offset to be taken."""
        return self._partitions[target].buffer.position

    def state(self, target: Target) -> PartitionState | None:
        """Return a partition's offsets, without a request; None if it was not added."""
        partition = self._partitions.get(target)
        return None if partition is None else partition.buffer.state

    def waiting(self) -> list[Target]:
        """Return partitions with records to take; those whose records arrived first come first."""
        return list(self._with_records)

    def wake(self) -> None:
        """End the current call of `wait`, or the next one."""
        self._is_woken = True
        self._arrived.set()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until a partition has records, `wake` is called, or `timeout_s` seconds have passed.

        Raises:
            KafkaUnavailableError: a partition was not answered within the connection's deadline.
            DeniedError: the brokers deny a partition to this principal.
            FatalError: the log does not have the offset of a partition any more.
            CorruptBatchError: a fetched batch is corrupt.
            KafkaError: another error of a broker; retrying would not help.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (self._is_woken or self._with_records or self._has_ended):
                    self._arrived.clear()
                    await self._arrived.wait()
        self._is_woken = False
        if self._running is None:
            raise RuntimeError("the fetcher was not started, or was stopped")
        if self._running.done():
            self._running.result()

    @property
    def _has_ended(self) -> bool:
        return self._running is None or self._running.done()

    async def _run(self) -> None:
        try:
            while True:
                self._changed.clear()
                self._send()
                await self._changed.wait()
                ended = {task for task in self._tasks if task.done()}
                self._tasks -= ended
                for task in ended:
                    task.result()
        finally:
            for task in self._tasks:
                task.cancel()
            # The first failure is raised; others may follow from it
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._changed.set())

    def _send(self) -> None:
        for node_id, led in self._by_leader().items():
            idle = [partition for partition in led if partition.is_idle]
            long_poll_ms = self._in_flight.get((node_id, True))
            if not idle:
                continue
            if long_poll_ms is None:
                # A partition in a short request must get into the next long poll soon
                wait_ms = SHORT_WAIT_MS if any(partition.is_requested for partition in led) else LONG_WAIT_MS
                self._request(node_id, idle, wait_ms, is_long_poll=True)
            elif long_poll_ms == LONG_WAIT_MS and (node_id, False) not in self._in_flight:
                self._request(node_id, idle, SHORT_WAIT_MS, is_long_poll=False)

    def _by_leader(self) -> dict[int, list[_Partition]]:
        leaders: dict[int, list[_Partition]] = defaultdict(list)
        for target, partition in self._partitions.items():
            topic = target[0]
            if topic not in self._topics:
                self._topics[topic] = False
                self._begin(self._learn(topic))
            if not self._topics[topic]:
                continue
            leader = self._cluster.leader(target)
            if leader is not None:
                leaders[leader].append(partition)
            elif partition.is_idle:
                self._failed([partition], LeaderNotAvailableError("it has no leader"), time.monotonic())
        return leaders

    async def _learn(self, topic: str) -> None:
        await self._cluster.partitions([topic])
        self._topics[topic] = True

    def _request(self, node_id: int, partitions: list[_Partition], wait_ms: int, *, is_long_poll: bool) -> None:
        self._in_flight[node_id, is_long_poll] = wait_ms
        for partition in partitions:
            partition.is_requested = True
        self._begin(self._fetch(node_id, partitions, wait_ms, is_long_poll=is_long_poll))

    async def _fetch(self, node_id: int, partitions: list[_Partition], wait_ms: int, *, is_long_poll: bool) -> None:
        try:
            await self._exchange(node_id, partitions, wait_ms, is_long_poll=is_long_poll)
        finally:
            del self._in_flight[node_id, is_long_poll]
            for partition in partitions:
                partition.is_requested = False

    async def _exchange(self, node_id: int, partitions: list[_Partition], wait_ms: int, *, is_long_poll: bool) -> None:
        due_s = time.monotonic() + wait_ms / 1000
        requested = {partition.buffer.target: partition for partition in partitions}
        positions = {target: partition.buffer.fetch_offset for target, partition in requested.items()}
        request = fetch_request(positions, committed=True, wait_ms=wait_ms, partition_bytes=FULL_BYTES)
        try:
            parts = fetched(await self._cluster.send(node_id, request, coordination=is_long_poll))
        except KafkaError as error:
            self._failed(partitions, error, due_s)
            return
        for part in parts:
            await self._receive(requested[part.target], part, due_s)

    def _is_current(self, partition: _Partition) -> bool:
        return self._partitions.get(partition.buffer.target) is partition

    async def _receive(self, partition: _Partition, part: Fetched, due_s: float) -> None:
        if not self._is_current(partition):
            return
        error, buffer, target = error_for(part.error_code), partition.buffer, part.target
        if error is OffsetOutOfRangeError:
            await self._raise_if_out_of_range(partition)
        if error is not NoError:
            self._failed([partition], error("{}:{}".format(*target)), due_s)
            return
        partition.failures = 0
        fetch_offset = buffer.fetch_offset
        buffer.append(part)
        if buffer.fetch_offset == fetch_offset:
            return
        # A broker fills a response in the order of the request: the other partitions come first in the next one
        self._partitions[target] = self._partitions.pop(target)
        if buffer.has_records:
            self._with_records.setdefault(target)
            self._arrived.set()
        await asyncio.sleep(0)  # several full parts must not block the loop in one go

    def _failed(self, partitions: Iterable[_Partition], error: KafkaError, due_s: float) -> None:
        """Retry partitions after a backoff, against fresh metadata; raises errors that must not be retried.

        `due_s` is the monotonic time at which a broker without records would have answered: its wait is no failure.
        """
        if is_denied(error):
            raise denied(self._cluster.bootstrap_servers, f"records cannot be read: {error_name(error)} {error}")
        if not (is_retriable(error) or isinstance(error, OffsetOutOfRangeError)):
            raise error
        for partition in partitions:
            target = partition.buffer.target
            if not self._is_current(partition):
                continue
            if not partition.failures:
                partition.failing_since_s = min(due_s, time.monotonic())
            if time.monotonic() - partition.failing_since_s >= self._cluster.deadline_s:
                detail = f"{target[0]}:{target[1]} cannot be read: {error_name(error)} {error}"
                raise unavailable(self._cluster.bootstrap_servers, detail) from error
            partition.is_backing_off = True
            backoff_s = min(BACKOFF_S * 2**partition.failures, BACKOFF_MAX_S)
            partition.failures += 1
            asyncio.get_running_loop().call_later(backoff_s, self._back_off_ended, partition)
        if not self._is_refreshing:
            self._is_refreshing = True
            self._begin(self._refresh())

    def _back_off_ended(self, partition: _Partition) -> None:
        partition.is_backing_off = False
        self._changed.set()

    async def _refresh(self) -> None:
        try:
            await self._cluster.refresh()
        finally:
            self._is_refreshing = False

    async def _raise_if_out_of_range(self, partition: _Partition) -> None:
        """Raise FatalError unless the log has the offset after all: a new leader may not know its end yet."""
        target, offset = partition.buffer.target, partition.buffer.fetch_offset
        start = (await self._cluster.offsets([target], EARLIEST))[target]
        end = (await self._cluster.offsets([target], LATEST))[target]
        if self._is_current(partition) and not start <= offset <= end:
            raise out_of_range(target, offset, start, end)
