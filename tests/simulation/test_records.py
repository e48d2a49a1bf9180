"""The project's own client reads and writes records of the simulated cluster, unmodified."""

import asyncio

import pytest

from shared.events import catalogue
from shared.kafka.admin.clock import check_clock
from shared.kafka.admin.configs import broker_config
from shared.kafka.admin.topics import check_topics
from shared.kafka.client.errors import KafkaUnavailableError, TopicMismatchError
from shared.kafka.client.reader import end_offsets
from tests.partitions import PARTITIONS
from tests.simulation.world import ADDRESSES, SERVERS, World, history


def test_what_a_service_checks_at_its_start() -> None:
    async def main(_: World) -> None:
        await check_topics(SERVERS, [topic.name for topic in catalogue.TOPICS], PARTITIONS)
        with pytest.raises(TopicMismatchError, match=r"payments\.rwa is missing"):
            await check_topics(SERVERS, ["payments.rwa"], PARTITIONS)
        assert await broker_config(SERVERS, "transaction.max.timeout.ms") == "60000"
        await check_clock(SERVERS, 1.0)
        assert set((await end_offsets(SERVERS, [catalogue.PAYMENTS_RAW])).values()) == {0}

    history(main)


def test_a_cluster_that_nobody_reaches_is_unavailable() -> None:
    async def main(world: World) -> None:
        world.network.cut = {frozenset(("-", f"broker-{node}")) for node in ADDRESSES}
        with pytest.raises(KafkaUnavailableError):
            await broker_config(SERVERS, "transaction.max.timeout.ms")
        assert asyncio.get_running_loop().time() > 1

    history(main)
