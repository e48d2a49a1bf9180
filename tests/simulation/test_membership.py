"""Groups on the simulated cluster, by the project's own client: offsets, and a change of their protocol."""

import asyncio

import pytest

from shared.eos.errors import FencedError
from shared.events import catalogue
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, partition_of
from shared.kafka.client.reader import group_offsets
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.transaction_requests import GroupMember
from tests.contract import classic_members
from tests.contract.helpers import producing
from tests.contract.members import joined, shared
from tests.harness import eventually
from tests.simulation.world import SERVERS, World, history

GROUP, TOPIC, ID = "ledger", catalogue.LEDGER_TRANSFERS, "ledger-ledger.transfers-1"
SETTLED_S = 1.0
"""By then markers are written and replicated."""


async def consumed(producer: TransactionalProducer, offset: int, *, commit: bool = True) -> None:
    """A transaction that has nothing but an offset."""
    await producer.begin()
    await producer.send_offsets(GroupMember(GROUP), {(TOPIC, 1): offset}, "metadata")
    await (producer.commit() if commit else producer.abort())
    await asyncio.sleep(SETTLED_S)


async def committed() -> dict[int, int]:
    return await group_offsets(SERVERS, GROUP, TOPIC)


def test_offsets_are_those_that_were_committed() -> None:
    async def main(_: World) -> None:
        assert await committed() == {}
        await set_group_offsets(SERVERS, GROUP, TOPIC, {0: 5, 3: 7})
        assert await committed() == {0: 5, 3: 7}

    history(main)


def test_offsets_of_a_transaction_count_when_it_is_committed() -> None:
    async def main(_: World) -> None:
        async with producing(SERVERS, ID) as producer:
            await consumed(producer, 10)
            await consumed(producer, 20, commit=False)
            assert await committed() == {1: 10}
            await producer.begin()
            await producer.send_offsets(GroupMember(GROUP), {(TOPIC, 1): 30})
            await asyncio.sleep(SETTLED_S)
            assert await committed() == {1: 10}
            await producer.commit()
            await asyncio.sleep(SETTLED_S)
            assert await committed() == {1: 30}

    history(main)


def test_a_fenced_producer_commits_no_offset() -> None:
    async def main(_: World) -> None:
        async with producing(SERVERS, ID) as producer:
            await consumed(producer, 10)
            async with producing(SERVERS, ID):
                with pytest.raises(FencedError):
                    await consumed(producer, 20)
        assert await committed() == {1: 10}

    history(main)


def test_the_next_coordinator_has_what_was_replicated() -> None:
    async def main(world: World) -> None:
        offsets = world.cluster.partitions[OFFSETS_TOPIC, partition_of(GROUP, len(world.cluster.topic(OFFSETS_TOPIC)))]
        await set_group_offsets(SERVERS, GROUP, TOPIC, {0: 5})
        world.kill(offsets.leader)
        await asyncio.sleep(10)
        assert await committed() == {0: 5}

    history(main)


def test_a_member_that_cannot_join_a_classic_group_says_so_and_joins_when_it_is_empty() -> None:
    async def main(_: World) -> None:
        async with classic_members.member(SERVERS, GROUP, "0") as before:
            await classic_members.shared(before)
            async with joined(SERVERS, GROUP, "0") as first:

                async def waits() -> bool:
                    return first.member.waits_for == f"group {GROUP} has members that speak the older protocol"

                await eventually(waits, "it waits")
                assert (before.partitions, first.assigned) == (classic_members.ALL, [])
                await classic_members.kill(before.consumer)
                await shared(first)
                assert first.member.waits_for == ""

    history(main)
