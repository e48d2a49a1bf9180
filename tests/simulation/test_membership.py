"""Offsets that groups commit on the simulated cluster, by the project's own client."""

import asyncio

import pytest

from shared.eos.errors import FencedError
from shared.events import catalogue
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, partition_of
from shared.kafka.client.reader import group_offsets
from shared.kafka.runtime.producer import TransactionalProducer
from tests.contract.helpers import producing
from tests.simulation.world import SERVERS, World, history

GROUP, TOPIC, ID = "ledger", catalogue.LEDGER_TRANSFERS, "ledger-ledger.transfers-1"
SETTLED_S = 1.0
"""By then markers are written and replicated."""


async def consumed(producer: TransactionalProducer, offset: int, *, commit: bool = True) -> None:
    """A transaction that has nothing but an offset."""
    await producer.begin()
    await producer.send_offsets(GROUP, {(TOPIC, 1): offset}, "metadata")
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
            await producer.send_offsets(GROUP, {(TOPIC, 1): 30})
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
