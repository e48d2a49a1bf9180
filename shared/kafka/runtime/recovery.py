"""Recovering a partition's state, and what a predecessor's last transaction left undone.

Call it after InitProducerId, which ends that transaction as its coordinator knows it. Where brokers have torn it
(`shared.eos.audit`), its aborted parts are read from their logs, for the new owner to write again.
"""

from dataclasses import dataclass

from shared.eos.audit import (
    Fate,
    Outcome,
    Target,
    ended_by_owner,
    outcome,
    raise_if_incomplete,
    raise_if_state_lost,
    set_by_hand,
)
from shared.eos.progress import NEXT_OFFSET_KEY, CommittedOffset, NextOffset, TransactionNote
from shared.eos.records import Output
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.parts import TransactionPart, read_parts
from shared.kafka.runtime.changelog import Restored


@dataclass(frozen=True, slots=True)
class Torn:
    """A torn transaction and what completes it.

    Attributes:
        transaction: as its owner noted it.
        noted: the state's progress behind it.
        fates: how it ended in each partition.
        outputs: the records of its aborted parts, in order; the changelog's note is left out.
    """

    transaction: TransactionNote
    noted: NextOffset
    fates: dict[Target, Fate]
    outputs: list[Output]

    @property
    def described(self) -> dict[str, str]:
        """How it ended by partition, for the log."""
        return {f"{topic}:{partition}": fate.value for (topic, partition), fate in sorted(self.fates.items())}


async def find_torn(
    cluster: Cluster, where: str, restored: Restored, committed: CommittedOffset | None, epoch: tuple[int, int]
) -> Torn | None:
    """Audit the previous owner's last transaction.

    Args:
        cluster: an open connection.
        where: the input partition and the group, for the operator.
        restored: the state, with the last transaction's note.
        committed: the group's offset.
        epoch: producer id and epoch that InitProducerId gave to the new owner.

    Returns:
        The torn transaction; None where the last one was committed or aborted as a whole.

    Raises:
        TornTransactionError: it is torn, and records of it are no longer in the log; or the state is older than the
            group's offset.
        OpenPartError: a marker is missing.
        KafkaUnavailableError: the cluster does not answer.
    """
    last = restored.last.noted if restored.last is not None else None
    transaction = last.transaction if last is not None else None
    raise_if_state_lost(where, committed, transaction.id if transaction is not None else None)
    if last is None or transaction is None or set_by_hand(committed, transaction):
        return None
    kept = restored.committed
    if last is kept and ended_by_owner(transaction.id, *epoch):
        return None
    torn = await _audit(cluster, where, last, transaction, committed)
    if torn is not None or kept is None or kept is last or committed is None:
        return torn
    if kept.transaction is None or committed.transaction != kept.transaction.id:
        return None
    # Where a partition had no leader its marker was skipped, and the abort of the last transaction decided for both
    return await _audit(cluster, where, kept, kept.transaction, committed, settled=True)


async def _audit(
    cluster: Cluster,
    where: str,
    noted: NextOffset,
    transaction: TransactionNote,
    committed: CommittedOffset | None,
    *,
    settled: bool = False,
) -> Torn | None:
    """Audit one transaction, or the one that it was to complete.

    Args:
        settled: another one followed: a marker that is missing does not come any more.
    """
    read = await read_parts(cluster, transaction, wait=not settled)
    parts = {one.target: one.part() for one in read}
    offset_committed = None if committed is None else committed.transaction == transaction.id
    ended = outcome(parts.values(), offset_committed=offset_committed)
    if ended is Outcome.TORN:
        raise_if_incomplete(where, noted.next_offset, transaction, parts)
        fates = {target: part.fate for target, part in parts.items()}
        outputs = [output for one in read if fates[one.target] is Fate.ABORTED for output in _outputs(one)]
        return Torn(transaction, noted, fates, outputs)
    if ended is Outcome.ABORTED and transaction.completes is not None:
        # An earlier attempt to complete a torn transaction left nothing behind
        return await _audit(cluster, where, noted, transaction.completes, committed)
    return None


def _outputs(one: TransactionPart) -> list[Output]:
    return [
        Output(record.topic, record.partition, record.key, record.value, record.headers)
        for record in one.records()
        if record.key != NEXT_OFFSET_KEY
    ]
