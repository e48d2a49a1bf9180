"""The installation's records: makers that run at once agree, and readers find the same ones after compaction."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from services.ledger.__main__ import build
from shared.eos.records import Record
from shared.events.catalogue import INSTALLATION, PAYMENTS_RAW
from shared.events.installation import (
    OWNERSHIP_KEY,
    PARTITION,
    Installation,
    Ownership,
    decode_ownership,
    encode_installation,
    encode_ownership,
)
from shared.kafka.admin.installation import enforce_ownership, ensure_installation, installation_id, ownership
from shared.kafka.admin.topics import ensure_topics
from shared.kafka.client.errors import KafkaUnavailableError, TopicMismatchError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_partition
from shared.settings import LedgerSettings, load
from tests.partitions import PARTITIONS
from tests.simulation.world import SERVERS, World, history

MAKERS = 5


async def records(*, ownerships: bool = False) -> list[Record]:
    found: list[Record] = []
    await read_partition(SERVERS, INSTALLATION, PARTITION, found.extend)
    return [record for record in found if (record.key == OWNERSHIP_KEY) == ownerships]


async def pay(partition: int) -> None:
    async with IdempotentWriter(SERVERS) as writer:
        await writer.send(PAYMENTS_RAW, partition, None, b"{}")


def test_makers_that_run_at_once_agree() -> None:
    async def main(_: World) -> None:
        with pytest.raises(TopicMismatchError, match="make it with `once up`"):
            await installation_id(SERVERS)
        made = await asyncio.gather(*(ensure_installation(SERVERS) for _ in range(MAKERS)))
        written = await records()
        assert len(written) == MAKERS, "every maker found the topic empty: else this test shows nothing"
        assert set(made) == {(written[0].key or b"").decode()}
        assert len({record.key for record in written}) == MAKERS, "compaction would remove the first"
        assert await ensure_installation(SERVERS) == await installation_id(SERVERS) == made[0]
        assert len(await records()) == MAKERS

    history(main)


def test_a_maker_takes_the_id_that_was_mirrored() -> None:
    async def main(_: World) -> None:
        mirrored = Installation("0" * 32, 1)
        async with IdempotentWriter(SERVERS) as writer:
            await writer.send(INSTALLATION, PARTITION, mirrored.id.encode(), encode_installation(mirrored))
        assert await ensure_installation(SERVERS) == mirrored.id
        assert len(await records()) == 1

    history(main)


def test_replicas_that_are_late_are_waited_for_as_long_as_the_caller_gives() -> None:
    async def main(world: World) -> None:
        log = world.cluster.partitions[INSTALLATION, PARTITION]
        world.cluster.hold(log)
        with pytest.raises(KafkaUnavailableError, match="installation:0 did not acknowledge a record within 20 s"):
            await ensure_topics(SERVERS, PARTITIONS, deadline_s=20)
        making = asyncio.create_task(ensure_topics(SERVERS, PARTITIONS, deadline_s=60))
        await asyncio.sleep(30)
        assert not making.done()
        world.cluster.release(log)
        assert await making == []
        assert await installation_id(SERVERS)
        assert (await ownership(SERVERS)).raw_from == (0,) * PARTITIONS

    history(main)


def test_a_new_installation_enforces_ownership_from_its_first_payment() -> None:
    async def main(_: World) -> None:
        with pytest.raises(TopicMismatchError, match="run `once clients enforce`"):
            await ownership(SERVERS)
        await asyncio.gather(*(ensure_installation(SERVERS) for _ in range(MAKERS)))
        await pay(2)
        await ensure_installation(SERVERS)
        assert (await ownership(SERVERS)).raw_from == (0,) * PARTITIONS
        written = await records(ownerships=True)
        assert len({record.value for record in written}) > 1, "makers wrote at once: else this test shows nothing"
        assert written[-1].value == written[0].value, "compaction keeps the last record"

    history(main)


def test_a_former_installation_enforces_ownership_when_it_is_told_to() -> None:
    async def main(_: World) -> None:
        await pay(2)
        await pay(2)
        await ensure_installation(SERVERS)
        with pytest.raises(TopicMismatchError, match="run `once clients enforce`"):
            await ownership(SERVERS)
        enforced = await enforce_ownership(SERVERS)
        assert enforced.raw_from == (0, 0, 2, *(0,) * (PARTITIONS - 3))
        await pay(2)
        await ensure_installation(SERVERS)
        assert await enforce_ownership(SERVERS) == await ownership(SERVERS) == enforced
        assert len(await records(ownerships=True)) == 1

    history(main)


def test_of_two_records_the_first_counts_and_is_written_again() -> None:
    """The maker of the second one ended before it read them."""

    async def main(_: World) -> None:
        first, second = (encode_ownership(Ownership((at,) * PARTITIONS, at)) for at in (3, 4))
        async with IdempotentWriter(SERVERS) as writer:
            for value in (first, second):
                await writer.send(INSTALLATION, PARTITION, OWNERSHIP_KEY, value)
        assert await ownership(SERVERS) == decode_ownership(first)
        await ensure_installation(SERVERS)
        assert [record.value for record in await records(ownerships=True)] == [first, second, first]
        assert await ownership(SERVERS) == decode_ownership(first)

    history(main)


def test_the_ledger_does_not_start_before_ownership_is_enforced() -> None:
    async def main(_: World) -> None:
        await pay(0)
        await ensure_installation(SERVERS)
        settings = load(LedgerSettings, {"ONCE_BOOTSTRAP_SERVERS": SERVERS, "ONCE_PARTITIONS": str(PARTITIONS)})
        async with AsyncExitStack() as stack:
            with pytest.raises(TopicMismatchError, match="run `once clients enforce`"):
                await build(settings, stack)
            await enforce_ownership(SERVERS)
            await build(settings, stack)

    history(main)
