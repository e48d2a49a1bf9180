"""The transaction coordinator's own log, __transaction_state: each change of a transaction's state is a record there.

A coordinator rebuilds its memory from this log, so it is the source of truth for a transactional.id. Keys and values
are TransactionLogKey and TransactionLogValue (common/message/*.json in kafka-transaction-coordinator; KIP-98, version
1: KIP-890 and KIP-915).

Invariant: decoding is pure and refuses any version but 0 and 1. Reading finds the newest transaction from the log's
end, however long the log is.
"""

from contextlib import aclosing
from enum import StrEnum
from typing import Final

import msgspec

from shared.eos.records import Record
from shared.kafka.client.batches import pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.protocol.codec import decode_record
from shared.kafka.protocol.primitives import ProtocolDecodeError

STATE_TOPIC: Final = "__transaction_state"
OFFSETS_TOPIC: Final = "__consumer_offsets"

_WINDOW_RECORDS = 1_000  # first look, from the log's end; each further one reaches ten times as far
_WIDEN = 10


class Status(StrEnum):
    """A transaction's state; its index here is the byte in the log (TransactionState in the Java sources)."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


_BY_CODE = dict(enumerate(Status))

PREPARED: Final = frozenset({Status.PREPARE_COMMIT, Status.PREPARE_ABORT})
"""EndTxn was accepted; markers are being written."""

COMPLETED: Final = frozenset({Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
"""Every partition has its marker."""

OPEN: Final = frozenset({Status.ONGOING}) | PREPARED
"""States in which the transaction has not ended: it holds last stable offsets."""


class TransactionState(msgspec.Struct, frozen=True):
    """A decoded TransactionLogValue. -1 means none, as in the log.

    Attributes:
        version: of the value's schema.
        partitions: of the transaction, as (topic, partition); empty before the first one and after completion.
        last_update_ms, start_ms: milliseconds since 1970 UTC, by the coordinator's clock.
        client_version: the transaction protocol's version that the client uses (transaction.version).
    """

    version: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: Status
    partitions: tuple[Target, ...]
    last_update_ms: int
    start_ms: int
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_version: int = 0
    next_producer_epoch: int = -1


class StateRecord(msgspec.Struct, frozen=True):
    """One record of the log.

    Attributes:
        offset: in the transactional.id's partition of the log.
        timestamp_ms: milliseconds since 1970 UTC, by the coordinator's clock.
    """

    offset: int
    timestamp_ms: int
    state: TransactionState


def partition_of(transactional_id: str, partitions: int) -> int:
    """Return the partition of the log for a transactional.id; its leader is the coordinator.

    Args:
        transactional_id: any.
        partitions: number of partitions of the log (transaction.state.log.num.partitions).
    """
    value = 0
    units = transactional_id.encode("utf-16-be")
    for at in range(0, len(units), 2):  # Java's String.hashCode: over UTF-16 code units, in 32 bits
        value = (31 * value + int.from_bytes(units[at : at + 2])) & 0xFFFFFFFF
    signed = value - (1 << 32) if value & 0x80000000 else value
    # Kafka's Utils.abs: the one number without a positive counterpart counts as 0
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def decode_key(data: bytes) -> str:
    """Decode the transactional.id of a record's key.

    Raises:
        ProtocolDecodeError: an unknown version, or bytes that do not match the schema.
    """
    transactional_id: str = decode_record("TransactionLogKey", data)[1]["TransactionalId"]
    return transactional_id


def decode_value(data: bytes) -> TransactionState:
    """Decode the state in a record's value.

    Raises:
        ProtocolDecodeError: an unknown version, or bytes that do not match the schema.
    """
    version, found = decode_record("TransactionLogValue", data)
    code = found["TransactionStatus"]
    if code not in _BY_CODE:
        raise ProtocolDecodeError(f"transaction state {code} is not known")
    topics = found["TransactionPartitions"] or ()
    return TransactionState(
        version,
        found["ProducerId"],
        found["ProducerEpoch"],
        found["TransactionTimeoutMs"],
        _BY_CODE[code],
        tuple(sorted((topic["Topic"], number) for topic in topics for number in topic["PartitionIds"])),
        found["TransactionLastUpdateTimestampMs"],
        found["TransactionStartTimestampMs"],
        found.get("PreviousProducerId", -1),
        found.get("NextProducerId", -1),
        found.get("ClientTransactionVersion", 0),
        found.get("NextProducerEpoch", -1),
    )


def newest_transaction(states: list[StateRecord]) -> list[StateRecord]:
    """Return the states of a transactional.id's newest transaction.

    Args:
        states: in order; the first ones may have been compacted away.

    Returns:
        From the first Ongoing of the newest transaction on; all states when no transaction began.
    """
    begun = [place for place in range(len(states)) if begins(states, place)]
    return states[begun[-1] :] if begun else states


def begins(states: list[StateRecord], place: int) -> bool:
    """Whether the record at this place is the first of a transaction, as far as the list reaches back."""

    def ongoing(at: int) -> bool:
        return states[at].state.status is Status.ONGOING

    return ongoing(place) and (place == 0 or not ongoing(place - 1))


async def find_coordinator(cluster: Cluster, transactional_id: str) -> int:
    """Return the broker that coordinates a transactional.id, by FindCoordinator. Raises KafkaUnavailableError."""
    return await cluster.retry(
        lambda: cluster.coordinator(transactional_id, transactional=True),
        f"the coordinator of {transactional_id} cannot be found",
    )


async def state_partition(cluster: Cluster, transactional_id: str) -> Target:
    """Return a transactional.id's partition of the log; KafkaUnavailableError if there never was a transaction."""
    targets = await cluster.partitions([STATE_TOPIC])
    return STATE_TOPIC, partition_of(transactional_id, len(targets))


