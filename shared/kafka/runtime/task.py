"""An input partition's state, and its part of the open transaction.

Invariant: the state's changes, and the sources of the records that were processed, merge on `commit` and vanish on
`rollback`. A record below the state's next offset was processed already.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from shared.eos.errors import FatalError
from shared.eos.progress import CommittedOffset, NextOffset, TransactionId, TransactionNote
from shared.eos.records import Output
from shared.eos.sources import SeenSources, Sources
from shared.eos.store import Change, Store
from shared.events.headers import SOURCE, Headers, header
from shared.kafka.client.cluster import Target
from shared.kafka.runtime.partition_metrics import PartitionMetrics, Repeat, report_repeats


@dataclass(slots=True)
class OpenPart:
    """A task's part of a transaction.

    Attributes:
        first_offset: the first input offset of the transaction that was not processed before.
        next_offset: the one that follows what was processed.
        records: how many outputs were appended, by topic and partition.
        noted: what its changelog says of the transaction; None before everything was appended.
    """

    first_offset: int
    next_offset: int
    records: dict[str, dict[int, int]]
    noted: NextOffset | None = None


class Task:
    """One input partition.

    Args:
        group: the service, which is the consumer group as well.
        changelog: the topic of its state, partitioned like the input.
        store: its state, empty.

    Attributes:
        handler: of its records, where the worker has one for each partition.
        next_offset: the first input offset that no committed transaction has processed.
        last: the transaction that committed it; None where none has, or an operator set the offset.
        open: its part of the open transaction; None outside of one.
    """

    def __init__(self, group: str, target: Target, changelog: str, store: Store) -> None:
        self.group = group
        self.target = target
        self.topic, self.partition = target
        self.changelog = changelog
        self.store = store
        self.handler: Any = None
        self.next_offset = 0
        self.last: TransactionId | None = None
        self.open: OpenPart | None = None
        self.shown: PartitionMetrics | None = None
        self._sources = Sources()
        self._source = b"%b:%d:" % (self.topic.encode(), self.partition)
        self._repeats: list[Repeat] = []
        self._processed = 0

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition} of group {self.group}"

    def restored(self, state: NextOffset | None, sources: SeenSources, offset: CommittedOffset | None) -> None:
        """Take note of what the state and the group's offset say; `next_offset` is the caller's to set."""
        self._sources.restore(sources)
        self._processed = 0 if state is None else state.next_offset
        self.last = None if offset is None else offset.transaction

    def begin(self) -> OpenPart:
        """Return its part of the open transaction, begun with this call or before."""
        if self.open is None:
            self.open = OpenPart(self.next_offset, self.next_offset, {})
        return self.open

    def admit(self, record: Repeat, part: str = "") -> bool:
        """Note an input record's source, and return whether to process the record.

        A record below the state's next offset is the same record again, not a repeat. A repeat is reported after the
        transaction has been committed. `part` is as for `Sources.admit`.
        """
        if record.offset < self._processed or self._sources.admit(record.headers, part):
            return True
        self._repeats.append(record)
        return False

    def look_ahead(self) -> Callable[[Repeat, str], bool]:
        """Return a function that predicts `admit` for the next records, in their order, and changes nothing here.

        For a worker that begins work on a record before its transaction. After a rewind, get another one.
        """
        sources, processed = Sources(self._sources.seen()), self._processed
        return lambda record, part: record.offset < processed or sources.admit(record.headers, part)

    def count(self, outputs: Iterable[Output]) -> None:
        """Count outputs of the open transaction.

        Raises FatalError if the first one to a topic has no source in this partition. Each one costs nothing then.
        """
        records = self.begin().records
        for topic, partition, _, _, headers in outputs:
            numbers = records.get(topic)
            if numbers is None:
                self._raise_if_unrelated(topic, headers)
                numbers = records[topic] = {}
            numbers[partition] = numbers.get(partition, 0) + 1

    def _raise_if_unrelated(self, topic: str, headers: Headers) -> None:
        """Refuse what a new owner would not find among the partition's records in a torn transaction."""
        source = header(headers, SOURCE)
        if source is None and topic == self.changelog:
            return  # a change that no record caused; a changelog is partitioned like its input
        if source is None or not source.startswith(self._source):
            raise FatalError(
                f"a record for {topic} was made from {self}, and its header {SOURCE!r} is {source!r}: a torn "
                "transaction could not be completed. Make outputs with `Record.output`"
            )

    def changes(self, headers: Headers) -> list[Output]:
        """Return the state's changes as records of the changelog, counted."""
        changes = list(self.store.changes())
        self.written(changes)
        outputs = [Output(self.changelog, self.partition, key, value, headers) for key, value in changes]
        self.count(outputs)
        return outputs

    def written(self, changes: Sequence[Change]) -> None:
        """Show changes that were read from the changelog, or are going to be written to it."""
        if self.shown is not None:
            self.shown.changed(changes)

    def note(
        self, transaction: TransactionId, ended_ms: int, *, completes: TransactionNote | None = None
    ) -> NextOffset:
        """Return what the changelog is to say of the open transaction: the record after all others.

        Args:
            ended_ms: as in TransactionNote.
            completes: the torn transaction that it completes.
        """
        part = self.begin()
        own = part.records.setdefault(self.changelog, {})
        own[self.partition] = own.get(self.partition, 0) + 1
        # An attempt to complete that is torn itself holds all that was missing before it
        completed = None if completes is None else structs.replace(completes, completes=None)
        noted = TransactionNote(transaction, ended_ms, part.first_offset, part.records, completed)
        part.noted = NextOffset(part.next_offset, self._sources.seen(), noted)
        return part.noted

    def commit(self) -> None:
        """Merge what the open transaction changed."""
        part, self.open = self.open, None
        if part is None or part.noted is None or part.noted.transaction is None:
            raise AssertionError(f"{self} has no transaction to be committed")
        self.next_offset = part.next_offset
        self.last = part.noted.transaction.id
        self.store.commit()
        self._sources.commit()
        report_repeats(self.topic, self.partition, self._repeats)
        self._repeats = []

    def rollback(self) -> None:
        """Drop what the open transaction changed."""
        self.open = None
        self.store.rollback()
        self.drop_admitted()

    def drop_admitted(self) -> None:
        """Forget sources that were admitted since the last commit: their records were not processed."""
        self._sources.rollback()
        self._repeats = []
