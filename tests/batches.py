"""Record batches that are changed, and control batches, which no client writes."""

import struct
from typing import Final

from deploy.drills.clients.record_batches import TRANSACTIONAL, crc32c, record_batch
from shared.kafka.client.batches import Batch, Marker, decode

_CONTROL: Final = 0x20
"""An attribute of a batch."""
_BASE_OFFSET: Final = struct.Struct(">q")
_CONTROL_KEY: Final = struct.Struct(">hh")
_END_TXN_MARKER: Final = struct.Struct(">hi")
_CHECKSUM_AT, _ATTRIBUTES_AT = 17, 21


def with_checksum(batch: Batch) -> Batch:
    """The batch with a correct checksum."""
    covered = batch.data[_ATTRIBUTES_AT:]
    return decode(batch.data[:_CHECKSUM_AT] + crc32c(covered).to_bytes(4, "big") + covered)[0]


def at_offset(batch: Batch, base_offset: int) -> Batch:
    """The batch with another base offset, which its checksum does not cover."""
    return decode(_BASE_OFFSET.pack(base_offset) + batch.data[_BASE_OFFSET.size :])[0]


def end_marker(
    marker: Marker, producer_id: int, producer_epoch: int, *, coordinator_epoch: int, timestamp_ms: int = 0
) -> Batch:
    """A control batch that ends a transaction on a partition, at offset 0 (KIP-98)."""
    record = (_CONTROL_KEY.pack(0, marker.value), _END_TXN_MARKER.pack(0, coordinator_epoch))
    return record_batch(
        [record], producer_id, producer_epoch, -1, attributes=TRANSACTIONAL | _CONTROL, timestamp_ms=timestamp_ms
    )


def coordinator_epoch_of(batch: Batch) -> int:
    """The epoch of the coordinator that wrote a marker."""
    [record] = batch.records(("", 0))
    epoch: int = _END_TXN_MARKER.unpack(record.value or b"")[1]
    return epoch
