"""Progress on an input partition, and the transaction that reached it, as part of the state. Pure.

Each transaction writes two things that identify it: the changelog's record under NEXT_OFFSET_KEY, and the metadata of
the offset that it commits. Brokers can commit a part of a transaction and abort the rest, so the two may disagree
(`shared.eos.audit`).

Invariant: a record below next_offset was processed, whatever the consumer group's offset says. A group that an operator
set back to 0 changes nothing.
"""

from typing import NamedTuple

import msgspec

from shared.eos.sources import SeenSources
from shared.events.codec import decoder

NEXT_OFFSET_KEY = b"next_offset"


class TransactionId(msgspec.Struct, frozen=True):
    """Identifies a transaction, and finds its batches in every partition that it wrote to.

    Attributes:
        begun_ms: no record of it is older, and each record of an earlier transaction of this producer is. Milliseconds
            since 1970 UTC.
    """

    producer_id: int
    producer_epoch: int
    begun_ms: int


class TransactionNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about a transaction that a new owner needs to audit it.

    Attributes:
        ended_ms: no record of it is younger, and each record of a later transaction of this producer is. Milliseconds
            since 1970 UTC.
        records: how many records it wrote, by topic and partition, its changelog's included.
    """

    id: TransactionId
    ended_ms: int
    first_offset: int  # the input offset that it began at
    records: dict[str, dict[int, int]]
    completes: "TransactionNote | None" = None  # the torn transaction that it completes


class NextOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """The changelog's record under NEXT_OFFSET_KEY; the changelog's partition is the input's."""

    next_offset: int  # the first input offset that was not processed
    sources: SeenSources = SeenSources()  # of the records below next_offset
    transaction: TransactionNote | None = None  # the one that wrote this record; None in records of earlier versions


class CommittedOffset(NamedTuple):
    """A consumer group's committed offset of one partition."""

    offset: int
    transaction: TransactionId | None  # the one that committed it; None where an operator or an earlier version set it


encode_next_offset = msgspec.json.Encoder().encode
decode_next_offset = decoder(NextOffset)

_decode_id = decoder(TransactionId)


def offset_metadata(transaction: TransactionId) -> str:
    """Return the metadata of an offset that this transaction commits."""
    return encode_next_offset(transaction).decode()


def committed_offset(offset: int, metadata: str | None) -> CommittedOffset:
    """Decode a committed offset from the group coordinator's response.

    Metadata that is not a transaction's, or None, counts as set by another party.
    """
    try:
        return CommittedOffset(offset, _decode_id((metadata or "").encode()))
    except msgspec.DecodeError:
        return CommittedOffset(offset, None)


def start_offset(committed: int | None, next_offset: int | None, beginning: int) -> int:
    """Return the offset at which processing starts.

    The consumer group's offset and the state's may both be None. Only then is `beginning` taken, the partition's first.
    """
    known = [offset for offset in (committed, next_offset) if offset is not None]
    return max(known) if known else beginning
