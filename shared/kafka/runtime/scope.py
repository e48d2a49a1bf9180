"""Read-process-write on one input partition: records through a handler, everything in one transaction."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shared.eos.crash import CrashPoints
from shared.eos.errors import OVERSIZED, AbortableError
from shared.eos.isolation import Isolation
from shared.eos.records import Handler, Output, Record
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.headers import SOURCE, Coordinates
from shared.kafka.runtime.partition import POLL_MS, Beside, PartitionScope
from shared.kafka.runtime.partition_metrics import born_ms, tell_latency
from shared.settings import RuntimeSettings
from shared.telemetry import metrics

CHUNK_RECORDS = 500  # processed at a stretch before the event loop gets its turn for heartbeats and other partitions


@dataclass(frozen=True)
class Pipeline:
    """A read-process-write workload."""

    service: str  # its consumer group as well
    topic: str  # the input
    changelog: str  # the topic of its state, partitioned like the input
    hop: str  # the topic that it writes for the next service, for the latency up to there
    handler: Callable[[int], Handler]  # by partition
    # By handler, the outputs in place of a record whose own no topic takes, and why
    refuse: Callable[[Any, Record, str], list[Output]] | None = None
    observe: Callable[[list[Output]], None] | None = None  # for metrics, after the commit
    beside: tuple[Beside, ...] = ()

    def scope(self, partition: int, consumer: Any, settings: RuntimeSettings, crash_points: CrashPoints) -> "Scope":
        return Scope(self, partition, consumer, settings, crash_points)


@dataclass
class Passed:
    """What a transaction has consumed so far."""

    next_offset: int
    records: int = 0


class Scope(PartitionScope):
    """One input partition's work through its handler."""

    def __init__(
        self, pipeline: Pipeline, partition: int, consumer: Any, settings: RuntimeSettings, crash_points: CrashPoints
    ) -> None:
        self._handler = pipeline.handler(partition)
        super().__init__(pipeline, pipeline.changelog, self._handler.store, partition, consumer, settings, crash_points)
        # Records of payments.raw may have headers of another system; ingest recognises repeats by their identity
        self._checks_sources = pipeline.topic != PAYMENTS_RAW
        self._observe = pipeline.observe
        self._hop = pipeline.hop
        self._refuse = pipeline.refuse
        self._isolation = Isolation()

    async def _work(self) -> None:
        records = await self._poll(POLL_MS, self._isolation.records_max)
        if records:
            begun = time.monotonic()
            await self._transaction(records)
            await self._rest(time.monotonic() - begun, self._next_offset - records[0].offset)

    async def _transaction(self, records: list[Any]) -> None:
        """One transaction over these records and those that follow while it is open; rewind if it must be aborted."""
        first = records[0].offset
        observed: list[Output] = []
        passed = Passed(self._next_offset)
        try:
            await self._begin()
            await self._fill(records, observed, passed)
            next_offset, consumed = passed.next_offset, passed.records
            source = Coordinates(self._topic, self._partition, next_offset - 1).encode()
            self._append_state(next_offset, ((SOURCE, source),))
            await self._end(next_offset)
        except AbortableError as error:
            isolates = self._refuse is not None and error.cause in OVERSIZED and self._isolation.alone is None
            if isolates:
                self._aborts = 0  # the next transaction is another one
            await self._rewind(first, error)
            if isolates:
                self._isolation.refused(first, passed.next_offset, passed.records)
            return
        self._isolation.committed(next_offset)
        metrics.RECORDS_CONSUMED.labels(self._topic).inc(consumed)
        tell_latency(born_ms(records), self._hop)
        if self._observe is not None:
            self._observe(observed)

    async def _fill(self, records: list[Any], observed: list[Output], passed: Passed) -> None:
        """Process records until the input runs dry or the transaction has been open for long enough."""
        deadline = time.monotonic() + self._settings.transaction_open_ms / 1000
        while records:
            passed.records += len(records)
            passed.next_offset = max(passed.next_offset, records[-1].offset + 1)
            for start in range(0, len(records), CHUNK_RECORDS):
                self._process(records[start : start + CHUNK_RECORDS], observed)
                await asyncio.sleep(0)
            full = self._isolation.records_max is not None or time.monotonic() >= deadline
            if full or self._stopping.is_set():
                return
            records = await self._poll(0)

    def _process(self, records: list[Any], observed: list[Output]) -> None:
        process = self._handler.process
        outputs: list[Output] = []
        for r in records:
            if r.offset < self._next_offset or (self._checks_sources and not self._admit(r)):
                continue
            record = Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
            if self._refuse is not None and r.offset == self._isolation.alone:
                outputs += self._refuse(self._handler, record, "no topic takes what is to be written for it")
            else:
                outputs += process(record)
        self._append(outputs)
        if self._observe is not None:
            observed += outputs
