"""The installation's id: makers that run at once agree, and readers find the same one after compaction."""

import asyncio

import pytest

from shared.eos.records import Record
from shared.events.catalogue import INSTALLATION
from shared.events.installation import PARTITION, Installation, encode_installation
from shared.kafka.admin.installation import ensure_installation, installation_id
from shared.kafka.client.errors import TopicMismatchError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_partition
from tests.simulation.world import SERVERS, World, history

MAKERS = 5


async def records() -> list[Record]:
    found: list[Record] = []
    await read_partition(SERVERS, INSTALLATION, PARTITION, found.extend)
    return found


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