async def states_since(cluster: Cluster, target: Target, transactional_id: str, start: int) -> list[StateRecord]:
    """Return a transactional.id's states from an offset to the log's end, in order; expired ones are left out.

    Args:
        cluster: connection on which `state_partition` was called.
        target: the transactional.id's partition.
        transactional_id: states of others are skipped.
        start: the first offset.

    Raises:
        KafkaUnavailableError: the cluster does not answer.
        ProtocolDecodeError: a record of an unknown version.
    """
    ends = await cluster.offsets([target], LATEST)
    found: list[StateRecord] = []
    async with aclosing(pages(cluster, {target: start}, ends=ends, committed=False)) as read:
        async for page in read:
            for batch in page.batches:
                if not batch.is_control and batch.contains(transactional_id.encode()):
                    for record in batch.records(target):
                        _follow(found, record, transactional_id)
    return found


def _follow(found: list[StateRecord], record: Record, transactional_id: str) -> None:
    if decode_key(record.key or b"") != transactional_id:
        return
    if record.value is None:  # a tombstone: the transactional.id has expired
        found.clear()
    else:
        found.append(StateRecord(record.offset, record.timestamp_ms, decode_value(record.value)))


async def last_states(cluster: Cluster, target: Target, transactional_id: str) -> list[StateRecord]:
    """Return a transactional.id's last states, found from the log's end.

    Args:
        cluster, target, transactional_id: as for `states_since`.

    Returns:
        States in order. They include those of the newest transaction from its first on, and at least one before them
        unless the log begins there. All states when no transaction began; none for an unknown transactional.id.

    Raises:
        KafkaUnavailableError, ProtocolDecodeError: as for `states_since`.
    """
    first = (await cluster.offsets([target], EARLIEST))[target]
    end = (await cluster.offsets([target], LATEST))[target]
    window = _WINDOW_RECORDS
    while True:
        start = max(end - window, first)
        states = await states_since(cluster, target, transactional_id, start)
        if start == first or any(begins(states, place) for place in range(1, len(states))):
            return states
        window *= _WIDEN
