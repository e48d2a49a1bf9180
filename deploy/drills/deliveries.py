"""Records delivered against records sent: duplicates, losses, changes of order and aborted reads. Pure.

The same checks judge a protected client and its control. Each record's value must be unique.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from shared.kafka.client.batches import Batch, Marker
from shared.kafka.client.cluster import Target


def duplicates(found: Iterable[bytes]) -> list[str]:
    """Return one text for each further copy of a record."""
    return [
        f"{value!r}: copy {copy} of {count}" for value, count in Counter(found).items() for copy in range(2, count + 1)
    ]


def losses(acknowledged: Iterable[bytes], found: Iterable[bytes]) -> list[str]:
    """Return one text for each record that was acknowledged and is not there."""
    there = set(found)
    return [f"{value!r} was acknowledged" for value in acknowledged if value not in there]


def reorderings(sent: Sequence[bytes], found: Iterable[bytes]) -> list[str]:
    """Return one text for each record behind one that was sent later; of several copies the first counts."""
    place = {value: number for number, value in enumerate(sent)}
    latest = -1
    texts = []
    for value in dict.fromkeys(found):
        if place[value] < latest:
            texts.append(f"{value!r} behind {sent[latest]!r}")
        latest = max(latest, place[value])
    return texts


def aborted_reads(found: Iterable[bytes], log: Sequence[Batch], target: Target) -> list[str]:
    """Return one text for each record that was read although its transaction was aborted.

    Args:
        log: every batch of the partition, markers included.
        target: the partition.
    """
    read = set(found)
    ends: dict[int, Marker | None] = {}  # of the transactions behind, by producer id
    texts: list[str] = []
    for batch in reversed(log):
        if batch.is_control:
            ends[batch.producer_id] = batch.marker
        elif batch.is_transactional and ends.get(batch.producer_id) is Marker.ABORT:
            records = batch.records(target)
            texts += [f"{one.value!r} at {target[0]}:{target[1]}:{one.offset}" for one in records if one.value in read]
    return texts[::-1]
