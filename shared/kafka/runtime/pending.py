"""A transaction's records before they are sent: batches by partition, without a future or a copy for each record.

What holds: a partition's records keep their order; a full batch fits a request. It must not send anything.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from shared.eos.errors import AbortableError
from shared.eos.records import Output
from shared.kafka.client.measured import new_batch

BATCH_BYTES = 512 * 1024  # half of a broker's default maximum, so that a full batch always fits
RECORD_BYTES_MAX = 2 * 1024 * 1024  # the dead-letter topic's maximum, the largest of the catalogue

Target = tuple[str, int]
"""A partition: topic and number."""


class Pending:
    """Batches of records that were not sent yet.

    Args:
        producer: an AIOKafkaProducer, whose batches they are.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._open: dict[Target, Any] = {}
        self._full: dict[Target, list[Any]] = {}

    def append(self, outputs: Iterable[Output], timestamp_ms: int) -> None:
        """Append records.

        Args:
            outputs: the records.
            timestamp_ms: their time, milliseconds since 1970 UTC.

        Raises:
            AbortableError: a record is larger than any topic takes.
        """
        for topic, partition, key, value, headers in outputs:
            target = topic, partition
            batch = self._open.get(target)
            if batch is None:
                batch = self._open[target] = new_batch(self._producer)
            if batch.append(timestamp=timestamp_ms, key=key, value=value, headers=list(headers)) is not None:
                continue
            if len(value or b"") + len(key or b"") > RECORD_BYTES_MAX:
                raise AbortableError(f"a record for {topic} exceeds {RECORD_BYTES_MAX} bytes", "RecordTooLarge")
            self._full.setdefault(target, []).append(batch)
            batch = self._open[target] = new_batch(self._producer)
            batch.append(timestamp=timestamp_ms, key=key, value=value, headers=list(headers))

    def take(self) -> Iterator[list[tuple[Target, Any]]]:
        """Take everything out, in rounds of one batch for each partition: one request to each leader."""
        queues = [(target, [*self._full.get(target, ()), batch]) for target, batch in self._open.items()]
        self.clear()
        while queues:
            yield [(target, batches.pop(0)) for target, batches in queues]
            queues = [(target, batches) for target, batches in queues if batches]

    def counts(self) -> dict[str, dict[int, int]]:
        """How many records wait, by topic and partition."""
        found: dict[str, dict[int, int]] = {}
        for (topic, partition), batch in self._open.items():
            batches = (*self._full.get((topic, partition), ()), batch)
            found.setdefault(topic, {})[partition] = sum(one.record_count() for one in batches)
        return found

    def clear(self) -> None:
        """Drop everything."""
        self._open = {}
        self._full = {}
