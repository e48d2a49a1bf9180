"""A simulated cluster with the catalogue's topics, at the network's other end."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from shared.events import catalogue
from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, STATE_TOPIC, partition_of
from shared.kafka.client.batches import Batch
from tests.simulation.broker import Broker
from tests.simulation.cluster import Cluster, Target
from tests.simulation.coordinator import Coordinator
from tests.simulation.errors import (
    CONCURRENT_TRANSACTIONS,
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRODUCER_EPOCH,
    NONE,
    NOT_COORDINATOR,
    NOT_ENOUGH_REPLICAS,
    PRODUCER_FENCED,
    RefusedError,
)
from tests.simulation.groups import Group
from tests.simulation.loop import virtual_time
from tests.simulation.membership import Membership
from tests.simulation.network import Network
from tests.simulation.records import Records
from tests.simulation.transactions import TIMEOUT_MAX_MS

ADDRESSES: Final = {node: (f"broker-{node}.simulated", 9092) for node in range(3)}
SERVERS: Final = ",".join(f"{host}:{port}" for host, port in ADDRESSES.values())
CONFIGURATION: Final = {"transaction.max.timeout.ms": str(TIMEOUT_MAX_MS)}
MIN_IN_SYNC: Final = 2
INTERNAL_PARTITIONS: Final = 6
"""Of the topics of coordinators."""
_OF_PRODUCE: Final = {
    PRODUCER_FENCED: INVALID_PRODUCER_EPOCH,
    **dict.fromkeys(
        (CONCURRENT_TRANSACTIONS, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR),
        NOT_ENOUGH_REPLICAS,
    ),
}
"""Codes of Produce for those of a coordinator."""


@dataclass(frozen=True, slots=True)
class World:
    """All that a history can disturb."""

    network: Network
    cluster: Cluster
    chance: random.Random

    def kill(self, node: int) -> None:
        """Kill a broker."""
        self.cluster.kill(node)
        self.network.down(self.network.nodes[ADDRESSES[node]])


async def _started(network: Network, chance: random.Random) -> World:
    cluster = Cluster(chance, len(ADDRESSES), MIN_IN_SYNC)
    for topic in catalogue.TOPICS:
        cluster.create(topic.name, catalogue.PARTITIONS)
    for name in (STATE_TOPIC, OFFSETS_TOPIC):
        cluster.create(name, INTERNAL_PARTITIONS)
    groups: dict[str, Group] = {}
    producer_ids = itertools.count(1000).__next__
    coordinators: dict[int, Coordinator] = {}

    async def verify(asking: str, name: str, batch: Batch, target: Target) -> None:
        leader = cluster.partitions[STATE_TOPIC, partition_of(name, INTERNAL_PARTITIONS)].leader
        await asyncio.sleep(2 * network.delay_s())
        if leader not in cluster.alive or not network.passes(asking, f"broker-{leader}"):
            raise RefusedError(NOT_ENOUGH_REPLICAS)
        code = coordinators[leader].check(name, batch, target)
        if code != NONE:
            raise RefusedError(_OF_PRODUCE.get(code, code))

    for node, address in ADDRESSES.items():
        broker = Broker(cluster, node)
        coordinator = Coordinator(broker, network, chance, ADDRESSES, producer_ids)
        coordinators[node] = coordinator
        records = Records(broker, ADDRESSES, CONFIGURATION, partial(verify, broker.name))
        rooms = (records, coordinator, Membership(broker, groups))
        for room in rooms:
            broker.serve(room.handlers())
        network.nodes[address] = broker
        coordinator.start()
    await asyncio.sleep(1)  # until the coordinators have loaded their logs
    return World(network, cluster, chance)


def history(main: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Run a history in a new world."""
    chance = random.Random(seed)

    async def run(network: Network) -> None:
        await main(await _started(network, chance))

    with virtual_time() as loop:
        loop.run_until_complete(run(Network(loop, chance)))
