"""A scope's transactions: unknown outcomes, recovery behind open transactions, and members that may not commit."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Final

import pytest
import pytest_asyncio

from shared.eos.audit import Outcome
from shared.eos.errors import AbortableError, RejoinError, UnknownOutcomeError
from shared.eos.records import Output
from shared.events import catalogue
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Cluster, Target
from shared.kafka.runtime import recovery
from shared.kafka.runtime.transaction_requests import GroupMember
from tests.contract.helpers import producing
from tests.contract.members import ALL, MemberProcess, joined, shared
from tests.harness import eventually
from tests.owners import INPUT, Owner
from tests.tiers import full

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]

COUNT: Final = 3
CHANGELOG: Final = catalogue.EFFECTS_WAITING
ONE, OTHER = 2, 5
STATE, OTHER_STATE = (CHANGELOG, ONE), (CHANGELOG, OTHER)
POSTINGS: Final = (catalogue.LEDGER_POSTINGS, ONE)
OUTPUTS: Final = (POSTINGS, (catalogue.EFFECTS_REQUESTS, 0))
ABORTED, COMMITTED, TORN = Outcome.ABORTED, Outcome.COMMITTED, Outcome.TORN


class Instances:
    """Instances of one service. Their states go on from test to test on the same cluster."""

    group = "scope-owners"

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._stack = AsyncExitStack()
        self._names = itertools.count()

    def new(self, *partitions: int, member: GroupMember | None = None, version_max: int = 1) -> Owner:
        """Make another instance that is going to have these partitions. It fences no other one's producer."""
        made = Owner(
            self.servers,
            self.group,
            partitions,
            CHANGELOG,
            name=f"{uuid.uuid4()}",
            member=member,
            version_max=version_max,
        )
        self._stack.push_async_callback(made.let_go)
        return made

    async def end(self) -> None:
        await self._stack.aclose()


@pytest_asyncio.fixture
async def instances(brokers: str) -> AsyncIterator[Instances]:
    made = Instances(brokers)
    try:
        yield made
    finally:
        await made.end()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the requests for metadata: each attempt after the first begins with one."""
    counted = itertools.count(1)
    asked = [0]
    refresh = Cluster.refresh

    async def counting(self: Cluster) -> None:
        asked[0] = next(counted)
        await refresh(self)

    monkeypatch.setattr(Cluster, "refresh", counting)
    return lambda: asked[0]


async def resolve(owner: Owner) -> dict[int, Outcome]:
    """Resolve the owner's open transaction; returns the outcomes by input partition."""
    ended = await owner.scope.resolve(owner.tasks.values())
    return {task.partition: outcome for task, outcome in ended.items()}


async def assert_consistent(instances: Instances, owner: Owner, begun: int, count: int) -> None:
    """Fail unless the owner goes on behind `count` processed records, and a successor finds the same."""
    for partition, task in owner.tasks.items():
        assert (task.next_offset, owner.processed_of(partition)) == (begun + count, begun + count)
        assert task.open is None
    await owner.commit(OUTPUTS, COUNT)
    successor = instances.new(*owner.tasks)
    await successor.take_over()
    for partition, task in successor.tasks.items():
        end = begun + count + COUNT
        assert (task.next_offset, successor.processed_of(partition)) == (end, end)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("ends", "outcome"), [(True, COMMITTED), (False, ABORTED)], ids=["committed", "aborted"])
async def test_an_unknown_outcome_is_found(instances: Instances, version: int, ends: bool, outcome: Outcome) -> None:
    owner = instances.new(ONE, OTHER, version_max=version)
    await owner.take_over()
    begun = owner.tasks[ONE].next_offset
    assert owner.tasks[OTHER].next_offset == begun
    await owner.commit(OUTPUTS, COUNT)
    await owner.prepare(OUTPUTS, COUNT)
    if ends:
        await owner.scope.producer.commit()  # its answer gets lost: the states' changes have not merged
    assert await resolve(owner) == {ONE: outcome, OTHER: outcome}
    await assert_consistent(instances, owner, begun, COUNT + (COUNT if ends else 0))


async def test_a_transaction_whose_end_was_never_asked_for_is_aborted(instances: Instances) -> None:
    owner = instances.new(ONE, OTHER)
    await owner.take_over()
    begun = owner.tasks[ONE].next_offset
    await owner.process(OUTPUTS, COUNT)
    assert await resolve(owner) == {ONE: ABORTED, OTHER: ABORTED}
    await assert_consistent(instances, owner, begun, 0)


