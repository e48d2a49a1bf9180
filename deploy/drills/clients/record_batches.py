"""Record batches as bytes, with what a client would not write: any epoch, sequence and attributes."""

import struct
from collections.abc import Sequence
from typing import Final

from shared.events.headers import Headers
from shared.kafka.client.batches import Batch, decode
from shared.kafka.protocol.primitives import encode_uvarint

TRANSACTIONAL: Final = 0x10
"""An attribute of a batch."""
_TO_CHECKSUM: Final = struct.Struct(">qiib")
_FROM_ATTRIBUTES: Final = struct.Struct(">hiqqqhii")


def record_batch(
    records: Sequence[tuple[bytes | None, bytes | None]],
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    *,
    attributes: int = 0,
    timestamp_ms: int = 0,
    headers: Headers = (),
) -> Batch:
    """A batch of keys and values, at offset 0; each has all headers."""
    data = b"".join(_record(delta, key, value, headers) for delta, (key, value) in enumerate(records))
    last, count = len(records) - 1, len(records)
    covered = _FROM_ATTRIBUTES.pack(
        attributes, last, timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence, count
    )
    covered += data
    # The length counts what is behind it: the leader's epoch, the format, the checksum and what that covers
    header = _TO_CHECKSUM.pack(0, 9 + len(covered), 0, 2)
    return decode(header + crc32c(covered).to_bytes(4, "big") + covered)[0]


def _record(offset_delta: int, key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    content = bytes(2) + _varint(offset_delta) + _nullable(key) + _nullable(value) + _varint(len(headers))
    content += b"".join(_nullable(name.encode()) + _nullable(said) for name, said in headers)
    return _varint(len(content)) + content


def _nullable(data: bytes | None) -> bytes:
    return encode_uvarint(1) if data is None else _varint(len(data)) + data  # the length of None is -1


def _varint(value: int) -> bytes:
    """A number from 0 as Kafka's records have it: zigzag, and seven bits a byte."""
    return encode_uvarint(value << 1)


def _crc32c_table() -> list[int]:
    table = []
    for value in range(256):
        entry = value
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return table


_CRC32C: Final = _crc32c_table()


def crc32c(data: bytes) -> int:
    """The checksum of a batch from its attributes on (RFC 3720)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC32C[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF
