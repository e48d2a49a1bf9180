"""The log at the level of record batches: producers, transactions, and their markers.

Record batches are the unit in which Kafka stores, replicates and fences (message format v2, KIP-98). Producer id, epoch
and sequence are in their headers only, and transaction markers are batches of their own.

Invariant: `decode` reads headers only; records are decoded on request.
"""

import asyncio
import gzip
import struct
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import cramjam
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy

from shared.eos.records import Record
from shared.kafka.client.cluster import PARTITION_BYTES, Cluster, Target
from shared.kafka.client.fetch import Fetched

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_FROM = 12  # a batch's length counts from behind its base offset and the length itself
_COMPRESSION, _TRANSACTIONAL, _CONTROL = 0x07, 0x10, 0x20
_MAGIC = 2
_CONTROL_KEY = struct.Struct(">HH")


class CorruptBatchError(Exception):
    """A batch has a wrong checksum or invalid records, or a format that no Kafka 4 broker stores."""


class Marker(Enum):
    """The outcome in a control batch."""

    ABORT = 0
    COMMIT = 1


_UNREADABLE = (
    CorruptRecordException,
    UnsupportedCodecError,
    UnicodeDecodeError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    cramjam.DecompressionError,
    struct.error,
)
"""Errors that the client's decoder and decompression raise for bytes that are not records."""


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Raise CorruptBatchError where records cannot be decoded; `what` names them in the error."""
    try:
        yield
    except _UNREADABLE as error:
        raise CorruptBatchError(f"{what} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class Batch:
    """One record batch.

    Attributes:
        base_offset, last_offset: of the batch; compaction may have removed records in between.
        producer_id, producer_epoch, base_sequence: -1 without idempotence.
        timestamp_ms: the latest of its records, milliseconds since 1970 UTC.
        data: its bytes as on disk.
    """

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_control: bool
    timestamp_ms: int
    data: bytes

    def contains(self, needle: bytes) -> bool:
        """Whether the bytes may occur in a record: a cheap test before decoding. Compressed batches always may."""
        return bool(self.data[22] & _COMPRESSION) or needle in self.data

    @property
    def marker(self) -> Marker | None:
        """Return the marker of a control batch; None for data, and for control batches without a marker.

        Raises:
            CorruptBatchError: a control batch without a record that can be read.
        """
        if not self.is_control:
            return None
        with _readable(f"the batch at offset {self.base_offset}"):
            first = next(iter(DefaultRecordBatch(self.data)), None)
        key = b"" if first is None else first.key or b""
        if len(key) < _CONTROL_KEY.size:
            raise CorruptBatchError(f"the control batch at offset {self.base_offset} has no key that says what it is")
        kind = _CONTROL_KEY.unpack_from(key)[1]
        return Marker(kind) if kind in {Marker.ABORT.value, Marker.COMMIT.value} else None

    def records(self, target: Target) -> list[Record]:
        """Return its records in order.

        Args:
            target: the partition it was read from.

        Raises:
            CorruptBatchError: its checksum is wrong, or its content cannot be decoded.
        """
        topic, partition = target
        batch = self._checked(target)
        # Record's own constructor would take half of the time
        new = tuple.__new__

        def made(found: Iterable[Any]) -> list[Record]:
            return [
                new(Record, (topic, partition, r.offset, r.timestamp, r.key, r.value, tuple(r.headers))) for r in found
            ]

        with _readable(f"{topic}:{partition}:{self.base_offset}"):
            try:
                return made(batch)
            except UnicodeDecodeError:
                return made(_replacing(self.data))

    def raise_if_corrupt(self, target: Target) -> None:
        """Raise CorruptBatchError if its checksum is wrong; `target` is the partition it was read from."""
        self._checked(target)

    def _checked(self, target: Target) -> DefaultRecordBatch:
        batch = DefaultRecordBatch(self.data)
        if not batch.validate_crc():
            raise CorruptBatchError(f"{target[0]}:{target[1]}:{self.base_offset} has a wrong checksum")
        return batch


class _Replacing(bytearray):
    """Bytes that decode as the Java client decodes them: what is not UTF-8 becomes U+FFFD."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return _Replacing(found) if isinstance(at, slice) else found

    def decode(self, encoding: str = "utf-8", errors: str = "replace") -> str:
        return super().decode(encoding, errors)


def _replacing(data: bytes) -> Iterable[Any]:
    """Decode a batch with a header name that is not UTF-8, which the client library's own decoder refuses."""
    batch = _DefaultRecordBatchPy(data)
    batch._maybe_uncompress()  # noqa: SLF001 # the library is pinned exactly
    batch._buffer = _Replacing(batch._buffer)  # noqa: SLF001
    return batch  # type: ignore[no-any-return]


