"""The model of a consumer group: who is in which generation, and what the others are answered."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.errors import (
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from tests.simulation.groups import Group, State
from tests.simulation.loop import virtual_time
from tests.simulation.members import Joined, Synced

SESSION_S, REBALANCE_S = 6.0, 30.0


def history(main: Callable[[Group], Coroutine[Any, Any, None]]) -> None:
    with virtual_time() as loop:
        loop.run_until_complete(main(Group("ledger")))


def join(group: Group, member_id: str = "", instance: str | None = None) -> "asyncio.Task[Joined]":
    """Join in the background."""
    return asyncio.create_task(
        group.join(member_id, instance, "client", {"sticky": b"m"}, session_s=SESSION_S, rebalance_s=REBALANCE_S)
    )


async def alone(group: Group, instance: str) -> Joined:
    """Join an empty group as a static member, and take its assignment."""
    joined = await join(group, instance=instance)
    assert await group.sync(joined.member_id, instance, joined.generation, {joined.member_id: b"all"}) == Synced(
        NONE, b"all"
    )
    return joined


def test_a_dynamic_member_is_given_an_id_first() -> None:
    async def main(group: Group) -> None:
        given = await join(group)
        assert given.code == MEMBER_ID_REQUIRED
        joined = await join(group, given.member_id)
        assert (joined.code, joined.generation, joined.leader) == (NONE, 1, joined.member_id)
        assert (await join(group, "somebody")).code == UNKNOWN_MEMBER_ID

    history(main)


def test_a_new_member_rebalances_the_group_and_both_get_the_leaders_assignments() -> None:
    async def main(group: Group) -> None:
        first = await alone(group, "a")
        second = join(group, instance="b")
        await asyncio.sleep(1)
        assert group.heartbeat(first.member_id, "a", 1) == REBALANCE_IN_PROGRESS
        again, joined = await join(group, first.member_id, "a"), await second
        assert (again.generation, again.protocol, again.leader) == (2, "sticky", first.member_id)
        assert [instance for _, instance, _ in again.members] == ["a", "b"]
        assert (joined.generation, joined.leader, joined.members) == (2, first.member_id, [])
        waiting = asyncio.create_task(group.sync(joined.member_id, "b", 2, {}))
        await asyncio.sleep(1)
        assert not waiting.done()
        shares = {first.member_id: b"one", joined.member_id: b"two"}
        assert await group.sync(first.member_id, "a", 2, shares) == Synced(NONE, b"one")
        assert await waiting == Synced(NONE, b"two")
        assert group.heartbeat(joined.member_id, "b", 2) == NONE
        assert group.heartbeat(joined.member_id, "b", 1) == ILLEGAL_GENERATION

    history(main)


def test_a_static_member_that_comes_back_has_its_assignment_and_fences_its_former_self() -> None:
    async def main(group: Group) -> None:
        before = await alone(group, "a")
        back = await join(group, instance="a")
        assert (back.code, back.generation, back.members) == (NONE, before.generation, ())
        assert back.leader == before.member_id != back.member_id
        assert await group.sync(back.member_id, "a", back.generation, {}) == Synced(NONE, b"all")
        assert group.heartbeat(before.member_id, "a", before.generation) == FENCED_INSTANCE_ID
        assert group.heartbeat(before.member_id, None, before.generation) == UNKNOWN_MEMBER_ID

    history(main)


def test_a_member_without_heartbeats_is_dropped_after_its_session() -> None:
    async def main(group: Group) -> None:
        silent = await alone(group, "a")
        await asyncio.sleep(SESSION_S - 0.1)
        assert group.heartbeat(silent.member_id, "a", 1) == NONE
        await asyncio.sleep(SESSION_S - 0.1)
        assert group.state is State.STABLE
        await asyncio.sleep(0.2)
        assert (group.state, group.members, group.generation) == (State.EMPTY, {}, 2)
        assert group.heartbeat(silent.member_id, "a", 1) == UNKNOWN_MEMBER_ID

    history(main)


def test_a_rebalance_does_without_those_whose_session_ended() -> None:
    async def main(group: Group) -> None:
        silent = await alone(group, "a")
        begun = asyncio.get_running_loop().time()
        joined = await join(group, instance="b")
        assert asyncio.get_running_loop().time() - begun == pytest.approx(SESSION_S)
        assert (joined.leader, [instance for _, instance, _ in joined.members]) == (joined.member_id, ["b"])
        assert group.heartbeat(silent.member_id, "a", 1) == UNKNOWN_MEMBER_ID

    history(main)


def test_a_member_that_beats_and_does_not_rejoin_holds_a_rebalance_until_its_timeout() -> None:
    async def main(group: Group) -> None:
        stuck = await alone(group, "a")
        second = join(group, instance="b")
        for _ in range(29):
            await asyncio.sleep(1)
            assert group.heartbeat(stuck.member_id, "a", 1) == REBALANCE_IN_PROGRESS
        assert not second.done()
        joined = await second
        assert (joined.generation, joined.leader) == (2, joined.member_id)
        # A static member stays until its session ends, without having joined
        assert [instance for _, instance, _ in joined.members] == ["a", "b"]
        assert group.heartbeat(stuck.member_id, "a", 1) == ILLEGAL_GENERATION

    history(main)


def test_a_leave_rebalances_at_once() -> None:
    async def main(group: Group) -> None:
        first = await alone(group, "a")
        second = join(group, instance="b")
        await asyncio.sleep(0)
        assert group.leave(first.member_id) == NONE
        assert (await second).leader == (await second).member_id
        assert group.leave(first.member_id) == UNKNOWN_MEMBER_ID

    history(main)


def test_a_sync_during_a_rebalance_says_so() -> None:
    async def main(group: Group) -> None:
        first = await alone(group, "a")
        join(group, instance="b")
        await asyncio.sleep(0)
        assert await group.sync(first.member_id, "a", 1, {}) == Synced(REBALANCE_IN_PROGRESS)

    history(main)
