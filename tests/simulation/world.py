"""A simulated cluster with the catalogue's topics, at the network's other end."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from shared.events import catalogue
from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, STATE_TOPIC
from tests.simulation.broker import Broker
from tests.simulation.cluster import Cluster
from tests.simulation.coordinator import Coordinator
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
    for node, address in ADDRESSES.items():
        broker = Broker(cluster, node, address)
        coordinator = Coordinator(broker, network, chance, ADDRESSES, producer_ids)
        rooms = (Records(broker, ADDRESSES, CONFIGURATION), coordinator, Membership(broker, groups))
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
