"""Audit of a previous owner's last transaction: committed, aborted or torn. Pure.

A coordinator that restarts without a quorum can act on a commit that it never replicated (docs/upstream.md). Some of a
transaction's partitions then get a COMMIT marker, and its successor writes ABORT to the others. Kafka promises that
this does not happen, and no client can prevent it.

A COMMIT marker on any partition proves that the owner asked for the commit, so every record was acknowledged before.
A torn transaction is therefore rolled forward: the records of its aborted parts are still in their logs, and are
written again in one transaction with the offset. Their input need not be processed again.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from shared.eos.errors import FatalError
from shared.eos.progress import CommittedOffset, TransactionId, TransactionNote

Target = tuple[str, int]  # topic, partition


class Fate(Enum):
    """How a transaction ended in one partition."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    ABSENT = "absent"  # its records were never written, or have been deleted


class Part(NamedTuple):
    """The number of a transaction's records found in one partition, and how it ended there."""

    fate: Fate
    records: int


class Outcome(Enum):
    """How a transaction ended as a whole."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    TORN = "torn"


class TornTransactionError(FatalError):
    """A torn transaction that cannot be completed: some of its records are no longer in the log."""


def set_by_hand(committed: CommittedOffset | None, transaction: TransactionNote) -> bool:
    """Whether an operator has set the group's offset since.

    An offset without a transaction that equals the last transaction's first offset comes from an earlier version.
    """
    return committed is not None and committed.transaction is None and committed.offset != transaction.first_offset


def raise_if_state_lost(
    where: str, committed: CommittedOffset | None, kept: TransactionId | None, aborted: Collection[TransactionId]
) -> None:
    """Raise TornTransactionError if the changelog ends before the transaction that committed the group's offset.

    Args:
        where: the input partition and the group, for the operator.
        kept: the last transaction that was committed in the changelog; None when there is none.
        aborted: those that follow it. A zombie's may be among them, so that one is later says nothing.
    """
    if committed is None or (by := committed.transaction) is None:
        return
    if by not in aborted and (kept is None or _order(by, kept) > _order(kept, by)):
        raise TornTransactionError(
            f"the state of {where} does not reach offset {committed.offset}: the changelog has no record of the "
            f"transaction that committed it (producer {by.producer_id}, epoch "
            f"{by.producer_epoch}). Find out what removed it. To go on with the state as it is, set "
            f"the group's offset to {committed.offset} with kafka-consumer-groups --reset-offsets, start the service, "
            "then run `once verify` and `once repair`"
        )


def _order(one: TransactionId, other: TransactionId) -> tuple[int, int]:
    """Order transactions of one producer by epoch and time; another producer id's epochs say nothing."""
    return (one.producer_epoch if one.producer_id == other.producer_id else 0, one.begun_ms)


def outcome(parts: Collection[Part], *, offset_committed: bool | None) -> Outcome:
    """Decide how a transaction ended, from its part in each partition that it wrote to.

    `offset_committed` says whether the group's offset is the transaction's; None where the group has no offset, which
    may have expired since.
    """
    fates = {part.fate for part in parts}
    if not offset_committed and Fate.COMMITTED not in fates:
        return Outcome.ABORTED
    # Records that are absent, with nothing to contradict, were deleted by retention or compaction
    contradicted = offset_committed is False or Fate.ABORTED in fates
    return Outcome.TORN if contradicted else Outcome.COMMITTED


def raise_if_incomplete(
    where: str, next_offset: int, transaction: TransactionNote, parts: Mapping[Target, Part]
) -> None:
    """Raise TornTransactionError unless every record of a torn transaction is still in its log.

    Args:
        where: the input partition and the group, for the operator.
        next_offset: the input offset that the transaction ended at.
        parts: by partition, all that it wrote to.
    """
    missing = []
    for (topic, partition), part in parts.items():
        expected = transaction.records[topic][partition]
        if part.records != expected and part.fate is not Fate.COMMITTED:
            missing.append(f"{topic}:{partition} has {part.records} of {expected} records")
    if missing:
        raise TornTransactionError(
            f"the brokers committed only a part of the transaction over {where}, offsets {transaction.first_offset} to "
            f"{next_offset - 1} (producer {transaction.id.producer_id}, epoch {transaction.id.producer_epoch}). The "
            f"rest is no longer in the log: {', '.join(missing)}. Set the group's offset to {next_offset} with "
            "kafka-consumer-groups --reset-offsets, start the service, then run `once verify` and `once repair`"
        )
