"""An input partition's state and producer, and the transactions over them.

Invariant: a transaction has all outputs, the state's changes, a note of itself and the consumed offset. The state's
changes merge only after its commit was acknowledged.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from aiokafka.errors import KafkaError
from msgspec import structs

from shared.eos import crash
from shared.eos.crash import CrashPoints
from shared.eos.errors import AbortableError, RejoinError, UnknownOutcomeError
from shared.eos.progress import (
    NEXT_OFFSET_KEY,
    NextOffset,
    TransactionId,
    TransactionNote,
    encode_next_offset,
    offset_metadata,
)
from shared.eos.records import Output
from shared.eos.safety import transactional_id
from shared.eos.sources import Sources
from shared.eos.store import Change, Store
from shared.events.catalogue import TOPICS
from shared.events.headers import Headers
from shared.kafka.client.access import access
from shared.kafka.client.cluster import Cluster, Target
from shared.kafka.client.errors import KafkaUnavailableError, classify
from shared.kafka.client.parts import left_open
from shared.kafka.client.reader import committed_at
from shared.kafka.runtime.partition_metrics import Repeat, report_repeats
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.recovery import Restored, Torn, find_torn, restore
from shared.settings import RuntimeSettings
from shared.telemetry import metrics

log = logging.getLogger(__name__)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Recovered(NamedTuple):
    """What a new owner found."""

    offset: int | None  # the group's committed offset; None if there is none
    restored: Restored


class OwnedPartition:
    """One input partition of a service, which is its consumer group as well, under its owner's transactional.id.

    Args:
        changelog: the topic of its state, partitioned like the input.
        store: the partition's state, empty.
    """

    transaction_version_max = 2

    def __init__(
        self,
        service: str,
        topic: str,
        partition: int,
        changelog: str,
        store: Store,
        settings: RuntimeSettings,
        crash_points: CrashPoints,
    ) -> None:
        self._group = service
        self._topic = topic
        self._partition = partition
        self._changelog = changelog
        self._store = store
        self._settings = settings
        self._producer = TransactionalProducer(
            access(settings),
            transactional_id(settings.transactional_id, service, topic, partition),
            settings.transaction_timeout_ms,
            crash_points,
            version_max=self.transaction_version_max,
        )
        self._sources = Sources()
        self._repeats: list[Repeat] = []
        self._next_offset = 0
        self._processed = 0
        self._begun_ms = self._stamp_ms = 0

    async def _recover(self) -> Recovered:
        """Read offset and state, and complete the previous owner's last transaction if the brokers tore it.

        Call it after InitProducerId: only then are they final. Raises TornTransactionError if that cannot be completed,
        other EosErrors as classified.
        """
        with classified():
            async with Cluster(access(self._settings)) as cluster:
                if closed := await left_open(cluster, self._outputs(), self._producer.epoch[0]):
                    await self._close(closed)
                committed = await committed_at(cluster, self._group, self._topic, self._partition)
                restored = await restore(
                    cluster, self._changelog, self._partition, self._store, self._changed, self._restoring
                )
                where = f"{self._topic}:{self._partition} of group {self._group}"
                torn = await find_torn(cluster, where, restored, committed)
        offset = None if committed is None else committed.offset
        if torn is not None:
            await self._complete(torn, restored)
            offset = torn.noted.next_offset
        self._sources.restore(restored.sources)
        self._processed = restored.next_offset or 0
        return Recovered(offset, restored)

    def _outputs(self) -> list[str]:
        return [topic.name for topic in TOPICS if self._group in topic.writers]

    def _changed(self, changes: Sequence[Change]) -> None:
        """Hook for changes of the state, restored or written."""

    def _restoring(self, done: int, total: int) -> None:
        """Hook for the progress of a restore, in offsets of the changelog."""

    async def _close(self, targets: Iterable[Target]) -> None:
        """Abort what earlier transactions left open in partitions that their coordinator skipped or did not know.

        The marker of a producer's transaction ends everything that the producer has open in the partition.
        """
        log.warning("transaction without a marker aborted", extra={**self.context, "partitions": list(targets)})
        await self._producer.begin()
        closing = [Output(topic, partition, b"closed", None, ()) for topic, partition in targets]
        self._producer.append(closing, now_ms())
        await self._producer.flush()
        await self._producer.abort()

    async def _complete(self, torn: Torn, restored: Restored) -> None:
        """Write the aborted parts of a torn transaction again, with its offset, in one transaction."""
        begun = time.monotonic()
        changes = [output for output in torn.outputs if output.topic == self._changelog]
        restored.complete([(output.key or b"", output.value) for output in changes], torn.noted)
        self._sources.restore(restored.sources)
        self._next_offset = torn.transaction.first_offset
        await self._commit_alone(torn.outputs, torn.noted.next_offset, completes=torn.transaction)
        metrics.TORN_TRANSACTIONS.inc()
        log.warning(
            "torn transaction completed",
            extra={
                **self.context,
                "first_offset": torn.transaction.first_offset,
                "next_offset": torn.noted.next_offset,
                "parts": torn.described,
                "records": len(torn.outputs),
                "seconds": round(time.monotonic() - begun, 3),
            },
        )

    @property
    def context(self) -> dict[str, object]:
        """Which partition, and under which ids it is worked on, for logs."""
        producer_id, epoch = self._producer.epoch
        return {
            "topic": self._topic,
            "partition": self._partition,
            "transactional_id": self._producer.transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

    def _admit(self, record: Repeat, part: str = "") -> bool:
        """Note an input record's source, and return whether to process the record.

        A record below the state's next offset is the same record again, not a repeat. A repeat is reported after the
        transaction has been committed. `part` is as for `Sources.admit`.
        """
        if record.offset < self._processed or self._sources.admit(record.headers, part):
            return True
        self._repeats.append(record)
        return False

    async def _begin(self) -> None:
        """Begin a transaction; none of its records is as old as any of an earlier one."""
        await self._producer.begin()
        self._stamp_ms = self._begun_ms = max(now_ms(), self._stamp_ms + 1)

    def _append(self, outputs: Iterable[Output]) -> None:
        """Append records to the open transaction."""
        self._stamp_ms = max(now_ms(), self._stamp_ms)
        self._producer.append(outputs, self._stamp_ms)

    def _append_state(
        self, next_offset: int, headers: Headers = (), *, completes: TransactionNote | None = None
    ) -> None:
        """Append the store's changes and the transaction's note. Call it last: the note counts what was appended."""
        changes = list(self._store.changes())
        self._changed(changes)
        self._append(Output(self._changelog, self._partition, key, value, headers) for key, value in changes)
        records = self._producer.appended()
        own = records.setdefault(self._changelog, {})
        own[self._partition] = own.get(self._partition, 0) + 1
        # An attempt to complete that is torn itself holds all that was missing before it
        completed = None if completes is None else structs.replace(completes, completes=None)
        self._stamp_ms = max(now_ms(), self._stamp_ms)
        note = TransactionNote(self._transaction_id(), self._stamp_ms, self._next_offset, records, completed)
        noted = encode_next_offset(NextOffset(next_offset, self._sources.seen(), note))
        output = Output(self._changelog, self._partition, NEXT_OFFSET_KEY, noted, headers)
        self._producer.append([output], note.ended_ms)

    def _transaction_id(self) -> TransactionId:
        return TransactionId(*self._producer.epoch, self._begun_ms)

    async def _send(self, next_offset: int) -> None:
        """Send what was appended, then the offset, each awaited: all of a transaction except its end."""
        producer = self._producer
        producer.reach(crash.BEFORE_SEND)
        await producer.flush()
        producer.reach(crash.AFTER_SEND)
        offsets = {(self._topic, self._partition): next_offset}
        await producer.send_offsets(self._group, offsets, offset_metadata(self._transaction_id()))
        producer.reach(crash.AFTER_OFFSETS)

    async def _end(self, next_offset: int) -> None:
        """Send and commit the transaction, and merge the state's changes."""
        await self._send(next_offset)
        await self._producer.commit()
        self._next_offset = next_offset
        self._store.commit()
        self._sources.commit()
        report_repeats(self._topic, self._partition, self._repeats)
        self._repeats = []

    def _roll_back(self) -> None:
        self._store.rollback()
        self._drop_admitted()

    def _drop_admitted(self) -> None:
        self._sources.rollback()
        self._repeats = []

    async def _commit_alone(
        self,
        outputs: Iterable[Output],
        next_offset: int,
        headers: Headers = (),
        *,
        completes: TransactionNote | None = None,
    ) -> None:
        """Commit outputs, the store's changes and the offset in a transaction that processes no input.

        Sources that were admitted since the last commit are dropped: a round that failed did not process its records.

        Args:
            headers: of the changes.
            completes: as in `TransactionNote`.

        Raises:
            RejoinError: it was refused and aborted.
            EosError: as classified.
        """
        self._drop_admitted()
        try:
            await self._begin()
            self._append(outputs)
            self._append_state(next_offset, headers, completes=completes)
            await self._end(next_offset)
        except AbortableError as error:
            await self._producer.abort(error.cause)
            self._roll_back()
            raise RejoinError(f"the state of partition {self._partition} was refused: {error}") from error


@contextmanager
def classified() -> Iterator[None]:
    """Translate errors of reading the cluster into EosErrors."""
    try:
        yield
    except KafkaError as error:
        raise classify(error) from error
    except KafkaUnavailableError as error:
        raise UnknownOutcomeError(str(error)) from error
