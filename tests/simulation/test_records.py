"""The project's own client reads and writes records of the simulated cluster, unmodified."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from shared.events import catalogue
from shared.kafka.admin.clock import check_clock
from shared.kafka.admin.topics import broker_config, check_topics
from shared.kafka.client.errors import KafkaUnavailableError, TopicMismatchError
from shared.kafka.client.reader import end_offsets
from tests.simulation.broker import Broker
from tests.simulation.cluster import Cluster
from tests.simulation.loop import virtual_time
from tests.simulation.network import Network
from tests.simulation.records import Records

ADDRESSES = {node: (f"broker-{node}.simulated", 9092) for node in range(3)}
SERVERS = ",".join(f"{host}:{port}" for host, port in ADDRESSES.values())
CONFIGURATION = {"transaction.max.timeout.ms": "60000"}


def history(main: Callable[[Cluster, Network], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Run a history of three brokers with the catalogue's topics."""
    chance = random.Random(seed)
    with virtual_time() as loop:
        network = Network(loop, chance)
        cluster = Cluster(chance, len(ADDRESSES), 2)
        for topic in catalogue.TOPICS:
            cluster.create(topic.name, catalogue.PARTITIONS)
        for node, address in ADDRESSES.items():
            broker = Broker(cluster, node, address)
            broker.serve(Records(broker, ADDRESSES, CONFIGURATION).handlers())
            network.nodes[address] = broker
        loop.run_until_complete(main(cluster, network))


def test_what_a_service_checks_at_its_start() -> None:
    async def main(_cluster: Cluster, _network: Network) -> None:
        await check_topics(SERVERS, [topic.name for topic in catalogue.TOPICS])
        with pytest.raises(TopicMismatchError, match=r"payments\.rwa is missing"):
            await check_topics(SERVERS, ["payments.rwa"])
        assert await broker_config(SERVERS, "transaction.max.timeout.ms") == "60000"
        await check_clock(SERVERS, 1.0)
        assert set((await end_offsets(SERVERS, [catalogue.PAYMENTS_RAW])).values()) == {0}

    history(main)


def test_a_cluster_that_nobody_reaches_is_unavailable() -> None:
    async def main(_cluster: Cluster, network: Network) -> None:
        network.cut = {frozenset(("-", f"broker-{node}")) for node in ADDRESSES}
        with pytest.raises(KafkaUnavailableError):
            await broker_config(SERVERS, "transaction.max.timeout.ms")
        assert asyncio.get_running_loop().time() > 1

    history(main)
