"""Static members of a consumer group: who has which partitions, on brokers and on their model."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from unittest import mock

import pytest

from shared.events import catalogue
from shared.kafka.client.consumer import PatientConsumer
from shared.kafka.client.leaving import abandon, leave
from shared.kafka.runtime import session
from tests.harness import eventually

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]

TOPIC = catalogue.PAYMENTS_RAW
ALL = set(range(catalogue.PARTITIONS))
SESSION_MS = 6_000


class Member(session.ConsumerRebalanceListener):  # type: ignore[misc, name-defined] # the client's
    """A member of a group, with its assignments.

    Attributes:
        assigned: partitions, after each assignment.
        removed: whether the group has removed it.
    """

    def __init__(self, brokers: str, group: str, instance: str) -> None:
        self.assigned: list[set[int]] = []
        self.removed = False
        # The client's assignor keeps its state in its class, and members are processes
        own = type("Own", (session.StickyPartitionAssignor,), {})  # type: ignore[attr-defined] # likewise
        with mock.patch.object(session, "StickyPartitionAssignor", own):
            self.consumer: PatientConsumer = session.group_member(brokers, group, instance, SESSION_MS)

    async def start(self) -> None:
        self.consumer.subscribe([TOPIC], listener=self)
        await self.consumer.start()

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self.assigned.append({target.partition for target in assigned})

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        if any(True for _ in revoked) and not self.consumer._coordinator.member_id:
            self.removed = True
            await asyncio.Event().wait()  # as the runtime does: a removed member does not join again

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


@pytest.fixture
def group() -> str:
    return f"members-{uuid.uuid4()}"


async def shared(*members: Member) -> None:
    """Wait until each partition has one member, and each member has some."""

    async def reached() -> bool:
        owned = [partition for one in members for partition in one.partitions]
        return sorted(owned) == sorted(ALL) and all(one.partitions for one in members)

    await eventually(reached, "each partition has one member")


async def test_members_share_the_partitions(brokers: str, group: str) -> None:
    async with member(brokers, group, "0") as first:
        await shared(first)
        async with member(brokers, group, "1") as second:
            await shared(first, second)
            assert first.generation == second.generation


@pytest.mark.parametrize("joins_first", ["0", "1"])
async def test_a_member_that_comes_back_has_its_partitions_without_a_rebalance(
    brokers: str, group: str, joins_first: str
) -> None:
    """Also if it had partitions in an earlier generation, and comes back without the assignor's memory of them."""
    async with AsyncExitStack() as stack:
        members = {}
        for instance in sorted("01", key=lambda instance: instance != joins_first):
            members[instance] = await stack.enter_async_context(member(brokers, group, instance))
            await shared(*members.values())
        first, second = members["0"], members["1"]
        before, rebalances = (second.partitions, second.generation), len(first.assigned)
        await leave(second.consumer)
        async with member(brokers, group, "1") as again:
            await shared(first, again)
            assert (again.partitions, again.generation) == before
            assert len(first.assigned) == rebalances


async def test_partitions_of_a_member_that_is_gone_pass_to_the_others(brokers: str, group: str) -> None:
    async with member(brokers, group, "0") as first:
        async with member(brokers, group, "1") as second:
            await shared(first, second)
        await eventually(lambda: _has_all(first), "the first member has all partitions", 2 * SESSION_MS / 1000 + 10)


async def _has_all(one: Member) -> bool:
    return one.partitions == ALL


async def test_a_second_process_of_a_member_removes_the_first(brokers: str, group: str) -> None:
    async with member(brokers, group, "0") as first:
        await shared(first)
        async with member(brokers, group, "0") as second:
            await shared(second)
            await eventually(lambda: _is_removed(first), "the first process is removed")
            assert not second.removed


async def _is_removed(one: Member) -> bool:
    return one.removed