async def test_a_task_without_a_part_keeps_its_state(instances: Instances) -> None:
    owner = instances.new(ONE, OTHER)
    await owner.take_over()
    begun = owner.tasks[ONE].next_offset
    await owner.commit(OUTPUTS, COUNT)
    await owner.prepare(OUTPUTS, COUNT, [ONE])
    assert await resolve(owner) == {ONE: ABORTED}
    await assert_consistent(instances, owner, begun, COUNT)


@pytest.mark.parametrize(
    ("parts", "offsets", "expected"),
    [
        ([STATE], False, {ONE: TORN, OTHER: ABORTED}),
        ([POSTINGS], False, {ONE: TORN, OTHER: TORN}),
        pytest.param([], True, {ONE: TORN, OTHER: TORN}, marks=full),
        ([STATE, *OUTPUTS], True, {ONE: COMMITTED, OTHER: TORN}),
        pytest.param([STATE, OTHER_STATE, *OUTPUTS], False, {ONE: TORN, OTHER: TORN}, marks=full),
    ],
    ids=["one state", "an output", "offsets", "all but the other state", "all but the offsets"],
)
async def test_a_torn_transaction_is_found_and_completed_by_its_own_instance(
    instances: Instances, parts: list[Target], offsets: bool, expected: dict[int, Outcome]
) -> None:
    owner = instances.new(ONE, OTHER)
    await owner.take_over()
    begun = owner.tasks[ONE].next_offset
    await owner.commit(OUTPUTS, COUNT)
    await owner.prepare(OUTPUTS, COUNT)
    async with Brokers(instances.servers) as brokers:
        await owner.commit_some(brokers, *parts, offsets=offsets)
    assert await resolve(owner) == expected
    again = instances.new(*(partition for partition, outcome in expected.items() if outcome is TORN))
    # As the worker does: a task whose transaction was torn begins with an empty state, in the same scope
    for partition, task in again.tasks.items():
        torn = await owner.scope.recover(task, skips_processed=False)
        assert torn is not None
        await owner.scope.complete(task, torn)
        owner.tasks[partition], owner.counts[partition] = task, again.counts[partition]
    for partition, outcome in expected.items():
        done = begun + COUNT + (0 if outcome is ABORTED else COUNT)
        assert (owner.tasks[partition].next_offset, owner.processed_of(partition)) == (done, done)
    if ABORTED in expected.values():
        await owner.prepare(OUTPUTS, COUNT, [OTHER])
        await owner.scope.producer.commit()
        owner.tasks[OTHER].commit()
    await assert_consistent(instances, owner, begun, 2 * COUNT)


@pytest.mark.parametrize("has_part", [True, False], ids=["with a part", "without a part"])
async def test_a_task_that_another_process_has_worked_on_must_drop_its_state(
    instances: Instances, has_part: bool
) -> None:
    owner = instances.new(ONE, OTHER)
    await owner.take_over()
    await owner.commit(OUTPUTS, COUNT)
    if has_part:
        await owner.process(OUTPUTS, COUNT)
    else:
        await owner.scope.begin()
    thief = instances.new(OTHER)
    await thief.take_over()
    await thief.commit(OUTPUTS, COUNT)
    with pytest.raises(RejoinError, match=f"the offset of {INPUT}:{OTHER} .* of another process"):
        await owner.scope.resolve(owner.tasks.values())
    level = instances.new(ONE)
    await level.take_over()
    await level.commit(OUTPUTS, COUNT)


async def test_a_task_whose_offset_an_operator_has_set_must_drop_its_state(instances: Instances) -> None:
    owner = instances.new(ONE)
    await owner.take_over()
    await owner.commit(OUTPUTS, COUNT)
    await owner.scope.begin()
    offset = owner.tasks[ONE].next_offset
    await set_group_offsets(instances.servers, instances.group, INPUT, {ONE: offset}, deadline_s=30)
    with pytest.raises(RejoinError, match=f"the offset of {INPUT}:{ONE} .* of another process"):
        await owner.scope.resolve(owner.tasks.values())
    level = instances.new(OTHER)
    await level.take_over()
    await level.commit(OUTPUTS, COUNT)


@pytest.mark.parametrize("ends", [True, False], ids=["commit", "abort"])
async def test_a_new_owner_waits_for_a_pending_offset(
    instances: Instances, rounds: Callable[[], int], ends: bool
) -> None:
    """Its own InitProducerId does not end the transaction, which is another producer's (KIP-447)."""
    before = instances.new(ONE)
    await before.take_over()
    begun = before.processed
    await before.prepare(OUTPUTS, COUNT)

    after = instances.new(ONE)
    await after.fence()
    recovering = asyncio.create_task(after.recover())
    asked = rounds()

    async def again() -> bool:
        return recovering.done() or rounds() >= asked + 3

    await eventually(again, "the offset is asked for again")
    assert not recovering.done()
    assert after.processed == 0, "the state was read before the offset"
    await (before.scope.producer.commit() if ends else before.abort())
    await recovering
    end = begun + (COUNT if ends else 0)
    assert (after.processed, after.tasks[ONE].next_offset) == (end, end)
    await catch_up(instances, end)


