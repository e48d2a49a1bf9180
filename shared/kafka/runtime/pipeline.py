"""Read-process-write: records through a handler, and one transaction over all partitions of the instance.

1. Take what the fetcher has, and process it, for at most ONCE_TRANSACTION_OPEN_MS or until the input runs dry.
2. Append the states' changes, and a note of the transaction for each partition.
3. Send the outputs, then the offsets, then the commit; each is awaited.
4. Merge the states' changes.

After an abort, states and positions go back to where the transaction began. After an unknown outcome the committed
offsets decide.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from shared.eos.audit import Outcome
from shared.eos.errors import OVERSIZED, AbortableError, UnknownOutcomeError
from shared.eos.isolation import Isolation
from shared.eos.records import Handler, Output, Record
from shared.events.catalogue import PAYMENTS_RAW
from shared.events.headers import SOURCE, Coordinates, Headers
from shared.kafka.client.errors import is_denied
from shared.kafka.runtime.partition_metrics import born_ms, tell_latency
from shared.kafka.runtime.recovery import Torn
from shared.kafka.runtime.scope import TransactionScope
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.worker import ABORT_BACKOFF_S, Membership, Resource, Worker
from shared.telemetry import metrics

CHUNK_RECORDS: Final = 500
"""Of a partition, processed at a stretch: then heartbeats and fetches get their turn, and the transaction's time is
looked at after each partition has had its own."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A read-process-write workload: each input record has its outputs and its change of the state exactly once.

    Outputs, changelog records and offsets of all partitions of an instance are in one transaction (KIP-98). The group's
    coordinator refuses the offsets of an instance that no longer owns the partitions (KIP-447). Where brokers commit a
    part of a transaction only, the next owner completes it (docs/adr/0014-torn-transactions.md).

    Attributes:
        service: its name, its consumer group, and the beginning of its transactional.ids. No other group's.
        topic: the input. Its records are read read_committed, in the order of their partition.
        changelog: the topic of its state, compacted, with the partitions of the input. No other service's.
        handler: made for each partition that the instance gets, with the partition's number.
        hop: what it observes the end-to-end latency for; by default, the first of `outputs`.
        refuse: by handler, the outputs in place of a record whose own no topic takes, and why. Without it, such a
            record ends the service.
        observe: called with the outputs of each committed transaction, for metrics.
        resources: what all partitions share, such as reference data.
        outputs: the topics that it writes to, without its changelog. By default, those of the catalogue that name the
            service as a writer.

    Ends the service with exit code 75: an error that the handler raises; an output to a topic that is not among
    `outputs`, or without a `source` of its partition.
    """

    service: str
    topic: str
    changelog: str
    handler: Callable[[int], Handler]
    hop: str = ""
    refuse: Callable[[Any, Record, str], list[Output]] | None = None
    observe: Callable[[list[Output]], None] | None = None
    resources: tuple[Resource, ...] = ()
    outputs: tuple[str, ...] = ()

    def workers(self, membership: Membership) -> "PipelineWorker":
        """Return the one worker of an instance."""
        return PipelineWorker(self, membership)


@dataclass(slots=True)
class Taken:
    """What a transaction has taken.

    Attributes:
        firsts, ends: the offset of a task's first record, and the one behind its last.
        records: how many.
        oldest_ms: when the oldest work came in, as in `born_ms`.
        observed: the outputs, if they are observed.
    """

    firsts: dict[Task, int] = field(default_factory=dict)
    ends: dict[Task, int] = field(default_factory=dict)
    records: int = 0
    oldest_ms: int | None = None
    observed: list[Output] = field(default_factory=list)


class PipelineWorker(Worker):
    """The work of one instance."""

    def __init__(self, pipeline: Pipeline, membership: Membership) -> None:
        outputs = (*pipeline.outputs, pipeline.changelog) if pipeline.outputs else ()
        settings = membership.settings
        scope = TransactionScope(
            pipeline.service,
            pipeline.topic,
            f"{pipeline.service}-{settings.instance}",
            settings,
            membership.crash_points,
            membership.identity,
            outputs=outputs,
        )
        super().__init__(pipeline, membership, scope)
        self._pipeline = pipeline
        self._hop = pipeline.hop or next(iter(pipeline.outputs), pipeline.topic)
        self._waits: dict[int, str] = {}
        # Records of payments.raw may have headers of another system; ingest recognises repeats by their identity
        self._checks_sources = pipeline.topic != PAYMENTS_RAW
        self._open_s = settings.transaction_open_ms / 1000
        self._isolations: dict[Task, Isolation] = {}

    def _new_task(self, partition: int) -> Task:
        handler = self._pipeline.handler(partition)
        target = self._pipeline.topic, partition
        task = Task(self._pipeline.service, target, self._pipeline.changelog, handler.store)
        task.handler = handler
        return task

    @property
    def waits_for(self) -> str:
        return super().waits_for or "; ".join(sorted(set(self._waits.values())))

    async def _restore(self, number: int) -> tuple[Task, Torn | None]:
        """Restore a partition; while the brokers keep it from that, the others go on."""
        try:
            while True:
                try:
                    return await super()._restore(number)
                except UnknownOutcomeError as error:
                    if is_denied(error):
                        raise
                    log.warning("partition not taken over yet", extra={"partition": number, "reason": str(error)})
                    self._waits[number] = str(error)
                await asyncio.sleep(ABORT_BACKOFF_S)
        finally:
            self._waits.pop(number, None)

    def _hide(self, task: Task) -> None:
        super()._hide(task)
        self._isolations.pop(task, None)

    async def _work(self) -> None:
        await self._input()
        taken = Taken()
        records = self._take(taken)
        if not records:
            return
        try:
            await self._transact(records, taken)
        except UnknownOutcomeError as error:
            ended = await self._resolve(taken.firsts, error)
            if set(ended.values()) == {Outcome.COMMITTED}:
                self._committed(taken)
            for task in taken.firsts:
                self._isolations.pop(task, None)  # the record that was refused alone may have been replaced

    async def _transact(self, records: list[tuple[Task, list[Record]]], taken: Taken) -> None:
        """Process records in a transaction, and commit it, or abort it and go back. Raises EosError."""
        try:
            await self._scope.begin()
            await self._fill(records, taken)
            await self._scope.commit(taken.ends, _headers)
        except AbortableError as error:
            isolates = self._isolates(taken, error)
            if isolates:
                self._aborts = 0  # the next transaction is another one
            await self._rewind(taken.firsts, error)
            if isolates:
                self._isolate(taken)
        else:
            self._committed(taken)

    async def _fill(self, records: list[tuple[Task, list[Record]]], taken: Taken) -> None:
        """Process records until the input runs dry or the transaction has been open for long enough."""
        deadline_s = time.monotonic() + self._open_s
        while records:
            for task, some in records:
                self._process(task, some, taken)
                await asyncio.sleep(0)
            if self._isolations or self._leaving or self._stopping.is_set() or time.monotonic() >= deadline_s:
                return
            records = self._take(taken)

    def _take(self, taken: Taken) -> list[tuple[Task, list[Record]]]:
        """Take what has arrived: of all partitions, or of one where a record is isolated."""
        waiting = [task for _, number in self._fetcher.waiting() if (task := self.tasks.get(number)) is not None]
        if self._isolations:
            isolated = [task for task in waiting if task in self._isolations]
            waiting = isolated[:1] or waiting
        records = []
        for task in waiting:
            isolation = self._isolations.get(task)
            limit = CHUNK_RECORDS if isolation is None or isolation.records_max is None else isolation.records_max
            some = self._fetcher.take(task.target, min(limit, CHUNK_RECORDS))
            if some:
                taken.records += len(some)
                taken.firsts.setdefault(task, some[0].offset)
                taken.ends[task] = some[-1].offset + 1
                records.append((task, some))
                if taken.oldest_ms is None:
                    taken.oldest_ms = born_ms(some)
        return records

    def _process(self, task: Task, records: list[Record], taken: Taken) -> None:
        handler = task.handler
        process, admit, next_offset = handler.process, task.admit, task.next_offset
        isolation = self._isolations.get(task)
        alone = None if isolation is None else isolation.alone
        outputs: list[Output] = []
        for record in records:
            if record.offset < next_offset or (self._checks_sources and not admit(record)):
                continue
            if alone == record.offset and self._pipeline.refuse is not None:
                outputs += self._pipeline.refuse(handler, record, "no topic takes what is to be written for it")
            else:
                outputs += process(record)
        self._scope.append(task, outputs)
        if self._pipeline.observe is not None:
            taken.observed += outputs

    def _committed(self, taken: Taken) -> None:
        self._aborts = 0
        for task, isolation in list(self._isolations.items()):
            if task in taken.ends:
                isolation.committed(taken.ends[task])
                if isolation.records_max is None:
                    del self._isolations[task]
        metrics.RECORDS_CONSUMED.labels(self._topic).inc(taken.records)
        tell_latency(taken.oldest_ms, self._hop)
        if self._pipeline.observe is not None:
            self._pipeline.observe(taken.observed)

    def _isolates(self, taken: Taken, error: AbortableError) -> bool:
        """Whether a transaction over fewer records may find the one that is too large."""
        if self._pipeline.refuse is None or error.cause not in OVERSIZED:
            return False
        return len(taken.firsts) > 1 or all(
            self._isolations[task].alone is None for task in taken.firsts if task in self._isolations
        )

    def _isolate(self, taken: Taken) -> None:
        """Have each partition's records processed alone, and then ever fewer of them."""
        for task, first in taken.firsts.items():
            isolation = self._isolations.setdefault(task, Isolation())
            if len(taken.firsts) == 1:
                isolation.refused(first, taken.ends[task], taken.records)


def _headers(task: Task, next_offset: int) -> Headers:
    return ((SOURCE, Coordinates(*task.target, next_offset - 1).encode()),)
