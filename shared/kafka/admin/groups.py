"""Consumer groups as their coordinators report them: committed offsets, and the member that owns each partition.

`drained` waits until every committed input record was processed and no transaction is open. It looks at committed
offsets and the logs only, never at a service. An offset below the log's end alone proves nothing, because markers and
aborted records take offsets too. What counts is whether a committed data record follows.

Invariant: a group whose coordinator does not answer hides no other group's answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from aiokafka.client import CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest

from shared.events.catalogue import EFFECTS_REQUESTS, LEDGER_TRANSFERS, PAYMENTS_ACCEPTED, PAYMENTS_RAW
from shared.kafka.admin.transactions import Gaps, error_of
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import pages
from shared.kafka.client.brokers import Brokers, BrokerSilentError
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.client.errors import DrainTimeoutError, GroupIdNotFoundError, error_for
from shared.kafka.client.reader import committed_offsets
from shared.kafka.client.requests import Request


class Described(NamedTuple):
    """A member of a group.

    Attributes:
        client_id: `<service>-<instance>`.
        epoch: the member's (KIP-848); -1 in a classic group.
        targets: the partitions that it has.
    """

    client_id: str
    member_id: str
    epoch: int
    targets: list[Target]


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
            members = await self._members(group, node_id)
            if members is None:
                members = await self._classic_members(group, node_id)
            found[group] = {target: member.client_id for member in members for target in member.targets}

        return found, await self._each(groups, asked, one)

    async def members(self, group: str, asked: Iterable[int]) -> list[Described]:
        """Return a group's members by the newer protocol (KIP-848); none where it has no such members.

        Raises:
            BrokerSilentError: the coordinator does not answer.
        """
        return await self._members(group, await self._coordinator(group, list(asked))) or []

    async def _members(self, group: str, node_id: int) -> list[Described] | None:
        """The members by the newer protocol; None where the group does not speak it."""
        response = await self._brokers.ask(node_id, Request("ConsumerGroupDescribe", 0, {"GroupIds": [group]}))
        (described,) = response["Groups"]
        if error_for(described["ErrorCode"]) is GroupIdNotFoundError:
            return None
        _refuse(node_id, group, described["ErrorCode"])
        return [
            Described(
                member["ClientId"],
                member["MemberId"],
                member["MemberEpoch"],
                [
                    (topic["TopicName"], partition)
                    for topic in member["Assignment"]["TopicPartitions"]
                    for partition in topic["Partitions"]
                ],
            )
            for member in described["Members"]
        ]

    async def _classic_members(self, group: str, node_id: int) -> list[Described]:
        response = await self._brokers.ask(node_id, DescribeGroupsRequest([group]))
        found: list[Described] = []
        for error_code, _, _, _, _, members, *_ in response.groups:
            _refuse(node_id, group, error_code)
            found += [Described(client, name, -1, _assigned(assigned)) for name, client, _, _, assigned in members]
        return found

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


PIPELINE = (
    ("ingest", PAYMENTS_RAW),
    ("transform", PAYMENTS_ACCEPTED),
    ("ledger", LEDGER_TRANSFERS),
    ("outbox", EFFECTS_REQUESTS),
)
"""Consumer groups and their inputs, in the order in which records pass."""

TAIL_BYTES = 64 * 1024  # one batch is enough to detect records
LISTED_MAX = 12  # partitions named in an error


class Lag(NamedTuple):
    """A partition that is not drained.

    Attributes:
        committed: the group's committed offset, the log's start where there is none.
        stable, end: last stable offset and high watermark. Where they differ, a transaction is open.
    """

    group: str
    topic: str
    partition: int
    committed: int
    stable: int
    end: int

    def __str__(self) -> str:
        state = "an open transaction, " if self.stable < self.end else ""
        return f"{self.group} on {self.topic}:{self.partition} ({state}committed {self.committed} of {self.end})"


Committed = dict[tuple[str, Target], int]


async def wait_drained(
    bootstrap_servers: Bootstrap,
    *,
    deadline_s: float,
    pipeline: Sequence[tuple[str, str]] = PIPELINE,
    on_progress: Callable[[list[Lag]], None] | None = None,
    poll_s: float = 0.2,
) -> None:
    """Wait until two looks in a row find no lag and the same committed offsets.

    Two looks are needed because the ledger writes to its own input. A record may arrive between the look at a group's
    offset and the one at its topic's end.

    Args:
        deadline_s: seconds until it fails; an unreachable cluster has a deadline of its own.
        pipeline: the consumer groups to wait for, each with its input topic.
        on_progress: called after each look with the partitions that lag.
        poll_s: seconds between looks.

    Raises:
        DrainTimeoutError: naming what lags.
        KafkaUnavailableError: the cluster does not answer.
    """
    deadline = time.monotonic() + deadline_s
    async with Cluster(bootstrap_servers) as cluster:
        beginnings = await cluster.offsets(await cluster.partitions(topic for _, topic in pipeline), EARLIEST)
        settled: Committed | None = None
        while True:
            committed: Committed = {}
            lags = [
                lag for group, topic in pipeline for lag in await _look(cluster, group, topic, beginnings, committed)
            ]
            if on_progress is not None:
                on_progress(lags)
            if not lags and committed == settled:
                return
            # A first look without lag gets its second one, whatever the time
            if time.monotonic() > deadline and (lags or settled is not None):
                raise DrainTimeoutError(f"not drained after {deadline_s} s: {_listed(lags)}")
            settled = None if lags else committed
            await asyncio.sleep(poll_s)


def _listed(lags: list[Lag]) -> str:
    if not lags:
        return "nothing lags, but the committed offsets still move"
    listed = "; ".join(str(lag) for lag in lags[:LISTED_MAX])
    more = f"; and {len(lags) - LISTED_MAX} more" if len(lags) > LISTED_MAX else ""
    return f"{listed}{more}. See `once status` and the services' logs"


async def _look(
    cluster: Cluster, group: str, topic: str, beginnings: dict[Target, int], committed: Committed
) -> list[Lag]:
    """Return the lag of one group. Add its offsets to `committed`."""
    offsets = await committed_offsets(cluster, group, topic)
    targets = [target for target in beginnings if target[0] == topic]
    at = {target: max(offsets.get(target[1], 0), beginnings[target]) for target in targets}
    committed.update({(group, target): offset for target, offset in at.items()})
    # The stable offsets first: one that moves in between shows as lag, not as drained
    stable = await cluster.offsets(targets, LATEST, committed=True)
    ends = await cluster.offsets(targets, LATEST)
    unread = await _with_records(
        cluster, {target: at[target] for target in targets if at[target] < stable[target]}, stable
    )
    return [
        Lag(group, topic, target[1], at[target], stable[target], ends[target])
        for target in targets
        if target in unread or stable[target] < ends[target]
    ]


async def _with_records(cluster: Cluster, positions: dict[Target, int], ends: dict[Target, int]) -> set[Target]:
    """Return the partitions with a committed data record from the position on."""
    found: set[Target] = set()
    read = pages(cluster, positions, ends=ends, committed=True, partition_bytes=TAIL_BYTES)
    async with aclosing(read):
        async for page in read:
            if any(batch.last_offset >= positions[page.target] for batch in page.batches):
                found.add(page.target)
            if len(found) == len(positions):
                break
    return found
