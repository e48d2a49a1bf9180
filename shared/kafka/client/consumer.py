"""Consumers: one that fetches with patience, and a reader of committed records without a group.

`PatientConsumer` has a short fetch.max.wait.ms while empty fetches block other partitions, and a long one otherwise.

The client has one fetch in flight for each broker. Partitions that are not in it, because their earlier records have
not been processed yet, wait until it returns. So an empty fetch must return soon. When a fetch covers all of a broker's
partitions, no partition waits. Then it may wait as long as the Java client's does, and idle members cause little load.
Records end the wait in both cases.
"""

from collections import Counter
from types import TracebackType
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from shared.eos.records import Record
from shared.kafka.client.access import Bootstrap, client_options
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.connections import Client

IDLE_WAIT_MS: Final = 500
"""The Java client's fetch.max.wait.ms."""


class PatientConsumer(AIOKafkaConsumer):  # type: ignore[misc] # the client ships no types
    """The client's consumer; `fetch_max_wait_ms` applies to fetches that leave partitions out."""

    async def start(self) -> None:
        """Start the consumer, as the client's does."""
        Client.adopt(self._client)
        await super().start()
        fetcher = self._fetcher
        plan = fetcher._get_actions_per_node  # noqa: SLF001 # no public access

        def planned(assignment: Any) -> Any:
            actions = plan(assignment)
            requests = actions[0]
            if requests:
                read_from = Counter(map(fetcher._select_read_replica, assignment.tps))  # noqa: SLF001
                for node_id, request in requests:
                    if sum(len(partitions) for _, partitions in request.topics) == read_from[node_id]:
                        request._max_wait_ms = IDLE_WAIT_MS  # noqa: SLF001 # it has not been sent
            return actions

        fetcher._get_actions_per_node = planned  # noqa: SLF001


class Tail:
    """Follows one topic's committed records from its end, as of entering the context.

    Args:
        topic: the topic to follow.
    """

    def __init__(self, bootstrap_servers: Bootstrap, topic: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._consumer = PatientConsumer(
            **client_options(bootstrap_servers), isolation_level="read_committed", fetch_max_wait_ms=20
        )

    async def __aenter__(self) -> Self:
        async with Cluster(self._bootstrap_servers) as cluster:
            partitions = [TopicPartition(*target) for target in await cluster.partitions([self._topic])]
        await self._consumer.start()
        self._consumer.assign(partitions)
        await self._consumer.seek_to_end(*partitions)
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
