"""The model of a group of the newer protocol: epochs, and partitions that go from one member to another."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.assignor import Target, uniform
from tests.simulation.consumer_groups import JOIN, Beat, ConsumerGroup, State
from tests.simulation.errors import FENCED_MEMBER_EPOCH, NONE, STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID
from tests.simulation.loop import virtual_time

SESSION_S, REBALANCE_S = 6.0, 10.0
SIZES = {"t": 6, "u": 6}
ALL = frozenset(("t", number) for number in range(6))
LOW, HIGH = frozenset(sorted(ALL)[:3]), frozenset(sorted(ALL)[3:])
FIRST = 2
"""The epoch of the first member: a group begins in epoch 1."""


def history(main: Callable[[ConsumerGroup], Coroutine[Any, Any, None]]) -> None:
    with virtual_time() as loop:
        loop.run_until_complete(main(ConsumerGroup("ledger", lambda topic: SIZES.get(topic, 0), SESSION_S)))


def beat(
    group: ConsumerGroup, member_id: str, epoch: int, owned: Iterable[Target] = (), topics: Iterable[str] = ("t",)
) -> Beat:
    """Send all that a member knows, as the project's member does."""
    return group.heartbeat(member_id, epoch, rebalance_s=REBALANCE_S, topics=topics, owned=frozenset(owned))


def two(group: ConsumerGroup) -> None:
    """Two members, each with its share, in the epoch after the first one's."""
    beat(group, "a", JOIN)
    beat(group, "b", JOIN)
    beat(group, "a", FIRST, ALL)
    assert beat(group, "a", FIRST, LOW) == Beat(NONE, FIRST + 1, LOW)
    assert beat(group, "b", FIRST + 1) == Beat(NONE, FIRST + 1, HIGH)
    assert group.state is State.STABLE


def test_the_first_member_gets_everything() -> None:
    async def main(group: ConsumerGroup) -> None:
        assert group.state.value == "Empty"
        assert beat(group, "a", JOIN) == Beat(NONE, FIRST, ALL)
        assert beat(group, "a", FIRST, ALL) == Beat(NONE, FIRST, ALL)
        assert group.heartbeat("a", FIRST) == Beat(NONE, FIRST)
        assert group.state is State.STABLE

    history(main)


def test_a_partition_is_given_on_when_the_former_owner_has_released_it() -> None:
    async def main(group: ConsumerGroup) -> None:
        beat(group, "a", JOIN)
        assert beat(group, "b", JOIN) == Beat(NONE, FIRST + 1, frozenset())
        assert group.state is State.RECONCILING
        assert beat(group, "a", FIRST, ALL) == Beat(NONE, FIRST, LOW)
        assert beat(group, "b", FIRST + 1) == Beat(NONE, FIRST + 1, frozenset())
        assert group.heartbeat("a", FIRST) == Beat(NONE, FIRST)  # says nothing of what it has
        assert beat(group, "b", FIRST + 1) == Beat(NONE, FIRST + 1, frozenset())
        assert beat(group, "a", FIRST, LOW) == Beat(NONE, FIRST + 1, LOW)
        assert beat(group, "b", FIRST + 1) == Beat(NONE, FIRST + 1, HIGH)

    history(main)


def test_three_members_share_and_keep_what_they_can() -> None:
    async def main(group: ConsumerGroup) -> None:
        two(group)
        assert beat(group, "c", JOIN).assigned == frozenset()
        epoch = FIRST + 2
        for member_id, had in (("a", LOW), ("b", HIGH)):
            kept = beat(group, member_id, FIRST + 1, had)
            assert kept.epoch == FIRST + 1
            assert kept.assigned is not None
            assert kept.assigned < had
            assert beat(group, member_id, FIRST + 1, kept.assigned) == Beat(NONE, epoch, kept.assigned)
        assert beat(group, "c", epoch).assigned == frozenset({("t", 2), ("t", 5)})

    history(main)


def test_a_member_that_leaves_gives_its_partitions_to_the_next_heartbeat() -> None:
    async def main(group: ConsumerGroup) -> None:
        two(group)
        assert group.leave("a") == NONE
        assert group.state is State.ASSIGNING
        assert beat(group, "b", FIRST + 1, HIGH) == Beat(NONE, FIRST + 2, ALL)
        assert group.leave("a") == UNKNOWN_MEMBER_ID
        assert beat(group, "a", FIRST + 1, LOW) == Beat(UNKNOWN_MEMBER_ID)

    history(main)


def test_the_epoch_before_is_accepted_after_a_lost_answer() -> None:
    async def main(group: ConsumerGroup) -> None:
        two(group)
        assert beat(group, "a", FIRST, LOW) == Beat(NONE, FIRST + 1, LOW)
        assert beat(group, "a", FIRST, ALL) == Beat(FENCED_MEMBER_EPOCH)
        assert group.heartbeat("a", FIRST) == Beat(FENCED_MEMBER_EPOCH)
        assert beat(group, "a", FIRST - 1, LOW) == Beat(FENCED_MEMBER_EPOCH)
        assert beat(group, "a", FIRST + 2, LOW) == Beat(FENCED_MEMBER_EPOCH)

    history(main)


def test_a_member_that_joins_again_has_its_assignment_at_once() -> None:
    async def main(group: ConsumerGroup) -> None:
        two(group)
        assert beat(group, "b", JOIN) == Beat(NONE, FIRST + 1, HIGH)
        assert beat(group, "a", FIRST + 1, LOW) == Beat(NONE, FIRST + 1, LOW)

    history(main)


