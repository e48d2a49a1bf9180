"""Recovery of a partition: its state from the changelog, and the predecessor's last transaction.

If brokers have torn that transaction (`shared.eos.audit`), its aborted parts are read from their logs, for the new
owner to write again. A transaction may have parts of several input partitions: each owner completes those of its own.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiokafka.errors import KafkaError

from shared.eos.audit import (
    Fate,
    Outcome,
    Target,
    outcome,
    raise_if_incomplete,
    set_by_hand,
)
from shared.eos.errors import UnknownOutcomeError
from shared.eos.progress import (
    NEXT_OFFSET_KEY,
    CommittedOffset,
    NextOffset,
    TransactionNote,
    decode_next_offset,
)
from shared.eos.records import Output, Record
from shared.eos.sources import SeenSources
from shared.eos.store import Change, Store
from shared.kafka.client.batches import Batch, pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster
from shared.kafka.client.errors import unavailable
from shared.kafka.client.parts import TransactionPart, read_parts
from shared.kafka.client.reader import PAGE_BYTES, OnProgress
from shared.kafka.runtime.task import Task

OPEN_DEADLINE_S: Final = 30.0
"""How long a transaction in the changelog may stay open: longer than the brokers let one."""

OnChanges = Callable[[Sequence[Change]], None]


class AbortedNote(NamedTuple):
    """A NEXT_OFFSET_KEY record of a transaction that was aborted in the changelog."""

    offset: int  # its own, in the changelog
    noted: NextOffset


class Restored:
    """Merges changelog records into a store, and passes the state's own changes to `changed`.

    Attributes:
        committed: the last committed note, which is the state's; None for a new state.
        aborted: notes behind it, in the changelog's order: of its successors, and of zombies.
        records: how many records were read.
        position: in the changelog.
    """

    def __init__(self, store: Store, changed: OnChanges) -> None:
        self._store = store
        self._changed = changed
        self._committed_at = -1
        self.committed: NextOffset | None = None
        self.aborted: list[AbortedNote] = []
        self.records = 0
        self.position = 0

    @property
    def kept(self) -> TransactionNote | None:
        """The transaction that `committed` is of."""
        return None if self.committed is None else self.committed.transaction

    @property
    def passed_over(self) -> list[TransactionNote]:
        """The transactions that `aborted` are of."""
        return [note.noted.transaction for note in self.aborted if note.noted.transaction is not None]

    @property
    def next_offset(self) -> int | None:
        """The state's; None for a new state."""
        return None if self.committed is None else self.committed.next_offset

    @property
    def sources(self) -> SeenSources:
        return SeenSources() if self.committed is None else self.committed.sources

    def take(self, records: Iterable[Record]) -> None:
        """Merge committed records, in the changelog's order."""
        changes: list[Change] = []
        for record in records:
            self.records += 1
            if record.key == NEXT_OFFSET_KEY:
                self.committed = decode_next_offset(record.value or b"")
                self._committed_at = record.offset
            else:
                changes.append((record.key or b"", record.value))
        self._apply(changes)
        self.aborted = [note for note in self.aborted if note.offset > self._committed_at]

    def complete(self, changes: Sequence[Change], noted: NextOffset) -> None:
        """Merge the changes and the note of a torn transaction that is going to be completed."""
        self._apply(changes)
        self.committed = noted

    def _apply(self, changes: Sequence[Change]) -> None:
        for key, value in changes:
            self._store.restore(key, value)
        self._changed(changes)

    def pass_over(self, aborted: Iterable[Record]) -> None:
        """Note only what aborted transactions noted; after `take` of the committed records between them."""
        self.aborted += [
            AbortedNote(record.offset, decode_next_offset(record.value or b""))
            for record in aborted
            if record.key == NEXT_OFFSET_KEY and record.offset > self._committed_at
        ]


async def restore(cluster: Cluster, target: Target, restored: Restored, progress: OnProgress) -> None:
    """Read a changelog partition on, up to its high watermark, when no transaction below it is open.

    Ask for the committed offset before: the transaction that committed it has ended then, but its marker may still be
    on its way to the changelog.

    Args:
        progress: offsets of the changelog that were read, and that are to be read in all.

    Raises:
        UnknownOutcomeError: a transaction of the changelog does not end.
        KafkaUnavailableError: the cluster does not answer.
    """
    await cluster.partitions([target[0]])
    beginning = (await cluster.offsets([target], EARLIEST))[target]
    end = (await cluster.offsets([target], LATEST))[target]
    start = max(beginning, restored.position)
    deadline_s = time.monotonic() + OPEN_DEADLINE_S
    try:
        async with aclosing(
            pages(cluster, {target: start}, ends={target: end}, committed=True, partition_bytes=PAGE_BYTES)
        ) as read:
            async for page in read:
                restored.take(_records(page.batches, target))
                noting = [batch for batch in page.aborted if batch.contains(NEXT_OFFSET_KEY)]
                restored.pass_over(_records(noting, target))
                if page.next_offset > restored.position:
                    restored.position = page.next_offset
                    deadline_s = time.monotonic() + OPEN_DEADLINE_S
                elif time.monotonic() > deadline_s:
                    raise UnknownOutcomeError(f"a transaction in {target} at {restored.position} does not end")
                progress(min(restored.position, end) - beginning, end - beginning)
    except KafkaError as error:
        raise unavailable(cluster.bootstrap_servers, f"the state cannot be read: {error!r}") from error


