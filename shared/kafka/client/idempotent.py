"""Writes outside of transactions: an idempotent producer with its own batching.

It writes records that enter the system from outside: payments, reference data, resubmissions.

Invariant: records of one partition are written in the order given. A record counts as written only when all in-sync
replicas have it. Unacknowledged records are bounded in bytes and in time, and their failure is always reported.

A partition's open batch is sent when it is full, or, once it has lingered, as soon as none is in flight. So a slow
cluster makes batches larger, not the queue longer.
"""

import asyncio
import time
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiokafka.errors import KafkaError, ProducerClosed

from shared.events.headers import Headers
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.errors import (
    KafkaUnavailableError,
    denied,
    error_name,
    is_denied,
    is_retriable,
    unavailable,
)
from shared.kafka.client.measured import new_batch
from shared.kafka.client.plain_producer import DISCARD_S, Batch, Lane, Target, discard, refuse_oversize, start
from shared.telemetry import metrics

ACKNOWLEDGED_S = 10.0
UNACKNOWLEDGED_BYTES_MAX = 16 * 1024 * 1024
TURN_RECORDS = 500  # a continuous writer yields to acknowledgements and timers this often
UNDER_WAY_MAX = 2  # per partition: one at the broker, one waiting for the connection
LINGER_S = 0.01
"""Batches are sent at ticks of this length, for all partitions at once: one request to each broker takes them. A
request costs the brokers about as much as a hundred records, so there should be few requests."""


