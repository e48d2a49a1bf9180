"""Static members of a classic group without a service, as the view is one."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

from shared.events import catalogue
from shared.kafka.client.consumer import PatientConsumer
from shared.kafka.client.leaving import abandon
from shared.kafka.runtime import committed
from tests.harness import eventually
from tests.partitions import PARTITIONS

TOPIC = catalogue.PAYMENTS_RAW
ALL = set(range(PARTITIONS))
SESSION_MS = 6_000


class Member:
    """A member of a group, with its assignments.

    Attributes:
        assigned: partitions, after each assignment.
        removed: whether the group has removed it.
    """

    def __init__(self, brokers: str, group: str, instance: str) -> None:
        self.assigned: list[set[int]] = []
        self.removed = False
        # The client's assignor keeps its state in its class, and members are processes
        own = type("Own", (committed.StickyPartitionAssignor,), {})  # type: ignore[attr-defined] # the client's
        with mock.patch.object(committed, "StickyPartitionAssignor", own):
            self.consumer: PatientConsumer = committed.committed_consumer(
                brokers, group=group, instance=instance, session_timeout_ms=SESSION_MS
            )

    async def start(self) -> None:
        self.consumer.subscribe([TOPIC])
        self.consumer._subscription._listener = self  # the client takes no other class than its own
        await self.consumer.start()

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self.assigned.append({target.partition for target in assigned})

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        if any(True for _ in revoked) and not self.consumer._coordinator.member_id:
            self.removed = True
            await asyncio.Event().wait()  # as the view does: a removed member does not join again

    @property
    def partitions(self) -> set[int]:
        return self.assigned[-1] if self.assigned else set()

    @property
    def generation(self) -> int:
        return int(self.consumer._coordinator.generation)


@asynccontextmanager
async def member(brokers: str, group: str, instance: str) -> AsyncIterator[Member]:
    """A member from its start until it is abandoned, as by SIGKILL."""
    made = Member(brokers, group, instance)
    starting = asyncio.create_task(made.start())
    try:
        yield made
    finally:
        starting.cancel()
        await kill(made.consumer)


async def kill(consumer: PatientConsumer) -> None:
    """End a consumer as SIGKILL does: it sends nothing more, and does not leave the group."""
    coordinator: Any = consumer._coordinator
    for task in (coordinator._coordination_task, coordinator._heartbeat_task):
        if task is not None:
            task.cancel()
    await abandon(consumer)


async def shared(*members: Member) -> None:
    """Wait until each partition has one member, and each member has some."""

    async def reached() -> bool:
        owned = [partition for one in members for partition in one.partitions]
        return sorted(owned) == sorted(ALL) and all(one.partitions for one in members)

    await eventually(reached, "each partition has one member")