def _records(batches: Iterable[Batch], target: tuple[str, int]) -> list[Record]:
    return [record for batch in batches for record in batch.records(target)]


@dataclass(frozen=True, slots=True)
class Torn:
    """A torn transaction and what completes it."""

    transaction: TransactionNote  # as its owner noted it
    noted: NextOffset  # the state's progress behind it
    fates: dict[Target, Fate]  # how it ended in each partition
    outputs: list[Output]  # the records of its aborted parts, in order, without the changelog's note

    @property
    def described(self) -> dict[str, str]:
        """How it ended by partition, for the log."""
        return {f"{topic}:{partition}": fate.value for (topic, partition), fate in sorted(self.fates.items())}


async def find_torn(
    cluster: Cluster,
    task: Task,
    restored: Restored,
    committed: CommittedOffset | None,
) -> Torn | None:
    """Audit the last transactions of previous owners; None if each was committed or aborted as a whole.

    Args:
        task: the input partition.
        restored: the state, with the transactions' notes.
        committed: the group's offset.

    Raises:
        TornTransactionError: records of one are no longer in the log.
        UnknownOutcomeError: a marker is missing.
        KafkaUnavailableError: the cluster does not answer.
    """
    later: set[int] = set()  # producer ids of later transactions
    for noted in reversed(_to_be_audited(restored, committed)):
        transaction = noted.transaction
        if transaction is None or set_by_hand(committed, transaction):
            continue
        # Where a partition had no leader its marker was skipped, and the producer's next marker decided for both
        settled = transaction.id.producer_id in later
        ended = await _audit(cluster, task, noted, transaction, committed, settled=settled)
        if isinstance(ended, Torn):
            return ended
        later.add(transaction.id.producer_id)
    return None


def _to_be_audited(restored: Restored, committed: CommittedOffset | None) -> list[NextOffset]:
    """Notes of transactions that may be torn, in the changelog's order."""
    aborted, kept = [note.noted for note in restored.aborted], restored.committed
    # Where a later one has committed the offset, its owner has audited the one before
    superseded = committed is not None and committed.transaction in [one.id for one in restored.passed_over]
    return aborted if kept is None or superseded else [kept, *aborted]


async def how_ended(cluster: Cluster, task: Task, noted: NextOffset, committed: CommittedOffset | None) -> Outcome:
    """Return how a transaction ended for the task that noted it; errors are as for `find_torn`."""
    if noted.transaction is None:
        raise AssertionError("a note of the present version has its transaction")
    ended = await _audit(cluster, task, noted, noted.transaction, committed)
    return Outcome.TORN if isinstance(ended, Torn) else ended


async def _audit(
    cluster: Cluster,
    task: Task,
    noted: NextOffset,
    transaction: TransactionNote,
    committed: CommittedOffset | None,
    *,
    settled: bool = False,
) -> Torn | Outcome:
    """Audit one transaction, or the one that it was to complete.

    If it is `settled`, another one followed it, and a marker that is missing does not come any more.
    """
    read = await read_parts(cluster, transaction, task.target, wait=not settled)
    parts = {one.target: one.part() for one in read}
    offset_committed = None if committed is None else committed.transaction == transaction.id
    ended = outcome(parts.values(), offset_committed=offset_committed)
    if ended is Outcome.TORN:
        raise_if_incomplete(str(task), noted.next_offset, transaction, parts)
        fates = {target: part.fate for target, part in parts.items()}
        outputs = [output for one in read if fates[one.target] is Fate.ABORTED for output in _outputs(one)]
        return Torn(transaction, noted, fates, outputs)
    if ended is Outcome.ABORTED and transaction.completes is not None:
        # An earlier attempt to complete a torn transaction left nothing behind
        return await _audit(cluster, task, noted, transaction.completes, committed)
    return ended


def _outputs(one: TransactionPart) -> list[Output]:
    return [
        Output(record.topic, record.partition, record.key, record.value, record.headers)
        for record in one.records()
        if record.key != NEXT_OFFSET_KEY
    ]