async def catch_up(instances: Instances, end: int) -> None:
    """Have the other partition's state reach the same offset: the next test begins there."""
    level = instances.new(OTHER)
    await level.take_over()
    if missing := end - level.processed:
        await level.commit(OUTPUTS, missing)


@pytest.mark.parametrize("ends", [True, False], ids=["commit", "abort"])
async def test_a_state_is_restored_when_no_transaction_below_its_end_is_open(instances: Instances, ends: bool) -> None:
    name = str(uuid.uuid4())
    value = Output(*STATE, b"account/" + name.encode(), b"7", ())
    async with producing(instances.servers) as writer:
        await writer.begin()
        writer.append([value], 1_700_000_000_000)
        await writer.flush()

        owner = instances.new(ONE)
        await owner.fence()
        progress: list[tuple[int, int]] = []
        recovering = asyncio.create_task(
            owner.scope.recover(owner.tasks[ONE], progress=lambda *passed: progress.append(passed))
        )

        async def again() -> bool:
            return recovering.done() or len(progress) >= 4

        await eventually(again, "the changelog is asked for again")
        assert not recovering.done()
        done, total = progress[-1]
        assert done < total
        await (writer.commit() if ends else writer.abort())
        assert await recovering is None
        assert progress[-1] == (total, total)
    assert owner.counts[ONE].get(name) == (7 if ends else None)
    assert owner.tasks[ONE].next_offset == owner.processed


async def test_a_state_whose_open_transaction_does_not_end_is_not_restored(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "OPEN_DEADLINE_S", 1.0)
    async with producing(instances.servers) as writer:
        await writer.begin()
        writer.append([Output(*STATE, b"account/never", b"7", ())], 1_700_000_000_000)
        await writer.flush()
        owner = instances.new(ONE)
        await owner.fence()
        with pytest.raises(UnknownOutcomeError, match=rf"a transaction in .*{CHANGELOG}.* does not end"):
            await owner.recover()
        await writer.abort()


@pytest.mark.parametrize("version", [1, 2])
async def test_offsets_of_an_old_member_epoch_or_an_unknown_member_are_refused(brokers: str, version: int) -> None:
    """Of its former epochs a member may use those since which it has had the partition (KIP-1251)."""
    group = f"epochs-{uuid.uuid4()}"
    async with joined(brokers, group, "0", INPUT) as first, producing(brokers, version_max=version) as producer:
        await shared(first)
        old = first.member.identity
        second = MemberProcess(brokers, group, "1", INPUT)
        await second.start()
        await shared(first, second)
        [moved] = second.assigned
        await second.stop()
        await shared(first)
        new = first.member.identity
        cases = (
            (new, moved, ""),
            (new, ALL - moved, ""),
            (old, ALL - moved, ""),
            (old, moved, "IllegalGenerationError"),
            (new._replace(epoch=new.epoch + 1), ALL - moved, "IllegalGenerationError"),
            (new._replace(member_id="unknown"), ALL - moved, "UnknownMemberIdError"),
            (second.member.identity, moved, "UnknownMemberIdError"),
        )
        for member, partitions, refusal in cases:
            await producer.begin()
            offsets = {(INPUT, partition): 7 for partition in partitions}
            if refusal:
                with pytest.raises(AbortableError) as refused:
                    await producer.send_offsets(member, offsets)
                assert refused.value.cause == refusal, (member, partitions)
                await producer.abort(refusal)
            else:
                await producer.send_offsets(member, offsets)
                await producer.commit()


async def test_a_refused_transaction_changes_no_state(instances: Instances) -> None:
    async with joined(instances.servers, instances.group, f"{uuid.uuid4()}", INPUT) as one:
        await shared(one)
        known = one.member.identity
        unknown = known._replace(member_id="unknown")
        owner = instances.new(ONE, OTHER, member=known)
        await owner.take_over()
        begun = owner.tasks[ONE].next_offset
        await owner.commit(OUTPUTS, COUNT)
        owner.member = unknown
        with pytest.raises(AbortableError, match="UnknownMemberIdError"):
            await owner.commit(OUTPUTS, COUNT)
        await owner.abort()
        task = owner.tasks[ONE]
        with pytest.raises(RejoinError, match=f"the state of {task} was refused: UnknownMemberIdError"):
            await owner.scope.commit_alone(task, (), task.next_offset)
        owner.member = known
        await assert_consistent(instances, owner, begun, COUNT)
