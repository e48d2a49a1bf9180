"""Committed records of one partition between their fetch and the caller that takes them.

Only headers of batches are read when a response arrives; records are decoded when they are taken.

Invariant: each committed record from the first offset on is returned once, in order. No record of a batch with a wrong
checksum is returned or left out.
"""

import sys
from collections import deque
from typing import Final, NamedTuple

from shared.eos.records import Record
from shared.kafka.client.batches import Batch, by_fate, decode
from shared.kafka.client.cluster import Target
from shared.kafka.client.fetch import Fetched

FULL_BYTES: Final = 1024 * 1024
"""No more is fetched while so much is buffered. With a fetch of the same size there are 2 MiB at most."""


class PartitionState(NamedTuple):
    """Offsets of a partition. Those of the broker are as of its last response, None before the first one."""

    position: int
    high_watermark: int | None
    last_stable_offset: int | None


class PartitionBuffer:
    """What was fetched from a partition and not taken yet.

    Args:
        target: the partition.
        offset: of the first record to be taken, if it is committed.

    Attributes:
        target: as given.
        fetch_offset: the next fetch begins here.
    """

    def __init__(self, target: Target, offset: int) -> None:
        self.target = target
        self.fetch_offset = offset
        self._high_watermark: int | None = None
        self._last_stable_offset: int | None = None
        self._start = offset
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._decoded: list[Record] = []
        self._decoded_at = 0

    @property
    def is_full(self) -> bool:
        """Whether no more should be fetched."""
        return self._bytes >= FULL_BYTES

    @property
    def has_records(self) -> bool:
        """Whether there is a batch of committed records. Compaction may have emptied it."""
        return bool(self._batches) or self._decoded_at < len(self._decoded)

    @property
    def position(self) -> int:
        """The next offset to be taken; behind markers and aborted records that nothing precedes."""
        if self._decoded_at < len(self._decoded):
            return self._decoded[self._decoded_at].offset
        if self._batches:
            return max(self._start, self._batches[0].base_offset)
        return self.fetch_offset

    @property
    def state(self) -> PartitionState:
        """The position, and the broker's offsets."""
        return PartitionState(self.position, self._high_watermark, self._last_stable_offset)

    def append(self, part: Fetched) -> None:
        """Append the response to a read_committed fetch from `fetch_offset`.

        Raises:
            CorruptBatchError: a batch is malformed, or the checksum of a marker or of aborted records is wrong.
        """
        self._high_watermark, self._last_stable_offset = part.high_watermark, part.last_stable_offset
        batches = decode(part.data)
        if not batches:
            return
        for batch in batches:
            if batch.is_control:
                batch.raise_if_corrupt(self.target)
        committed, aborted = by_fate(batches, part.aborted)
        for batch in aborted:
            batch.raise_if_corrupt(self.target)
        self._batches += committed
        self._bytes += sum(len(batch.data) for batch in committed)
        self.fetch_offset = max(self.fetch_offset, batches[-1].last_offset + 1)

    def take(self, records_max: int | None = None) -> list[Record]:
        """Return buffered records in order, at most `records_max`; the position moves behind them.

        Raises:
            CorruptBatchError: the checksum of a batch is wrong, or it cannot be decoded.
        """
        limit = sys.maxsize if records_max is None else records_max
        taken: list[Record] = []
        while len(taken) < limit:
            if self._decoded_at == len(self._decoded):
                if not self._batches:
                    break
                self._decode_next()
            until = self._decoded_at + limit - len(taken)
            records = self._decoded[self._decoded_at : until]
            self._decoded_at += len(records)
            taken += records
        if self._decoded_at == len(self._decoded):
            self._decoded, self._decoded_at = [], 0  # their memory is the caller's now
        return taken

    def _decode_next(self) -> None:
        batch = self._batches[0]
        records = batch.records(self.target)
        if batch.base_offset < self._start:  # a batch is fetched as a whole
            records = [record for record in records if record.offset >= self._start]
        self._batches.popleft()
        self._bytes -= len(batch.data)
        self._decoded, self._decoded_at = records, 0
