"""Consumer groups as their coordinators report them: committed offsets, and the member that owns each partition.

Invariant: a group whose coordinator does not answer hides no other group's answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from aiokafka.client import CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from shared.kafka.admin.transactions import Gaps, error_of
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.cluster import Target


class Groups:
    """Queries consumer groups, and caches their coordinators.

    Args:
        brokers: connections; `view` must have been called.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._coordinators: dict[str, int] = {}

    async def committed(
        self, groups: Iterable[str], asked: Iterable[int]
    ) -> tuple[dict[str, dict[Target, int]], tuple[str, ...]]:
        """Return committed offsets by group and partition; partitions without one are absent.

        Args:
            groups: their names.
            asked: brokers to ask for the coordinator, normally those that answered last.

        Returns:
            The coordinators' answers, and a description of each missing answer.
        """
        found: dict[str, dict[Target, int]] = {}

        async def one(group: str, node_id: int) -> None:
            response = await self._brokers.ask(node_id, OffsetFetchRequest(group, None))
            _refuse(node_id, group, response.error_code)
            found[group] = {
                (topic, partition): offset
                for topic, partitions in response.topics
                for partition, offset, _, error_code in partitions
                if not error_code and offset >= 0
            }

        return found, await self._each(groups, asked, one)

    async def owners(
        self, groups: Iterable[str], asked: Iterable[int]
    ) -> tuple[dict[str, dict[Target, str]], tuple[str, ...]]:
        """Return the client.id that owns each partition, by group.

        Args:
            groups: their names.
            asked: as for `committed`.

        Returns:
            The coordinators' answers, and a description of each missing answer.
        """
        found: dict[str, dict[Target, str]] = {}

        async def one(group: str, node_id: int) -> None:
            response = await self._brokers.ask(node_id, DescribeGroupsRequest([group]))
            for error_code, name, _, _, _, members, *_ in response.groups:
                _refuse(node_id, group, error_code)
                found[name] = {
                    target: client_id for _, client_id, _, _, assignment in members for target in _assigned(assignment)
                }

        return found, await self._each(groups, asked, one)

    async def _each(
        self, groups: Iterable[str], asked: Iterable[int], ask: Callable[[str, int], Awaitable[None]]
    ) -> tuple[str, ...]:
        gaps, through = Gaps(), list(asked)

        async def one(group: str) -> None:
            try:
                await ask(group, await self._coordinator(group, through))
            except BrokerSilentError as error:
                self._coordinators.pop(group, None)  # the coordinator may have moved
                gaps.other(f"group {group}: {error}")

        await asyncio.gather(*(one(group) for group in groups))
        return gaps.sentences()

    async def _coordinator(self, group: str, through: list[int]) -> int:
        known = self._coordinators.get(group)
        if known is not None:
            return known
        if not through:
            raise BrokerSilentError(-1, "no broker is left to ask for the coordinator")
        response = await self._brokers.ask(through[0], FindCoordinatorRequest(group, CoordinationType.GROUP))
        _refuse(through[0], group, response.error_code)
        found: int = response.coordinator_id
        self._coordinators[group] = found
        return found


def _refuse(node_id: int, group: str, error_code: int) -> None:
    if error_code:
        raise BrokerSilentError(node_id, f"does not describe group {group}: {error_of(error_code)}")


def _assigned(assignment: bytes) -> list[Target]:
    """Return the partitions in a member's assignment; none before it has one."""
    if not assignment:
        return []
    decoded = ConsumerProtocolMemberAssignment.decode(assignment)
    return [(topic, partition) for topic, partitions in decoded.assignment for partition in partitions]
