"""The partition of each account. One function for all services keeps the topics co-partitioned. Pure.

Client accounts hash as Kafka's default partitioner does (murmur2 of the key, see
`org.apache.kafka.clients.producer.internals.BuiltInPartitioner`). A house account names its partition:
`cash@3` lives on 3.

`partitions` is the partition count of every topic, 1 to PARTITIONS_MAX: the setting ONCE_PARTITIONS of the services.
"""

import re
from functools import lru_cache
from zlib import crc32

PARTITIONS_MAX = 256
"""The largest partition count; the checkers keep a partition's number in a byte."""

SHARD_PATTERN = r"0|[1-9][0-9]{0,2}"
"""The partition of a house account as its name ends, without leading zeros; it may be beyond the last partition."""

_SHARD = re.compile(SHARD_PATTERN)

_MASK = 0xFFFFFFFF
_M = 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Kafka's murmur2 with its seed 0x9747b28c, as an unsigned 32-bit integer."""
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ (k >> 24)) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ (h >> 13)) * _M & _MASK
    return h ^ (h >> 15)


@lru_cache(maxsize=65_536)
def partition_for(account: str, partitions: int) -> int:
    """Return the ledger partition of an account, 0 to partitions - 1.

    Raises ValueError for a house account `<name>@<partition>` that does not name an existing partition.
    """
    name, at, shard = account.rpartition("@")
    if not at:
        return (murmur2(account.encode()) & 0x7FFFFFFF) % partitions
    if not name or _SHARD.fullmatch(shard) is None or int(shard) >= partitions:
        raise ValueError(f"house account {account!r} must end in {shards_text(partitions)}")
    return int(shard)


def shards_text(partitions: int) -> str:
    """Return the ends of house accounts, for messages and documents: `@0 to @5`."""
    return "@0" if partitions == 1 else f"@0 to @{partitions - 1}"


def partition_for_bytes(value: bytes, partitions: int) -> int:
    """Return the partition of a record whose debtor cannot be read: a hash of its bytes, so a resend gets the same."""
    return crc32(value) % partitions
