"""The verdict on a run: input against committed output, and the log against the client's intentions. Pure."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from shared.kafka.client.batches import Batch, Marker
from tests.drills.transactions.intentions import BatchKey, key_of


class Written(NamedTuple):
    """A data batch of the output, with the values in it and how its transaction ended; None: it is open."""

    key: BatchKey
    values: Sequence[int]
    is_committed: bool | None


class Anomalies(NamedTuple):
    """Deviations from exactly once, in records.

    Attributes:
        lost: without a committed output, although the group's offset is past them.
        duplicated: committed outputs too many.
        aborted_read: committed outputs that the client aborted, or never ended.
        pending: neither committed nor passed over: the hop hangs.
    """

    lost: int
    duplicated: int
    aborted_read: int
    pending: int

    def __str__(self) -> str:
        named = [(self.lost, "lost"), (self.duplicated, "duplicated"), (self.aborted_read, "aborted read")]
        texts = [f"{count} {name}" for count, name in named if count]
        return ", ".join(texts + ([f"hang ({self.pending} pending)"] if self.pending else [])) or "none"


def written(partition: int, batches: Sequence[Batch], values: Mapping[int, Sequence[int]]) -> list[Written]:
    """Return the data batches of a partition with the ends of their transactions.

    Args:
        batches: the partition's, markers included, in order.
        values: of each data batch, by its base offset.
    """
    found: list[Written] = []
    ends: dict[int, bool] = {}  # of the transactions behind, by producer id
    for batch in reversed(batches):
        if batch.is_control:
            ends[batch.producer_id] = batch.marker is Marker.COMMIT
        else:
            values_of = values[batch.base_offset]
            found.append(Written(key_of(partition, batch), values_of, ends.get(batch.producer_id)))
    return found[::-1]


def judge(
    inputs: Iterable[int], output: Iterable[Written], commits: Mapping[BatchKey, bool], passed: Container[int]
) -> Anomalies:
    """Compare the input with the output.

    Args:
        inputs: the values, all different.
        output: all data batches.
        commits: of each batch whose transaction the client ended, whether by a commit.
        passed: the inputs that the group's offsets are past.
    """
    visible = [one for one in output if one.is_committed]
    counts = Counter(value for one in visible for value in one.values)
    missing = [value for value in inputs if value not in counts]
    return Anomalies(
        lost=sum(value in passed for value in missing),
        duplicated=sum(count - 1 for count in counts.values()),
        aborted_read=sum(len(one.values) for one in visible if not commits.get(one.key, False)),
        pending=sum(value not in passed for value in missing),
    )
