"""A consumer whose empty fetches wait at the broker briefly while they block others, and long when they block nobody.

The client has one fetch under way for each broker. Partitions that it left out, because what came of them before was
not processed yet, wait until it returns: so an empty one must return soon. When all of a broker's partitions are in it,
nobody waits: it may stay as long as the Java client's does, and brokers and members at rest have next to nothing to do.
Records end either at once.
"""

from collections import Counter
from typing import Any, Final

from aiokafka import AIOKafkaConsumer

AT_REST_MS: Final = 500
"""The Java client's fetch.max.wait.ms."""


class PatientConsumer(AIOKafkaConsumer):  # type: ignore[misc] # the client ships no types
    """The client's consumer; `fetch_max_wait_ms` is for those that leave partitions out."""

    async def start(self) -> None:
        """As the client's."""
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
                        request._max_wait_ms = AT_REST_MS  # noqa: SLF001 # it has not been sent
            return actions

        fetcher._get_actions_per_node = planned  # noqa: SLF001
