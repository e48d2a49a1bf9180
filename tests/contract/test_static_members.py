"""Static members of a classic group, as the view is one: which partitions each has, on brokers and on their model."""

import uuid
from contextlib import AsyncExitStack

import pytest

from tests.contract.classic_members import ALL, SESSION_MS, Member, member, shared
from tests.harness import eventually

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]


@pytest.fixture
def group() -> str:
    return f"members-{uuid.uuid4()}"


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
        await second.consumer.stop()
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
