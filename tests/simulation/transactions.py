"""The transaction coordinator's decisions: what one transactional.id may do next (KIP-98, KIP-360, KIP-890).

They are those of Kafka 4.3's TransactionCoordinator and TransactionMetadata, for both versions of transactions. What is
decided is appended to the coordinator's log by the caller first; it becomes the state when that is done.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple

from deploy.drills.clients.record_batches import record_batch
from shared.kafka.client.batches import Batch, Marker
from shared.kafka.protocol.codec import Values, decode_record, encode
from tests.simulation.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TRANSACTION_TIMEOUT,
    INVALID_TXN_STATE,
    NONE,
    PRODUCER_FENCED,
    TRANSACTION_ABORTABLE,
)

Target = tuple[str, int]

EPOCH_MAX: Final = 2**15 - 2
"""The last epoch of a producer id that a client gets; then it gets another producer id."""
TIMEOUT_MAX_MS: Final = 60_000
"""transaction.max.timeout.ms"""
_VERSION: Final = 1
"""Of the coordinator's records."""


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
        last_epoch: the epoch before this one, while its producer may not know this one yet; -1 if there is none. It is
            not in the log.
        previous_id: the producer id before this one, whose epochs are used up; -1 if there is none.
        next_id: the producer id from the transaction's completion on, likewise.
    """

    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[Target] = frozenset()
    started_ms: int = -1
    last_epoch: int = -1
    previous_id: int = -1
    next_id: int = -1

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


def initialise(
    known: Transaction | None, timeout_ms: int, new_producer_id: int, own: tuple[int, int] | None = None
) -> Decision:
    """InitProducerId, with the producer id and epoch that the client has, or None (KIP-360).

    An open transaction is aborted first, under the next epoch, and the client asks again until it has ended.
    """
    if not 0 < timeout_ms <= TIMEOUT_MAX_MS:
        return Decision(INVALID_TRANSACTION_TIMEOUT)
    if known is None:
        return Decision(NONE, Transaction(new_producer_id, 0, timeout_ms))
    if own is not None and own[0] != known.producer_id:
        return Decision(PRODUCER_FENCED)
    if known.state in _PREPARING:
        return Decision(CONCURRENT_TRANSACTIONS)
    if known.state is State.ONGOING:
        return Decision(CONCURRENT_TRANSACTIONS, fence(known))
    return _given(known, timeout_ms, new_producer_id, None if own is None else own[1])


def _given(known: Transaction, timeout_ms: int, new_producer_id: int, own_epoch: int | None) -> Decision:
    """A new epoch, where no transaction is open or ending."""
    if own_epoch not in {None, known.epoch}:
        # The epoch was raised for this client, which did not get the answer
        given = replace(known, timeout_ms=timeout_ms, state=State.EMPTY, started_ms=-1)
        return Decision(NONE, given) if own_epoch == known.last_epoch else Decision(PRODUCER_FENCED)
    if known.epoch >= EPOCH_MAX:
        return Decision(NONE, Transaction(new_producer_id, 0, timeout_ms))
    last_epoch = -1 if own_epoch is None else known.epoch
    return Decision(NONE, Transaction(known.producer_id, known.epoch + 1, timeout_ms, last_epoch=last_epoch))


def fence(known: Transaction) -> Transaction:
    """Abort an open transaction under an epoch that its producer does not have."""
    return replace(known, epoch=known.epoch + 1, state=State.PREPARE_ABORT, last_epoch=known.epoch)


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


def end_under_next_epoch(
    known: Transaction | None, producer_id: int, epoch: int, marker: Marker, new_producer_id: int
) -> Decision:
    """EndTxn from version 5 on: each end raises the epoch, so that a repeat differs from a later end (KIP-890)."""
    if known is None or producer_id not in {known.producer_id, known.previous_id}:
        return Decision(INVALID_PRODUCER_ID_MAPPING)
    current = (producer_id, epoch) == (known.producer_id, known.epoch)
    before = (known.producer_id, known.epoch - 1) if known.epoch else (known.previous_id, EPOCH_MAX)
    if not current and (producer_id, epoch) != before:
        return Decision(PRODUCER_FENCED)
    if known.state in _PREPARING:
        return Decision(CONCURRENT_TRANSACTIONS)
    if not current:
        return _repeated_end(known, marker)
    if known.state is not State.ONGOING and marker is Marker.COMMIT:
        return Decision(INVALID_TXN_STATE)
    prepared = replace(known, state=_PREPARED[marker], epoch=epoch + 1, last_epoch=epoch)
    if known.state is not State.ONGOING:
        prepared = replace(prepared, partitions=frozenset())
    return Decision(NONE, replace(prepared, next_id=new_producer_id) if epoch >= EPOCH_MAX else prepared)


def _repeated_end(known: Transaction, marker: Marker) -> Decision:
    if known.state in {State.EMPTY, State.ONGOING}:
        return Decision(PRODUCER_FENCED)
    return Decision(NONE if known.state is _COMPLETE[_PREPARED[marker]] else INVALID_TXN_STATE)


def complete(known: Transaction) -> Transaction:
    """The state after all markers are written."""
    done = replace(known, state=_COMPLETE[known.state], partitions=frozenset())
    if known.next_id < 0:
        return done
    return replace(done, producer_id=known.next_id, epoch=0, previous_id=known.producer_id, next_id=-1)


def given_by_end(known: Transaction) -> tuple[int, int]:
    """Producer id and epoch for the next transaction, while one ends or after it has ended."""
    return (known.next_id, 0) if known.next_id >= 0 else (known.producer_id, known.epoch)


def has(known: Transaction | None, producer_id: int, epoch: int, target: Target) -> int:
    """The error code of a batch that a partition's leader asks about, before the first one of a transaction there."""
    refused = _refused(known, producer_id, epoch)
    if known is None or refused != NONE:
        return refused
    if known.state in _PREPARING:
        return CONCURRENT_TRANSACTIONS
    return NONE if known.state is State.ONGOING and target in known.partitions else TRANSACTION_ABORTABLE


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
        "PreviousProducerId": transaction.previous_id,
        "NextProducerId": transaction.next_id,
    }
    key = bytes(2) + encode("TransactionLogKey", 0, {"TransactionalId": name})
    value_bytes = _VERSION.to_bytes(2, "big") + encode("TransactionLogValue", _VERSION, value)
    return record_batch([(key, value_bytes)], timestamp_ms=now_ms)


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
        previous_id=value["PreviousProducerId"],
        next_id=value["NextProducerId"],
    )
