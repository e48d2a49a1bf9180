"""The intended end of each produced batch, as the client's own requests say. Pure.

A batch belongs to the transaction that the next EndTxn of its transactional.id ends. Copies that the proxy sends are
not the client's.
"""

from collections import Counter
from typing import Final, NamedTuple

from deploy.drills.proxy.requests import TRANSACTIONAL_ID, Request
from shared.kafka.client.batches import Batch, decode

IN_A_TRANSACTION: Final = ("Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")


class BatchKey(NamedTuple):
    """Identifies a batch in the log: its producer counts its sequence numbers by partition."""

    partition: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


class Intentions:
    """Follows the requests of one transactional.id. Batches of other topics than the output's are followed as well.

    Attributes:
        commits: of each batch whose transaction the client ended, whether by a commit.
        requests: those within transactions, by API.
        transactions: how many the client ended that had records.
    """

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._open: set[BatchKey] = set()
        self.commits: dict[BatchKey, bool] = {}
        self.requests: Counter[str] = Counter()
        self.transactions = 0

    def observe(self, request: Request) -> None:
        """Note a request."""
        if request.api not in {*IN_A_TRANSACTION, "InitProducerId"}:
            return
        if self._transactional_id not in request.names({}).get(TRANSACTIONAL_ID, ()):
            return
        if request.api == "InitProducerId":
            self._open.clear()  # of a process that was killed
            return
        self.requests[request.api] += 1
        if request.api == "Produce":
            for topic in request.values["TopicData"]:
                for part in topic["PartitionData"]:
                    self._open |= {key_of(part["Index"], batch) for batch in decode(part["Records"] or b"")}
        elif request.api == "EndTxn":
            self.transactions += bool(self._open)
            for key in self._open:
                self.commits.setdefault(key, request.values["Committed"])
            self._open.clear()

    @property
    def requests_per_transaction(self) -> float:
        """Requests of a transaction on average; 0 without any."""
        return round(self.requests.total() / self.transactions, 1) if self.transactions else 0.0


def key_of(partition: int, batch: Batch) -> BatchKey:
    """Return what identifies a batch."""
    return BatchKey(partition, batch.producer_id, batch.producer_epoch, batch.base_sequence)
