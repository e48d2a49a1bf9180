"""A consumer with a short fetch.max.wait.ms while empty fetches block other partitions, and a long one otherwise.

The client has one fetch in flight for each broker. Partitions that are not in it, because their earlier records have
not been processed yet, wait until it returns. So an empty fetch must return soon. When a fetch covers all of a broker's
partitions, no partition waits. Then it may wait as long as the Java client's does, and idle members cause little load.
Records end the wait in both cases.
"""

from collections import Counter
from typing import Any, Final

from aiokafka import AIOKafkaConsumer

IDLE_WAIT_MS: Final = 500
"""The Java client's fetch.max.wait.ms."""


class PatientConsumer(AIOKafkaConsumer):  # type: ignore[misc] # the client ships no types
    """The client's consumer; `fetch_max_wait_ms` applies to fetches that leave partitions out."""

    async def start(self) -> None:
        """Start the consumer, as the client's does."""
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