def test_a_member_that_joins_again_has_revoked_what_it_should() -> None:
    async def main(group: ConsumerGroup) -> None:
        beat(group, "a", JOIN)
        beat(group, "b", JOIN)
        assert beat(group, "a", FIRST, ALL) == Beat(NONE, FIRST, LOW)
        assert beat(group, "a", JOIN) == Beat(NONE, FIRST + 1, LOW)
        assert beat(group, "b", FIRST + 1).assigned == HIGH

    history(main)


def test_a_member_without_heartbeats_is_removed_after_its_session() -> None:
    async def main(group: ConsumerGroup) -> None:
        two(group)
        await asyncio.sleep(SESSION_S - 0.1)
        assert beat(group, "b", FIRST + 1, HIGH).assigned == HIGH
        await asyncio.sleep(0.2)
        assert list(group.members) == ["b"]
        assert beat(group, "b", FIRST + 1, HIGH) == Beat(NONE, FIRST + 2, ALL)
        await asyncio.sleep(SESSION_S + 0.1)
        assert (group.state, group.target) == (State.EMPTY, {})

    history(main)


@pytest.mark.parametrize("releases", [False, True])
def test_a_member_that_does_not_release_in_time_is_removed(releases: bool) -> None:
    async def main(group: ConsumerGroup) -> None:
        beat(group, "a", JOIN)
        beat(group, "b", JOIN)
        epoch, owned = FIRST, ALL
        for second in range(int(REBALANCE_S)):
            epoch = beat(group, "a", epoch, owned).epoch
            beat(group, "b", FIRST + 1)
            owned = LOW if releases and second == 8 else owned
            await asyncio.sleep(1)
        beat(group, "b", FIRST + 1)
        await asyncio.sleep(0.1)
        assert ("a" in group.members) is releases
        assert group.epoch == (FIRST + 1 if releases else FIRST + 2)

    history(main)


def test_sessions_begin_again_at_another_coordinator() -> None:
    async def main(group: ConsumerGroup) -> None:
        two(group)
        await asyncio.sleep(SESSION_S - 0.1)
        group.moved()
        await asyncio.sleep(SESSION_S - 0.1)
        assert beat(group, "a", FIRST + 1, LOW).code == NONE
        await asyncio.sleep(0.2)
        assert list(group.members) == ["a"]

    history(main)


def test_a_subscription_that_changes_moves_partitions() -> None:
    async def main(group: ConsumerGroup) -> None:
        beat(group, "a", JOIN)
        others = frozenset(("u", number) for number in range(6))
        assert beat(group, "a", FIRST, ALL, ["t", "u"]) == Beat(NONE, FIRST + 1, ALL | others)
        assert beat(group, "a", FIRST + 1, ALL | others, ["u"]) == Beat(NONE, FIRST + 1, others)
        assert beat(group, "a", FIRST + 1, others, ["u"]) == Beat(NONE, FIRST + 2, others)
        assert beat(group, "a", FIRST + 2, others, ["u", "unknown"]).assigned == others

    history(main)


def test_a_former_epoch_commits_what_the_member_has_had_since_then() -> None:
    async def main(group: ConsumerGroup) -> None:
        two(group)
        assert group.check_commit("a", FIRST + 1, ALL) == NONE  # Kafka does not look at what it owns
        assert group.check_commit("a", FIRST, LOW) == NONE
        assert group.check_commit("a", FIRST, HIGH) == STALE_MEMBER_EPOCH
        assert group.check_commit("b", FIRST, HIGH) == STALE_MEMBER_EPOCH
        assert group.check_commit("a", FIRST + 2, LOW) == STALE_MEMBER_EPOCH
        assert group.check_commit("c", FIRST + 1, LOW) == UNKNOWN_MEMBER_ID
        beat(group, "c", JOIN)
        kept = beat(group, "a", FIRST + 1, LOW).assigned
        assert kept is not None
        assert group.check_commit("a", FIRST + 1, LOW - kept) == NONE  # still to be revoked
        beat(group, "a", FIRST + 1, kept)
        assert group.check_commit("a", FIRST + 1, LOW - kept) == STALE_MEMBER_EPOCH
        assert group.check_commit("a", FIRST + 1, kept) == NONE

    history(main)


_NAMES = st.sampled_from("abcd")
_TOPICS = st.frozensets(st.sampled_from("tuv"), min_size=1)


@given(st.lists(st.dictionaries(_NAMES, _TOPICS, min_size=1), min_size=1, max_size=5), st.booleans())
def test_assignments_are_complete_and_balanced(changes: list[dict[str, frozenset[str]]], equal: bool) -> None:
    sizes = {"t": 6, "u": 4, "v": 0}
    before: dict[str, frozenset[Target]] = {}
    for drawn in changes:
        topics = frozenset[str]().union(*drawn.values())
        subscriptions = dict.fromkeys(drawn, topics) if equal else drawn
        after = uniform(subscriptions, before, sizes.__getitem__)
        given_out = sorted(target for targets in after.values() for target in targets)
        assert given_out == sorted((topic, number) for topic in topics for number in range(sizes[topic]))
        assert all(topic in subscriptions[member] for member, targets in after.items() for topic, _ in targets)
        if equal:
            shares = [len(targets) for targets in after.values()]
            assert max(shares) - min(shares) <= 1
            if subscriptions.keys() == before.keys() and given_out == sorted(set().union(*before.values())):
                assert after == before
        before = {member: frozenset(targets) for member, targets in after.items()}
