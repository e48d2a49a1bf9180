"""The log of one partition, with what a broker knows of its producers: sequences, epochs and transactions.

It refuses and accepts what Kafka 4.3's UnifiedLog and ProducerStateManager do, for idempotence (KIP-98), and for
transactions whose partitions were checked with their coordinator before (KIP-890).

Invariants: offsets have no gaps, and state follows from the batches alone, so that a truncated log has the state that
it had at its new end.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from shared.kafka.client.batches import Batch, Marker
from tests.batches import at_offset, coordinator_epoch_of
from tests.simulation.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TRANSACTION_COORDINATOR_FENCED,
    RefusedError,
)

REMEMBERED_BATCHES: Final = 5
"""Of each producer, so that a batch that was resent is recognised."""
_SEQUENCES: Final = 2**31
_NO_EPOCH: Final = -1


@dataclass(frozen=True, slots=True)
class Appended:
    """A batch of a producer that the log has.

    Attributes:
        base_offset: where the log has it.
    """

    first_sequence: int
    last_sequence: int
    base_offset: int


@dataclass(slots=True)
class ProducerState:
    """What the log knows of one producer id.

    Attributes:
        epoch: the newest; -1 before any.
        coordinator_epoch: of the last marker; -1 before any.
        transaction_from: first offset of the open transaction; None without one.
        timestamp_ms: of the last batch.
        batches: the last ones under this epoch.
    """

    epoch: int = _NO_EPOCH
    coordinator_epoch: int = -1
    transaction_from: int | None = None
    timestamp_ms: int = -1
    batches: deque[Appended] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))

    def raise_epoch(self, epoch: int) -> None:
        """Take a newer epoch: its sequences begin at 0."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """An entry of the transaction index: its first offset, and the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class Log:
    """The batches of a partition, on one broker.

    Attributes:
        start: the first offset that was not deleted.
        high_watermark: below it every in-sync replica has everything.
        producers: by producer id.
    """

    def __init__(self) -> None:
        self.start = 0
        self.high_watermark = 0
        self._forget()

    def _forget(self) -> None:
        self._batches: list[Batch] = []
        self.producers: dict[int, ProducerState] = {}
        self._aborted: list[AbortedTransaction] = []
        # By producer id: epoch, its lowest sequence, and whether its first one must be 0
        self._verifying: dict[int, tuple[int, int, bool]] = {}
        self._ended: list[tuple[int, int]] = []  # first offset and marker of transactions whose end is not replicated

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self._batches[-1].last_offset + 1 if self._batches else self.start

    @property
    def last_stable_offset(self) -> int:
        """Below it every transaction has ended, and its end is replicated."""
        open_from = [state.transaction_from for state in self.producers.values() if state.transaction_from is not None]
        self._ended = [ended for ended in self._ended if ended[1] >= self.high_watermark]
        return min([self.high_watermark, *open_from, *(first for first, _ in self._ended)])

    def append(self, batch: Batch, *, sequenced: bool = True) -> int:
        """Append a batch of records; returns its base offset, the first one's for a batch that was resent.

        Args:
            sequenced: whether its producer counts batches; a group's coordinator, which writes for one, does not.

        Raises:
            RefusedError: the batch is, and the log is as before.
        """
        state = self.producers.get(batch.producer_id, ProducerState())
        if batch.producer_id >= 0:
            self._check_epoch(state, batch)
            known = self._known(state, batch) if sequenced else None
            if known is not None:
                return known.base_offset
            if sequenced:
                self._check_sequence(state, batch)
            if state.transaction_from is not None and not batch.is_transactional:
                raise RefusedError(INVALID_TXN_STATE, "a batch outside the open transaction")
        return self._add(batch)

    def is_open(self, batch: Batch) -> bool:
        """Whether the transaction of a batch has begun here."""
        state = self.producers.get(batch.producer_id)
        return state is not None and state.epoch == batch.producer_epoch and state.transaction_from is not None

    def begin_verification(self, batch: Batch, *, from_zero: bool = False) -> None:
        """Remember a transaction's first batch while its coordinator is asked.

        Until a transactional batch of this producer is appended, none with a higher sequence is: if this one is refused
        for now, it may come again.

        Args:
            from_zero: whether a producer that the log does not know must begin at sequence 0, as newer clients do. What
                the first of these batches says holds for the others.

        Raises:
            RefusedError: a newer epoch of the producer has been here.
        """
        self._check_epoch(self.producers.get(batch.producer_id, ProducerState()), batch)
        came = batch.producer_epoch, batch.base_sequence
        epoch, lowest, from_zero = self._verifying.get(batch.producer_id, (*came, from_zero))
        if came[0] > epoch or (came[0] == epoch and came[1] < lowest):
            epoch, lowest = came
        self._verifying[batch.producer_id] = epoch, lowest, from_zero

    def append_marker(self, batch: Batch) -> int:
        """Append the end of a transaction, a control batch; returns its offset.

        Raises:
            RefusedError: a newer coordinator or producer has been here.
        """
        state = self.producers.get(batch.producer_id, ProducerState())
        if batch.producer_epoch < state.epoch:
            raise RefusedError(INVALID_PRODUCER_EPOCH, f"epoch {batch.producer_epoch} of a marker, after {state.epoch}")
        if coordinator_epoch_of(batch) < state.coordinator_epoch:
            raise RefusedError(
                TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch_of(batch)}, after {state.coordinator_epoch}",
            )
        return self._add(batch)

    def _known(self, state: ProducerState, batch: Batch) -> Appended | None:
        if batch.producer_epoch != state.epoch:
            return None
        sequences = (batch.base_sequence, _last_sequence(batch))
        return next((one for one in state.batches if (one.first_sequence, one.last_sequence) == sequences), None)

    def _check_epoch(self, state: ProducerState, batch: Batch) -> None:
        if batch.producer_epoch < state.epoch:
            raise RefusedError(INVALID_PRODUCER_EPOCH, f"epoch {batch.producer_epoch}, after {state.epoch}")

    def _check_sequence(self, state: ProducerState, batch: Batch) -> None:
        _, lowest, from_zero = self._verifying.get(batch.producer_id, (0, batch.base_sequence, False))
        if batch.base_sequence > lowest:
            raise RefusedError(OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {batch.base_sequence}, and {lowest} is missing")
        if state.epoch == _NO_EPOCH:
            follows = not from_zero or batch.base_sequence == 0  # the log may have lost what came before
        elif batch.producer_epoch != state.epoch:
            follows = batch.base_sequence == 0
        elif state.batches:
            follows = batch.base_sequence == (state.batches[-1].last_sequence + 1) % _SEQUENCES
        else:
            follows = batch.base_sequence == 0
        if not follows:
            raise RefusedError(
                OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {batch.base_sequence} of epoch {batch.producer_epoch}"
            )

    def _add(self, batch: Batch) -> int:
        stored = at_offset(batch, self.end)
        self._batches.append(stored)
        if stored.producer_id >= 0:
            self._learn(stored)
        return stored.base_offset

    def _learn(self, batch: Batch) -> None:
        if batch.is_transactional:
            self._verifying.pop(batch.producer_id, None)
        state = self.producers.setdefault(batch.producer_id, ProducerState())
        state.raise_epoch(batch.producer_epoch)
        state.timestamp_ms = batch.timestamp_ms
        if batch.is_control:
            if state.transaction_from is not None:
                self._ended.append((state.transaction_from, batch.base_offset))
                if batch.marker is Marker.ABORT:
                    ended = AbortedTransaction(batch.producer_id, state.transaction_from, batch.base_offset)
                    self._aborted.append(ended)
            state.transaction_from = None
            state.coordinator_epoch = coordinator_epoch_of(batch)
            return
        if batch.base_sequence >= 0:
            state.batches.append(Appended(batch.base_sequence, _last_sequence(batch), batch.base_offset))
        if batch.is_transactional and state.transaction_from is None:
            state.transaction_from = batch.base_offset

    def truncate(self, end: int) -> None:
        """Lose everything from an offset on, and what was learnt of it."""
        kept = [batch for batch in self._batches if batch.last_offset < end]
        self._forget()
        for batch in kept:
            self._batches.append(batch)
            if batch.producer_id >= 0:
                self._learn(batch)
        self.high_watermark = min(self.high_watermark, self.end)

    def read(self, offset: int, limit: int, max_bytes: int) -> Iterator[Batch]:
        """Read batches from the one with this offset on, below a limit; at least one, whatever its size."""
        size = 0
        for number in range(bisect_left(self._batches, offset, key=_last_offset), len(self._batches)):
            batch = self._batches[number]
            size += len(batch.data)
            if batch.last_offset >= limit or (size > max_bytes and size > len(batch.data)):
                return
            yield batch

    def aborted(self, offset: int, limit: int) -> Iterable[AbortedTransaction]:
        """The aborted transactions that a read_committed reader of these offsets must know."""
        return [one for one in self._aborted if one.last_offset >= offset and one.first_offset < limit]


_last_offset = attrgetter("last_offset")


def _last_sequence(batch: Batch) -> int:
    return (batch.base_sequence + batch.last_offset - batch.base_offset) % _SEQUENCES