class RecordMetadata(NamedTuple):
    """The position of an acknowledged record. The timestamp is in milliseconds since 1970 UTC."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class IdempotentWriter:
    """A writer, open while its context is entered. Leaving the context flushes.

    Args:
        client_id: as the brokers log it.
        request_timeout_s: seconds until an unacknowledged record counts as failed. It may still be written later: only
            the identity that its source gave it shows a repeat.

    Raises KafkaUnavailableError: on entering, when no broker answers in that time.
    """

    def __init__(
        self, bootstrap_servers: Bootstrap, *, client_id: str = "once", request_timeout_s: float = ACKNOWLEDGED_S
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._client_id = client_id
        self._timeout_s = request_timeout_s
        self._producer: Any = None
        self._stale = False
        self._renewing = asyncio.Lock()
        self._lanes: dict[Target, Lane] = {}
        self._outstanding: set[Batch] = set()
        self._submissions: set[asyncio.Task[None]] = set()
        self._unacknowledged_bytes = 0
        self._in_turn = 0
        self._room = asyncio.Event()
        self._failure: KafkaUnavailableError | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._live()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            await self._close()

    async def write(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> None:
        """Append a record to its partition's batch; wait only while too much is unacknowledged, and to yield.

        Args:
            timestamp_ms: milliseconds since 1970 UTC; None means now.

        Raises:
            KafkaUnavailableError: an earlier record failed, or the cluster accepts no records.
            RecordTooLargeError: the topic takes no record of that size.
        """
        self._raise_failure()
        if self._unacknowledged_bytes > UNACKNOWLEDGED_BYTES_MAX:
            await self._wait_for_room()
        self._append((topic, partition), key, value, headers, timestamp_ms)[0].written = True
        self._in_turn += 1
        if self._in_turn == TURN_RECORDS:
            self._in_turn = 0
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Wait until every record is acknowledged.

        Raises KafkaUnavailableError: a record was not acknowledged; it may still be written later.
        """
        for lane in self._lanes.values():
            if lane.open is not None:
                lane.open.due = True
                self._pump(lane)
        waiting = [batch.acked for batch in self._outstanding if not batch.acked.done()]
        if waiting:
            await asyncio.wait(waiting)
        self._raise_failure()

    async def send(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> RecordMetadata:
        """Write a record and wait until it is acknowledged. Concurrent calls share batches.

        Raises:
            KafkaUnavailableError: it was not acknowledged in time, and may or may not be written later.
            RecordTooLargeError: the topic takes no record of that size.
        """
        if self._unacknowledged_bytes > UNACKNOWLEDGED_BYTES_MAX:
            await self._wait_for_room()
        now_ms = time.time_ns() // 1_000_000
        batch, index = self._append((topic, partition), key, value, headers, now_ms)
        base = await asyncio.shield(batch.acked)
        if isinstance(base, KafkaUnavailableError):
            raise type(base)(str(base)) from base  # a new one: other callers who share the batch raise it as well
        if base < 0:
            raise unavailable(self._bootstrap_servers, "the record was written, but the broker forgot where")
        return RecordMetadata(topic, partition, base + index, now_ms)

    def _append(
        self,
        target: Target,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int | None,
    ) -> tuple[Batch, int]:
        fields = list(headers)  # the client accepts only a list
        lane = self._lanes.get(target)
        if lane is None:
            lane = self._lanes[target] = Lane(target)
        batch = lane.open
        if batch is None or batch.builder.append(timestamp=timestamp_ms, key=key, value=value, headers=fields) is None:
            refuse_oversize(target[0], key, value, headers)
            if batch is not None:
                self._fill(lane, batch)
            batch = self._new_batch(lane)
            batch.builder.append(timestamp=timestamp_ms, key=key, value=value, headers=fields)
        batch.records += 1
        return batch, batch.records - 1

    def _new_batch(self, lane: Lane) -> Batch:
        batch = lane.open = Batch(new_batch(self._producer), self._loop)
        batch.linger = self._loop.call_at(next_tick(self._loop.time()), self._lingered, lane, batch)
        batch.expiry = self._loop.call_later(self._timeout_s, self._expire, lane, batch)
        self._outstanding.add(batch)
        return batch

    def _fill(self, lane: Lane, batch: Batch) -> None:
        """Close the open batch to new records."""
        lane.open = None
        lane.full.append(batch)
        if batch.linger is not None:
            batch.linger.cancel()
        batch.size = batch.builder.size()
        self._unacknowledged_bytes += batch.size
        self._pump(lane)

    def _lingered(self, lane: Lane, batch: Batch) -> None:
        batch.due = True
        self._pump(lane)

    def _pump(self, lane: Lane) -> None:
        """Send the batches that may leave now."""
        if not lane.full and lane.under_way == 0 and lane.open is not None and lane.open.due:
            self._fill(lane, lane.open)
            return
        while lane.full and lane.under_way < UNDER_WAY_MAX:
            batch = lane.full.popleft()
            if batch.acked.done():
                self._release(batch)  # too late: its failure was reported
                continue
            lane.under_way += 1
            submission = self._loop.create_task(self._submit(lane, batch))
            self._submissions.add(submission)
            submission.add_done_callback(self._submissions.discard)

    async def _submit(self, lane: Lane, batch: Batch) -> None:
        topic, number = lane.target
        try:
            async with lane.turn:
                producer = await self._live()
                future = await producer.send_batch(batch.builder, topic, partition=number)
        # The client asserts that the partition exists
        except (KafkaError, KafkaUnavailableError, AssertionError) as error:
            self._settle(lane, batch, error)
        else:
            future.add_done_callback(partial(self._acknowledged, lane, batch))

    def _acknowledged(self, lane: Lane, batch: Batch, future: "asyncio.Future[Any]") -> None:
        error = ProducerClosed() if future.cancelled() else future.exception()
        # The broker expects the batch's sequence number, which never comes: a new producer id starts again at 0
        self._stale = self._stale or error is not None
        self._settle(lane, batch, error if error is not None else future.result().offset)

    def _settle(self, lane: Lane, batch: Batch, outcome: int | BaseException) -> None:
        lane.under_way -= 1
        topic = lane.target[0]
        if isinstance(outcome, BaseException):
            name = error_name(outcome)
            metrics.records_failed(name, batch.records)
            self._resolve(batch, self._refused(lane.target, name, outcome))
        else:
            metrics.records_sent(topic, batch.records)
            self._resolve(batch, outcome)
        self._release(batch)
        self._pump(lane)

    def _refused(self, target: Target, name: str, error: BaseException) -> KafkaUnavailableError:
        if isinstance(error, KafkaUnavailableError):
            return error
        topic, number = target
        if is_denied(error):
            return denied(self._bootstrap_servers, f"writing to {topic} ({name})")
        if is_retriable(error):  # an earlier attempt may have been written
            what = f"{topic}:{number} did not acknowledge a batch of records ({name}: {error})"
            return unavailable(self._bootstrap_servers, what)
        return KafkaUnavailableError(
            f"{topic}:{number} refused a batch of records ({name}: {error}), nothing of it was written: the brokers' "
            "logs say why"
        )

    def _expire(self, lane: Lane, batch: Batch) -> None:
        if lane.open is batch:  # it must take no further record: none of it is sent
            lane.open = None
            if batch.linger is not None:
                batch.linger.cancel()
            self._release(batch)
        metrics.records_failed("KafkaTimeoutError", batch.records)
        topic, number = lane.target
        what = f"{topic}:{number} did not acknowledge a record within {self._timeout_s} s"
        self._resolve(batch, unavailable(self._bootstrap_servers, what))

    def _resolve(self, batch: Batch, outcome: int | KafkaUnavailableError) -> None:
        if batch.expiry is not None:
            batch.expiry.cancel()
        if batch.acked.done():
            return
        batch.acked.set_result(outcome)
        if batch.written and isinstance(outcome, KafkaUnavailableError) and self._failure is None:
            self._failure = outcome

    def _release(self, batch: Batch) -> None:
        self._outstanding.discard(batch)
        self._unacknowledged_bytes -= batch.size
        self._room.set()

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._unacknowledged_bytes > UNACKNOWLEDGED_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            what = f"{self._unacknowledged_bytes} bytes are not acknowledged after {self._timeout_s} s"
            raise unavailable(self._bootstrap_servers, what) from None

    def _raise_failure(self) -> None:
        """Raise the error of an earlier record, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise type(failure)(str(failure)) from failure

    async def _live(self) -> Any:
        """Return the producer; a new one under a new producer id where the old one cannot continue."""
        async with self._renewing:
            if self._producer is None or self._stale:
                if self._producer is not None:
                    await discard(self._producer)
                self._producer = await start(self._bootstrap_servers, self._client_id, self._timeout_s)
                self._stale = False
            return self._producer

    async def _close(self) -> None:
        for batch in self._outstanding:
            for timer in (batch.linger, batch.expiry):
                if timer is not None:
                    timer.cancel()
        await discard(self._producer)
        if self._submissions:
            await asyncio.wait(self._submissions, timeout=DISCARD_S)


def next_tick(now_s: float) -> float:
    """Return when a batch opened now is sent: the next multiple of LINGER_S on the loop's clock."""
    return (now_s // LINGER_S + 1) * LINGER_S
