"""Records of a transaction before they are sent: in batches, without a future or a copy for each record.

Invariant: a partition's records keep their order, and a full batch fits a request.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from shared.eos.errors import AbortableError
from shared.eos.records import Output
from shared.events.headers import Headers
from shared.kafka.client.cluster import Target

BATCH_BYTES: Final = 512 * 1024  # half of a broker's default maximum, so that a full batch always fits
RECORD_BYTES_MAX: Final = 2 * 1024 * 1024  # the dead-letter topic's maximum, the largest of the catalogue
_MAGIC: Final = 2
_UNCOMPRESSED: Final = 0


class Numbered(NamedTuple):
    """A batch with its place in its producer's sequence, as it is sent.

    Attributes:
        begun_s: when its first record was appended, on the monotonic clock.
    """

    data: bytearray
    records: int
    begun_s: float


class OpenBatch:
    """A batch that takes records.

    Attributes:
        records: how many it has.
    """

    __slots__ = ("_begun_s", "_builder", "records")

    def __init__(self) -> None:
        # Producer and sequence follow when it is sent
        self._builder: Any = DefaultRecordBatchBuilder(
            _MAGIC,
            _UNCOMPRESSED,
            is_transactional=1,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=0,
            batch_size=BATCH_BYTES,
        )
        self._begun_s = time.monotonic()
        self.records = 0

    def append(self, timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Headers) -> bool:
        """Append a record, and return whether it fits; the first one always does."""
        if self._builder.append(self.records, timestamp_ms, key, value, list(headers)) is None:
            return False
        self.records += 1
        return True

    def number(self, producer_id: int, epoch: int, sequence: int) -> Numbered:
        """Close the batch under a producer's next sequence number."""
        self._builder.set_producer_state(producer_id, epoch, sequence)
        return Numbered(self._builder.build(), self.records, self._begun_s)


class Outgoing:
    """The records of a transaction that were not sent yet, by partition."""

    def __init__(self) -> None:
        self._batches: dict[Target, list[OpenBatch]] = {}

    def append(self, outputs: Iterable[Output], timestamp_ms: int) -> None:
        """Append records with one timestamp; AbortableError if one is larger than any topic accepts."""
        for topic, partition, key, value, headers in outputs:
            target = topic, partition
            batches = self._batches.get(target)
            if batches is None:
                batches = self._batches[target] = [OpenBatch()]
            if batches[-1].append(timestamp_ms, key, value, headers):
                continue
            if len(value or b"") + len(key or b"") > RECORD_BYTES_MAX:
                raise AbortableError(f"a record for {topic} exceeds {RECORD_BYTES_MAX} bytes", "RecordTooLarge")
            batches.append(OpenBatch())
            batches[-1].append(timestamp_ms, key, value, headers)

    @property
    def targets(self) -> list[Target]:
        """The partitions that have records."""
        return list(self._batches)

    def take(self) -> Iterator[dict[Target, OpenBatch]]:
        """Take everything out, in rounds of one batch for each partition: one request to each leader."""
        waiting, self._batches = self._batches, {}
        for batches in waiting.values():
            batches.reverse()
        while waiting:
            yield {target: batches.pop() for target, batches in waiting.items()}
            waiting = {target: batches for target, batches in waiting.items() if batches}

    def clear(self) -> None:
        """Drop everything."""
        self._batches = {}
