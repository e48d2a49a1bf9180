"""The runtime's transactional producer at work on the simulated cluster, unmodified."""

import asyncio

import pytest

from shared.eos.errors import EosError, FencedError, UnknownOutcomeError
from shared.eos.records import Output
from shared.events import catalogue
from shared.kafka.admin.transaction_state import STATE_TOPIC, partition_of
from shared.kafka.runtime.producer import TransactionalProducer
from tests.contract.helpers import here, producing, values_since
from tests.harness import eventually
from tests.simulation.cluster import Partition
from tests.simulation.world import SERVERS, World, history

TOPIC, OTHER = catalogue.LEDGER_POSTINGS, catalogue.LEDGER_BALANCES
ID = "ledger-ledger.transfers-1"


async def written(producer: TransactionalProducer, value: bytes) -> None:
    """Write one record each to two topics in the open transaction."""
    producer.append([Output(topic, 1, b"key", value, ()) for topic in (TOPIC, OTHER)], 0)
    await producer.flush()


async def transaction(producer: TransactionalProducer, value: bytes, *, commit: bool = True) -> None:
    await producer.begin()
    await written(producer, value)
    await (producer.commit() if commit else producer.abort())


async def found(topic: str) -> list[bytes | None]:
    """Read all that is committed."""
    return await values_since(SERVERS, dict.fromkeys(await here(SERVERS, topic), 0), 1)


async def visible(expected: list[bytes]) -> None:
    """Wait until readers of both topics see these records, and nothing else."""

    async def seen() -> bool:
        return [await found(topic) for topic in (TOPIC, OTHER)] == [expected, expected]

    await eventually(seen, f"{expected} are visible")


def coordinators_log(world: World) -> Partition:
    return world.cluster.partitions[STATE_TOPIC, partition_of(ID, len(world.cluster.topic(STATE_TOPIC)))]


def test_committed_records_are_visible_and_aborted_ones_are_not() -> None:
    async def main(_: World) -> None:
        async with producing(SERVERS, ID) as producer:
            await transaction(producer, b"one")
            await transaction(producer, b"two", commit=False)
            await transaction(producer, b"three")
            await visible([b"one", b"three"])

    history(main)


def test_a_successor_aborts_the_open_transaction_and_fences_its_producer() -> None:
    async def main(_: World) -> None:
        async with producing(SERVERS, ID) as producer:
            await producer.begin()
            await written(producer, b"lost")
            async with producing(SERVERS, ID) as successor:
                await transaction(successor, b"kept")
                await visible([b"kept"])
                with pytest.raises(FencedError):
                    await producer.commit()

    history(main)


def test_a_transaction_past_its_timeout_is_aborted() -> None:
    async def main(_: World) -> None:
        async with producing(SERVERS, ID) as producer:
            await producer.begin()
            await written(producer, b"late")
            await asyncio.sleep(30)
            with pytest.raises(UnknownOutcomeError):
                await producer.commit()
        await visible([])

    history(main)


@pytest.mark.parametrize("seed", range(5))
def test_a_coordinator_that_is_killed_is_succeeded(seed: int) -> None:
    async def main(world: World) -> None:
        async with producing(SERVERS, ID) as producer:
            await transaction(producer, b"before")
            world.kill(coordinators_log(world).leader)
        await asyncio.sleep(10)
        async with producing(SERVERS, ID) as producer:
            await transaction(producer, b"after")
        await visible([b"before", b"after"])

    history(main, seed)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("waits", "also"), [(False, []), (True, [b"torn"])])
def test_a_decision_that_only_its_coordinator_had_tears_the_transaction_unless_its_client_repeats_it(
    waits: bool, also: list[bytes], version: int
) -> None:
    """As docs/upstream.md reports of Kafka: the client ends before its coordinator does, or waits for an answer."""

    async def main(world: World) -> None:
        state, (postings, balances) = (
            coordinators_log(world),
            (world.cluster.partitions[topic, 1] for topic in (TOPIC, OTHER)),
        )
        former = state.leader
        follower, third = sorted(state.in_sync - {former})
        world.cluster.move(postings, follower)
        world.cluster.move(balances, third)

        async def tear() -> None:
            await asyncio.sleep(0.5)
            world.kill(former)
            await asyncio.sleep(1)
            world.network.cut.add(frozenset((f"broker-{former}", f"broker-{third}")))
            world.cluster.start(former)  # before anybody succeeded it, so it acts on what it alone had
            await asyncio.sleep(1)
            world.cluster.move(state, third)
            state.held = False
            world.network.cut.clear()

        async with producing(SERVERS, ID) as producer:
            await producer.begin()
            await written(producer, b"torn")
            state.held = True
            tearing = asyncio.create_task(tear())
            committing = asyncio.create_task(producer.commit())
            if not waits:
                await asyncio.sleep(0.4)
                committing.cancel()
            with pytest.raises(EosError if waits else asyncio.CancelledError):
                await committing
        await tearing
        async with producing(SERVERS, ID):
            assert (await found(TOPIC), await found(OTHER)) == ([b"torn"], also)

    history(main, transaction_version=version)
