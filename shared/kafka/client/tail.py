"""Reads records as they are committed, without a group."""

from types import TracebackType
from typing import Self

from aiokafka import TopicPartition

from shared.eos.records import Record
from shared.events.partitions import PARTITIONS
from shared.kafka.client.access import Bootstrap, client_options
from shared.kafka.client.patience import PatientConsumer


class Tail:
    """Follows one topic's committed records from its end, as of entering the context.

    Args:
        topic: the topic to follow.
    """

    def __init__(self, bootstrap_servers: Bootstrap, topic: str) -> None:
        self._partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        self._consumer = PatientConsumer(
            **client_options(bootstrap_servers), isolation_level="read_committed", fetch_max_wait_ms=20
        )

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        self._consumer.assign(self._partitions)
        await self._consumer.seek_to_end(*self._partitions)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._consumer.stop()

    async def poll(self, timeout_ms: int) -> list[Record]:
        """Return new records, in order per partition; none after `timeout_ms`."""
        polled = await self._consumer.getmany(timeout_ms=timeout_ms)
        return [
            Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
            for records in polled.values()
            for r in records
        ]
