"""Members of a consumer group by the newer protocol: which partitions each has, on brokers and on their model."""

import asyncio
import time
import uuid

import pytest
from prometheus_client import REGISTRY

from shared.eos.errors import RejoinError
from shared.kafka.runtime import member
from tests.contract import classic_members as classic
from tests.contract.members import ALL, MemberProcess, joined, member_ids, shared
from tests.harness import eventually

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]

SESSION_S = 6.0
"""group.consumer.session.timeout.ms of local brokers."""


@pytest.fixture
def group() -> str:
    return f"members-{uuid.uuid4()}"


async def removed(one: MemberProcess, deadline_s: float = 30.0) -> None:
    """Wait until a member knows that the group has removed it."""
    async with asyncio.timeout(deadline_s):
        with pytest.raises(RejoinError, match="the group removed this member"):
            await one.running


async def removed_by_an_operator(brokers: str, group: str, one: MemberProcess) -> None:
    """Have the group remove instance 1, and wait until that one knows it."""
    same = MemberProcess(brokers, group, "1")
    await same.start()
    await same.beat()
    await same.stop()
    await removed(one)


async def asked_back(one: MemberProcess) -> None:
    """Wait until a member holds a revocation."""

    async def reached() -> bool:
        return bool(one.releasing)

    await eventually(reached, "the group asks for partitions back")


async def test_members_share_the_partitions_and_those_that_stay_are_not_interrupted(brokers: str, group: str) -> None:
    async with joined(brokers, group, "0") as first:
        await shared(first)
        assert (first.assigned, first.revoked) == ([ALL], [])
        async with joined(brokers, group, "1") as second:
            await shared(first, second)
            moved = ALL - first.partitions
            assert (first.assigned, first.revoked) == ([ALL], [moved])
            assert (second.assigned, second.revoked) == ([moved], [])
            async with joined(brokers, group, "2") as third:
                await shared(first, second, third)
                assert first.assigned == [ALL]
                assert second.assigned == [moved]
                revoked = set().union(*first.revoked[1:], *second.revoked)
                assert revoked == third.partitions
                assert sum(map(len, (*first.revoked[1:], *second.revoked, *third.assigned))) == 2 * len(revoked)


async def test_partitions_of_a_killed_member_pass_to_the_others_after_its_session(brokers: str, group: str) -> None:
    async with joined(brokers, group, "0") as first:
        await shared(first)
        async with joined(brokers, group, "1") as second:
            await shared(first, second)
            lost = set(second.partitions)
        killed_s = time.monotonic()
        assert await member_ids(brokers, group) == {f"{group}-0", f"{group}-1"}
        await shared(first)
        assert time.monotonic() - killed_s > SESSION_S / 2
        assert (first.assigned, first.revoked) == ([ALL, lost], [lost])


async def test_partitions_of_a_stopped_member_pass_to_the_others_at_once(brokers: str, group: str) -> None:
    async with joined(brokers, group, "0") as first:
        await shared(first)
        second = MemberProcess(brokers, group, "1")
        await second.start()
        await shared(first, second)
        lost = set(second.partitions)
        await second.stop()
        assert await member_ids(brokers, group) == {f"{group}-0"}, "its session has not ended yet"
        await shared(first)
        assert (first.assigned, first.revoked) == ([ALL, lost], [lost])


async def test_a_process_that_is_started_again_has_its_partitions_at_once(brokers: str, group: str) -> None:
    async with joined(brokers, group, "0") as first:
        await shared(first)
        async with joined(brokers, group, "1") as second:
            await shared(first, second)
            before = second.partitions, second.member.identity
        async with joined(brokers, group, "1") as again:
            await again.beat()
            assert (again.partitions, again.member.identity) == before
            await first.beat(2)
            assert (first.assigned, first.revoked) == ([ALL], [before[0]])
            assert first.partitions == ALL - before[0]


async def test_a_member_that_an_operator_removes_must_rejoin(brokers: str, group: str) -> None:
    async with joined(brokers, group, "0") as first, joined(brokers, group, "1") as second:
        await shared(first, second)
        await removed_by_an_operator(brokers, group, second)
        await shared(first)


