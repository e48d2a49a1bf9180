"""Members of a consumer group without the work of a service, which may fall silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

from deploy.drills.stage import Stage
from deploy.drills.waiting import until
from shared.kafka.client.cluster import Cluster
from shared.kafka.runtime.member import Member
from shared.kafka.runtime.transaction_requests import GroupMember


class Joined:
    """A member that has partition 0 of a topic.

    Args:
        running: its heartbeats.
    """

    def __init__(self, member: Member, running: "asyncio.Task[NoReturn]") -> None:
        self._member = member
        self._running = running

    @property
    def identity(self) -> GroupMember:
        """The member at its present epoch."""
        return self._member.identity

    def pause(self) -> None:
        """Send no more heartbeats, and do not leave."""
        self._running.cancel()


@asynccontextmanager
async def joined(stage: Stage, topic: str, name: str) -> AsyncIterator[Joined]:
    """Join the stage's group, and wait for partition 0, which the group takes from a silent member after its session.

    Leaving the context ends the heartbeats, and does not leave the group.
    """
    owned: set[int] = set()

    async def revoked(partitions: set[int]) -> None:
        owned.difference_update(partitions)

    async with Cluster(stage.access, client_id=name) as cluster:
        member = Member(cluster, stage.name, topic, f"{stage.name}-{name}", owned.update, revoked)
        running = asyncio.create_task(member.run())
        try:
            await until(lambda: owned == {0} or running.done(), f"{name} has the partition")
            yield Joined(member, running)
        finally:
            running.cancel()
            await asyncio.wait({running})
