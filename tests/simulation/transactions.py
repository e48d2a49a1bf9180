"""The transaction coordinator's decisions: what one transactional.id may do next (KIP-98, KIP-360, KIP-890).

They are those of Kafka 4.3's TransactionCoordinator and TransactionMetadata for transactions of version 1. What is
decided is appended to the coordinator's log by the caller first; it becomes the state when that is done.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from shared.kafka.client.batches import Batch, Marker
from shared.kafka.protocol.codec import Values, decode_record, encode
from tests.record_batches import record_batch
from tests.simulation.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    NONE,
    PRODUCER_FENCED,
)

Target = tuple[str, int]

EPOCH_MAX: Final = 2**15 - 2
"""The last epoch of a producer id that a client gets; then it gets another producer id."""
TIMEOUT_MAX_MS: Final = 60_000
"""transaction.max.timeout.ms"""
_VERSION: Final = 0
"""Of the coordinator's records: that of transactions of version 1."""


class State(IntEnum):
    """A transaction's state, by its number in the coordinator's log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


_PREPARING: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
_PREPARED: Final = {Marker.COMMIT: State.PREPARE_COMMIT, Marker.ABORT: State.PREPARE_ABORT}
_COMPLETE: Final = {
    State.PREPARE_COMMIT: State.COMPLETE_COMMIT,
    State.PREPARE_ABORT: State.COMPLETE_ABORT,
}


@dataclass(frozen=True, slots=True)
class Transaction:
    """What the coordinator's log has of one transactional.id.

    Attributes:
        timeout_ms: after which an open transaction is aborted.
        partitions: of the open or ending transaction.
        started_ms: when it was opened, milliseconds since 1970; -1 without one.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[Target] = frozenset()
    started_ms: int = -1

    @property
    def marker(self) -> Marker:
        """What is written to the partitions of a transaction that ends."""
        return Marker.COMMIT if self.state is State.PREPARE_COMMIT else Marker.ABORT


class Decision(NamedTuple):
    """What to answer, and the state to append first.

    Attributes:
        code: Kafka's error code, for the newest version of the request.
        next: None where nothing changes.
    """

    code: int
    next: Transaction | None = None


def initialise(known: Transaction | None, timeout_ms: int, new_producer_id: int) -> Decision:
    """InitProducerId without a producer id of the client's own.

    An open transaction is aborted first, under the next epoch, and the client asks again until it has ended.
    """
    if not 0 < timeout_ms <= TIMEOUT_MAX_MS:
        return Decision(INVALID_TRANSACTION_TIMEOUT)
    if known is None:
        return Decision(NONE, Transaction(new_producer_id, 0, timeout_ms))
    if known.state in _PREPARING:
        return Decision(CONCURRENT_TRANSACTIONS)
    if known.state is State.ONGOING:
        return Decision(CONCURRENT_TRANSACTIONS, fence(known))
    if known.epoch >= EPOCH_MAX:
        return Decision(NONE, Transaction(new_producer_id, 0, timeout_ms))
    return Decision(NONE, Transaction(known.producer_id, known.epoch + 1, timeout_ms))


def fence(known: Transaction) -> Transaction:
    """Abort an open transaction under an epoch that its producer does not have."""
    return replace(known, epoch=known.epoch + 1, state=State.PREPARE_ABORT)


def add(known: Transaction | None, producer_id: int, epoch: int, partitions: Iterable[Target], now_ms: int) -> Decision:
    """AddPartitionsToTxn, and AddOffsetsToTxn for the partition of a group's offsets."""
    refused = _refused(known, producer_id, epoch)
    if known is None or refused != NONE:
        return Decision(refused)
    if known.state in _PREPARING:
        return Decision(CONCURRENT_TRANSACTIONS)
    opened = known.state is State.ONGOING
    wanted = frozenset(partitions)
    if opened and wanted <= known.partitions:
        return Decision(NONE)
    before = known.partitions if opened else frozenset()
    started_ms = known.started_ms if opened else now_ms
    return Decision(NONE, replace(known, state=State.ONGOING, partitions=before | wanted, started_ms=started_ms))


def end(known: Transaction | None, producer_id: int, epoch: int, marker: Marker) -> Decision:
    """EndTxn. It may be repeated with the same outcome, until the next transaction begins."""
    refused = _refused(known, producer_id, epoch)
    if known is None or refused != NONE:
        return Decision(refused)
    prepared = _PREPARED[marker]
    if known.state is State.ONGOING:
        return Decision(NONE, replace(known, state=prepared))
    if known.state is prepared:
        return Decision(CONCURRENT_TRANSACTIONS)
    return Decision(NONE if known.state is _COMPLETE[prepared] else INVALID_TXN_STATE)


def complete(known: Transaction) -> Transaction:
    """The state after all markers are written."""
    return replace(known, state=_COMPLETE[known.state], partitions=frozenset())


def has(known: Transaction | None, producer_id: int, epoch: int, target: Target) -> int:
    """The error code of a batch that a partition's leader asks about, before the first one of a transaction there."""
    refused = _refused(known, producer_id, epoch)
    if known is None or refused != NONE:
        return refused
    if known.state in _PREPARING:
        return CONCURRENT_TRANSACTIONS
    return NONE if known.state is State.ONGOING and target in known.partitions else INVALID_TXN_STATE


def is_late(known: Transaction, now_ms: int) -> bool:
    """Whether an open transaction is past its timeout."""
    return known.state is State.ONGOING and now_ms > known.started_ms + known.timeout_ms


def _refused(known: Transaction | None, producer_id: int, epoch: int) -> int:
    if known is None or known.producer_id != producer_id:
        return INVALID_PRODUCER_ID_MAPPING
    return NONE if known.epoch == epoch else PRODUCER_FENCED


def record(name: str, transaction: Transaction, now_ms: int) -> Batch:
    """A state as the coordinator's log has it."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(number)
    partitions = [{"Topic": topic, "PartitionIds": numbers} for topic, numbers in topics.items()]
    value = {
        "ProducerId": transaction.producer_id,
        "ProducerEpoch": transaction.epoch,
        "TransactionTimeoutMs": transaction.timeout_ms,
        "TransactionStatus": transaction.state.value,
        "TransactionPartitions": partitions or None,
        "TransactionLastUpdateTimestampMs": now_ms,
        "TransactionStartTimestampMs": transaction.started_ms,
    }
    version = _VERSION.to_bytes(2, "big")
    key = version + encode("TransactionLogKey", _VERSION, {"TransactionalId": name})
    return record_batch([(key, version + encode("TransactionLogValue", _VERSION, value))], timestamp_ms=now_ms)


def recorded(batch: Batch, state_partition: Target) -> dict[str, Transaction]:
    """The states that a batch of the coordinator's log has, by transactional.id."""
    return {
        decode_record("TransactionLogKey", one.key or b"")[1]["TransactionalId"]: _decoded(
            decode_record("TransactionLogValue", one.value or b"")[1]
        )
        for one in batch.records(state_partition)
    }


def _decoded(value: Values) -> Transaction:
    partitions = frozenset(
        (topic["Topic"], number) for topic in value["TransactionPartitions"] or () for number in topic["PartitionIds"]
    )
    return Transaction(
        value["ProducerId"],
        value["ProducerEpoch"],
        value["TransactionTimeoutMs"],
        State(value["TransactionStatus"]),
        partitions,
        value["TransactionStartTimestampMs"],
    )