async def test_a_member_that_was_removed_does_not_end_the_next_one_of_its_instance(brokers: str, group: str) -> None:
    name = "kafka_producer_fenced_total"
    labels = {"api": "ConsumerGroupHeartbeat", "error": "UnknownMemberIdError"}
    before = REGISTRY.get_sample_value(name, labels) or 0
    async with joined(brokers, group, "0") as first, joined(brokers, group, "1") as second:
        await shared(first, second)
        await removed_by_an_operator(brokers, group, second)
        async with joined(brokers, group, "1") as again:
            await shared(first, again)
            await second.member.leave()
            await again.beat(2)
            await shared(first, again)
    assert REGISTRY.get_sample_value(name, labels) == before + 1


async def test_a_member_that_stops_before_its_join_is_answered_has_left(brokers: str, group: str) -> None:
    async with joined(brokers, group, "0") as first:
        await shared(first)
        stopped = MemberProcess(brokers, group, "1")
        stopped.cluster.loses = True
        await stopped.start()

        async def is_known() -> bool:
            return await member_ids(brokers, group) == {f"{group}-0", f"{group}-1"}

        await eventually(is_known, "the coordinator knows both")
        stopped.cluster.loses = False
        await stopped.stop()
        assert await member_ids(brokers, group) == {f"{group}-0"}
        await shared(first)


async def test_a_member_that_does_not_beat_for_a_session_must_rejoin(brokers: str, group: str) -> None:
    async with joined(brokers, group, "0") as first:
        await shared(first)
        first.running.cancel()
        await asyncio.wait([first.running])
        async with joined(brokers, group, "1") as second:
            await shared(second)
            # As after SIGCONT: it goes on at the epoch that it had
            first.running = asyncio.create_task(first.member.run())
            await removed(first)
            await second.beat(2)
            assert (second.assigned, second.revoked) == ([ALL], [])


async def test_a_partition_passes_on_only_after_its_revocation_is_done(brokers: str, group: str) -> None:
    async with joined(brokers, group, "0") as first:
        await shared(first)
        first.may_release.clear()
        async with joined(brokers, group, "1") as second:
            await asked_back(first)
            held = set(first.releasing)
            await first.beat(3)
            await second.beat(3)
            assert (second.assigned, first.partitions) == ([], ALL)
            assert first.releasing == held, "asked for again"
            first.may_release.set()
            await shared(first, second)
            assert (first.revoked, second.assigned) == ([held], [held])


async def test_a_member_that_gives_nothing_back_in_time_is_removed(
    brokers: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member, "REBALANCE_TIMEOUT_MS", 2_000)
    async with joined(brokers, group, "0") as first:
        await shared(first)
        first.may_release.clear()
        async with joined(brokers, group, "1") as second:
            await removed(first)
            await shared(second)


async def test_partitions_that_come_back_meanwhile_come_with_the_heartbeat_that_gives_them_up(
    brokers: str, group: str
) -> None:
    async with joined(brokers, group, "0") as first:
        await shared(first)
        first.may_release.clear()
        async with joined(brokers, group, "1") as second:
            await asked_back(first)
            held = set(first.releasing)
            second.running.cancel()
            await asyncio.wait([second.running])
            await second.member.leave()
            await first.beat()
            beats = first.cluster.heartbeats
            first.may_release.set()
            await shared(first)
            assert (first.assigned, first.revoked) == ([ALL, held], [held])
            assert first.assigned_by[-1] == beats + 1


async def test_a_member_joins_when_the_session_of_a_classic_member_has_ended(brokers: str, group: str) -> None:
    """Brokers convert the group and hold the partitions back; the model has the policy that refuses to convert it."""
    async with classic.member(brokers, group, "0") as before:
        await classic.shared(before)
    killed_s = time.monotonic()
    async with joined(brokers, group, "0") as first:
        await shared(first)
        assert time.monotonic() - killed_s > SESSION_S / 2
        assert (first.assigned, first.member.waits_for) == ([ALL], "")


async def test_classic_members_have_the_partitions_of_a_member_that_has_left(brokers: str, group: str) -> None:
    first = MemberProcess(brokers, group, "0")
    await first.start()
    await shared(first)
    await first.stop()
    async with classic.member(brokers, group, "0") as after:
        await classic.shared(after)
