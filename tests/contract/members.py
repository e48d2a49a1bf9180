"""Members of a consumer group without a service: each test decides when partitions are given back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from shared.events import catalogue
from shared.kafka.admin.groups import Groups
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Cluster
from shared.kafka.runtime.member import Member
from tests.harness import eventually
from tests.partitions import PARTITIONS

TOPIC = catalogue.PAYMENTS_RAW
ALL = set(range(PARTITIONS))


class CountedCluster(Cluster):
    """A connection.

    Attributes:
        heartbeats: that were answered.
        loses: the answers to heartbeats.
    """

    heartbeats = 0
    loses = False

    async def send(self, node_id: int, request: Any, *, coordination: bool = False) -> Any:
        response = await super().send(node_id, request, coordination=coordination)
        if getattr(request, "api", "") == "ConsumerGroupHeartbeat":
            if self.loses:
                await asyncio.Event().wait()
            self.heartbeats += 1
        return response


class MemberProcess:
    """A process of an instance, from `start` to `kill` or `stop`.

    Attributes:
        member: of the group.
        running: its `run`.
        assigned, revoked: the partitions of each call, in order.
        assigned_by: the number of the heartbeat whose answer led to each assignment.
        partitions: those that it has now; one is missing as soon as `revoked` has returned.
        may_release: clear it to hold revocations.
        releasing: partitions whose revocation is held.
    """

    def __init__(self, brokers: str, group: str, instance: str, topic: str = TOPIC) -> None:
        client_id = f"{group}-{instance}"
        self.cluster = CountedCluster(brokers, client_id=client_id)
        self.member = Member(self.cluster, group, topic, client_id, self._on_assigned, self._on_revoked)
        self.running: asyncio.Task[NoReturn]
        self.assigned: list[set[int]] = []
        self.assigned_by: list[int] = []
        self.revoked: list[set[int]] = []
        self.partitions: set[int] = set()
        self.may_release = asyncio.Event()
        self.may_release.set()
        self.releasing: set[int] = set()

    def _on_assigned(self, partitions: set[int]) -> None:
        self.assigned.append(set(partitions))
        self.assigned_by.append(self.cluster.heartbeats)
        self.partitions |= partitions

    async def _on_revoked(self, partitions: set[int]) -> None:
        self.releasing |= partitions
        await self.may_release.wait()
        self.releasing -= partitions
        self.partitions -= partitions
        self.revoked.append(set(partitions))

    async def start(self) -> None:
        """Connect and join."""
        await self.cluster.open()
        self.running = asyncio.create_task(self.member.run())

    async def kill(self) -> None:
        """End as by SIGKILL: nothing more is sent, and the group is not left."""
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.cluster.close()
        self.may_release.set()  # what is held ends, and is not reported any more

    async def stop(self) -> None:
        """End as by SIGTERM."""
        self.running.cancel()
        await asyncio.wait([self.running])
        await self.member.leave()
        await self.cluster.close()

    async def beat(self, times: int = 1) -> None:
        """Wait until the coordinator has answered further heartbeats."""
        until = self.cluster.heartbeats + times

        async def reached() -> bool:
            return self.cluster.heartbeats >= until

        await eventually(reached, f"{times} heartbeats answered")


@asynccontextmanager
async def joined(brokers: str, group: str, instance: str, topic: str = TOPIC) -> AsyncIterator[MemberProcess]:
    """A process of an instance, from its start until it is killed."""
    made = MemberProcess(brokers, group, instance, topic)
    await made.start()
    try:
        yield made
    finally:
        await made.kill()


async def shared(*members: MemberProcess) -> None:
    """Wait until each partition has one member, each member has some, and the group asks for no other assignment."""

    async def reached() -> bool:
        for one in members:
            if one.running.done():
                one.running.result()
        owned = [partition for one in members for partition in one.partitions]
        settled = all(one.member.settled and one.partitions for one in members)
        return settled and sorted(owned) == sorted(ALL)

    await eventually(reached, "each partition has one member")


async def member_ids(brokers: str, group: str) -> set[str]:
    """The ids of a group's members, as its coordinator describes it."""
    found: set[str] = set()

    async def described() -> bool:
        async with Brokers(brokers) as asked:
            view = await asked.view([])
            with contextlib.suppress(Exception):
                found.update(one.member_id for one in await Groups(asked).members(group, view.brokers))
                return True
        return False

    await eventually(described, f"group {group} described")
    return found