class Page(NamedTuple):
    """The result of one fetch for one partition.

    Attributes:
        batches: in order; of a read_committed read, committed data batches only.
        aborted: of a read_committed read, the data batches of aborted transactions, in order.
        next_offset: where the next page begins, past markers and aborted batches.
    """

    target: Target
    batches: list[Batch]
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    aborted: Sequence[Batch] = ()


def decode(data: bytes) -> list[Batch]:
    """Split a fetch response's bytes into batches; an incomplete one at the end is left out.

    Raises:
        CorruptBatchError: a batch has an older message format, or a length below that of its header.
    """
    batches: list[Batch] = []
    at, size = 0, len(data)
    while at + _HEADER.size <= size:
        base, length, _, magic, _, attributes, delta, _, timestamp, producer_id, epoch, sequence, _ = (
            _HEADER.unpack_from(data, at)
        )
        end = at + _LENGTH_FROM + length
        if magic != _MAGIC:
            raise CorruptBatchError(f"the batch at offset {base} has message format {magic}, not {_MAGIC}")
        if end < at + _HEADER.size:
            raise CorruptBatchError(f"the batch at offset {base} says that it has {length} bytes")
        if end > size:
            break
        batches.append(
            Batch(
                base,
                base + delta,
                producer_id,
                epoch,
                sequence,
                bool(attributes & _TRANSACTIONAL),
                bool(attributes & _CONTROL),
                timestamp,
                data[at:end],
            )
        )
        at = end
    return batches


def by_fate(batches: Iterable[Batch], aborted: Iterable[tuple[int, int]]) -> tuple[list[Batch], list[Batch]]:
    """Separate data batches by how their transactions ended; markers are in neither list.

    Args:
        batches: of one fetch below the last stable offset, in order.
        aborted: (producer_id, first offset) of the aborted transactions that the broker named with them.

    Returns:
        Those of committed transactions or of none, and those of aborted ones.
    """
    waiting = sorted(aborted, key=lambda transaction: transaction[1], reverse=True)
    aborting: set[int] = set()
    visible: list[Batch] = []
    dropped: list[Batch] = []
    for batch in batches:
        while waiting and waiting[-1][1] <= batch.base_offset:
            aborting.add(waiting.pop()[0])
        if batch.is_control:
            if batch.producer_id in aborting and batch.marker is Marker.ABORT:
                aborting.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in aborting:
            dropped.append(batch)
        else:
            visible.append(batch)
    return visible, dropped


async def pages(
    cluster: Cluster,
    positions: Mapping[Target, int],
    *,
    ends: Mapping[Target, int] | None = None,
    committed: bool,
    wait_ms: int = 100,
    partition_bytes: int = PARTITION_BYTES,
) -> AsyncGenerator[Page, None]:
    """Read partitions page by page; the next fetch runs while the caller processes a page.

    Close it when left early (`contextlib.aclosing`).

    Args:
        cluster: connection that knows the topics already.
        positions: where to begin, by partition.
        ends: where to stop, by partition. Positions count, not records, so that a tail of markers ends it too; None
            goes on for ever. Batches at or above the end are not returned.
        committed: read_committed; else read_uncommitted, with markers.
        wait_ms: how long a broker may wait when it has nothing new.
        partition_bytes: of each partition in one fetch, at least one batch.

    Raises KafkaUnavailableError: the cluster does not answer.
    """
    limits = ends or {}
    left = {target: at for target, at in positions.items() if at < limits.get(target, at + 1)}

    async def fetch() -> list[Fetched]:
        return await cluster.fetch(left, committed=committed, wait_ms=wait_ms, partition_bytes=partition_bytes)

    under_way: asyncio.Task[list[Fetched]] | None = asyncio.create_task(fetch()) if left else None
    try:
        while under_way is not None:
            decoded = [_page(part, limits.get(part.target), committed=committed) for part in await under_way]
            for page in decoded:
                left[page.target] = max(left[page.target], page.next_offset)
            left = {target: at for target, at in left.items() if at < limits.get(target, at + 1)}
            under_way = asyncio.create_task(fetch()) if left else None
            await asyncio.sleep(0)  # sends the request before the caller processes the page
            for page in decoded:
                yield page
    finally:
        if under_way is not None:
            under_way.cancel()
            await asyncio.wait([under_way])


def _page(part: Fetched, end: int | None, *, committed: bool) -> Page:
    batches = decode(part.data)
    next_offset = batches[-1].last_offset + 1 if batches else 0
    if end is not None:
        batches = [batch for batch in batches if batch.base_offset < end]
    aborted: list[Batch] = []
    if committed:
        batches, aborted = by_fate(batches, part.aborted)
    return Page(part.target, batches, next_offset, part.high_watermark, part.last_stable_offset, aborted)
