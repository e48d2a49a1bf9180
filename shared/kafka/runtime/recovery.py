"""Recovery of a partition: its state from the changelog, and the predecessor's last transaction.

Call it after InitProducerId, which ends that transaction as its coordinator knows it. If brokers have torn it
(`shared.eos.audit`), its aborted parts are read from their logs, for the new owner to write again.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka.errors import KafkaError

from shared.eos.audit import (
    Fate,
    Outcome,
    Target,
    outcome,
    raise_if_incomplete,
    raise_if_state_lost,
    set_by_hand,
)
from shared.eos.progress import NEXT_OFFSET_KEY, CommittedOffset, NextOffset, TransactionNote, decode_next_offset
from shared.eos.records import Output, Record
from shared.eos.sources import SeenSources
from shared.eos.store import Change, Store
from shared.kafka.client.batches import Batch, pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster
from shared.kafka.client.errors import unavailable
from shared.kafka.client.parts import TransactionPart, read_parts
from shared.kafka.client.reader import PAGE_BYTES, OnProgress

OnChanges = Callable[[Sequence[Change]], None]


class LastNote(NamedTuple):
    """The last NEXT_OFFSET_KEY record of a changelog, aborted transactions included."""

    offset: int  # its own, in the changelog
    noted: NextOffset


class Restored:
    """Merges changelog records into a store, and passes the state's own changes to `changed`."""

    def __init__(self, store: Store, changed: OnChanges) -> None:
        self._store = store
        self._changed = changed
        self.committed: NextOffset | None = None  # the last committed note, which is the state's; None for a new state
        self.last: LastNote | None = None  # the last note, whether it was committed or not
        self.records = 0

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
                self.committed = self._note(record)
            else:
                changes.append((record.key or b"", record.value))
        self._apply(changes)

    def complete(self, changes: Sequence[Change], noted: NextOffset) -> None:
        """Merge the changes and the note of a torn transaction that is going to be completed."""
        self._apply(changes)
        self.committed = noted

    def _apply(self, changes: Sequence[Change]) -> None:
        for key, value in changes:
            self._store.restore(key, value)
        self._changed(changes)

    def pass_over(self, aborted: Iterable[Record]) -> None:
        """Note only what aborted transactions noted."""
        for record in aborted:
            if record.key == NEXT_OFFSET_KEY:
                self._note(record)

    def _note(self, record: Record) -> NextOffset:
        noted = decode_next_offset(record.value or b"")
        if self.last is None or record.offset > self.last.offset:
            self.last = LastNote(record.offset, noted)
        return noted


async def restore(
    cluster: Cluster, topic: str, partition: int, store: Store, changed: OnChanges, progress: OnProgress
) -> Restored:
    """Read a changelog partition up to its last stable offset into an empty store, in the order it was written.

    Call it after InitProducerId: only then is the predecessor's transaction settled and the end final. `progress` gets,
    after each page, the offsets passed and those to be passed in all. Raises KafkaUnavailableError.
    """
    target = topic, partition
    await cluster.partitions([topic])
    beginning = (await cluster.offsets([target], EARLIEST))[target]
    end = (await cluster.offsets([target], LATEST, committed=True))[target]
    restored = Restored(store, changed)
    try:
        async with aclosing(
            pages(cluster, {target: beginning}, ends={target: end}, committed=True, partition_bytes=PAGE_BYTES)
        ) as read:
            async for page in read:
                restored.take(_records(page.batches, target))
                noting = [batch for batch in page.aborted if batch.contains(NEXT_OFFSET_KEY)]
                restored.pass_over(_records(noting, target))
                progress(min(page.next_offset, end) - beginning, end - beginning)
    except KafkaError as error:
        raise unavailable(cluster.bootstrap_servers, f"the state cannot be read: {error!r}") from error
    return restored


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
    where: str,
    restored: Restored,
    committed: CommittedOffset | None,
) -> Torn | None:
    """Audit the previous owner's last transaction; None if it was committed or aborted as a whole.

    Args:
        where: the input partition and the group, for the operator.
        restored: the state, with the last transaction's note.
        committed: the group's offset.

    Raises:
        TornTransactionError: records of it are no longer in the log; or the state is older than the group's offset.
        UnknownOutcomeError: a marker is missing.
        KafkaUnavailableError: the cluster does not answer.
    """
    last = restored.last.noted if restored.last is not None else None
    transaction = last.transaction if last is not None else None
    raise_if_state_lost(where, committed, transaction.id if transaction is not None else None)
    if last is None or transaction is None or set_by_hand(committed, transaction):
        return None
    kept = restored.committed
    torn = await _audit(cluster, where, last, transaction, committed)
    if torn is not None or kept is None or kept is last or committed is None:
        return torn
    if kept.transaction is None or committed.transaction != kept.transaction.id:
        return None
    # Where a partition had no leader its marker was skipped, and the abort of the last transaction decided for both
    return await _audit(cluster, where, kept, kept.transaction, committed, settled=True)


async def _audit(
    cluster: Cluster,
    where: str,
    noted: NextOffset,
    transaction: TransactionNote,
    committed: CommittedOffset | None,
    *,
    settled: bool = False,
) -> Torn | None:
    """Audit one transaction, or the one that it was to complete.

    If it is `settled`, another one followed it, and a marker that is missing does not come any more.
    """
    read = await read_parts(cluster, transaction, wait=not settled)
    parts = {one.target: one.part() for one in read}
    offset_committed = None if committed is None else committed.transaction == transaction.id
    ended = outcome(parts.values(), offset_committed=offset_committed)
    if ended is Outcome.TORN:
        raise_if_incomplete(where, noted.next_offset, transaction, parts)
        fates = {target: part.fate for target, part in parts.items()}
        outputs = [output for one in read if fates[one.target] is Fate.ABORTED for output in _outputs(one)]
        return Torn(transaction, noted, fates, outputs)
    if ended is Outcome.ABORTED and transaction.completes is not None:
        # An earlier attempt to complete a torn transaction left nothing behind
        return await _audit(cluster, where, noted, transaction.completes, committed)
    return None


def _outputs(one: TransactionPart) -> list[Output]:
    return [
        Output(record.topic, record.partition, record.key, record.value, record.headers)
        for record in one.records()
        if record.key != NEXT_OFFSET_KEY
    ]
