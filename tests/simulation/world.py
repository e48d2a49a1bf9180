"""A simulated cluster with the catalogue's topics, at the network's other end."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from unittest import mock

from deploy.drills.clients.record_batches import record_batch
from shared.events import catalogue
from shared.events.headers import Headers
from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, STATE_TOPIC, partition_of
from shared.kafka.client import connections
from shared.kafka.client.batches import Batch
from shared.kafka.runtime.scope import now_ms
from tests.partitions import PARTITIONS
from tests.simulation.broker import Broker
from tests.simulation.cluster import Cluster, Target
from tests.simulation.consumer_membership import ConsumerMembership
from tests.simulation.coordinated import HEARTBEAT_S, SESSION_S, AnyGroup, Groups, GroupSettings
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
from tests.simulation.inspection import Inspection
from tests.simulation.loop import virtual_time
from tests.simulation.membership import Membership
from tests.simulation.network import Network
from tests.simulation.offset_requests import OffsetRequests
from tests.simulation.records import Records
from tests.simulation.transactions import TIMEOUT_MAX_MS

ADDRESSES: Final = {node: (f"broker-{node}.simulated", 9092) for node in range(3)}
SERVERS: Final = ",".join(f"{host}:{port}" for host, port in ADDRESSES.values())
CONFIGURATION: Final = {"transaction.max.timeout.ms": str(TIMEOUT_MAX_MS)}
MIN_IN_SYNC: Final = 2
INTERNAL_PARTITIONS: Final = 6
"""Of the topics of coordinators."""
WRITE_TIMEOUT_S: Final = 5.0
WRITE_RETRY_S: Final = 0.2
ADDED_AGAIN, ADDED_AGAIN_S = 5, 0.02
"""How often, and after how many seconds, a leader asks again while an earlier transaction ends."""
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

    def start(self, node: int) -> None:
        """Start a broker again."""
        self.cluster.start(node)

    async def write(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> None:
        """Append a record from outside, again until it is replicated: there may be several of it."""
        written = self.cluster.partitions[topic, partition]
        while True:
            if written.leader in self.cluster.alive and self.cluster.takes_appends(written):
                written.log.append(record_batch([(key, value)], timestamp_ms=now_ms(), headers=headers))
                self.cluster.appended(written)
                if await written.replicated(written.log.end, WRITE_TIMEOUT_S):
                    return
            await asyncio.sleep(WRITE_RETRY_S)


@dataclass(frozen=True, slots=True)
class Brokers:
    """A simulated cluster, as tests of clients use one that runs."""

    world: World
    bootstrap_servers: str = SERVERS

    def pause(self) -> None:
        """No broker answers."""
        self.world.network.cut |= {frozenset(("-", f"broker-{node}")) for node in ADDRESSES}

    def resume(self) -> None:
        """All answer again."""
        self.world.network.cut.clear()

    def wait_ready(self, _: float = 0.0) -> None:
        """They are, in no time."""

    def wait_in_sync(self, _: float = 0.0) -> None:
        """They are, likewise."""


async def started(
    network: Network,
    chance: random.Random,
    first_wait_s: float = 0.0,
    brokers: int = len(ADDRESSES),
    transaction_version: int = 2,
    session_s: float = SESSION_S,
    heartbeat_s: float = HEARTBEAT_S,
    partitions: int = PARTITIONS,
) -> World:
    """Start a cluster with the catalogue's topics.

    Args:
        first_wait_s, session_s, heartbeat_s: as in GroupSettings.
        brokers: how many; at most as many as there are addresses.
        transaction_version: its finalised feature.
        partitions: of each topic of the catalogue.
    """
    addresses = {node: ADDRESSES[node] for node in range(brokers)}
    cluster = Cluster(chance, brokers, min(brokers, MIN_IN_SYNC), transaction_version)
    for topic in catalogue.TOPICS:
        cluster.create(topic.name, partitions, topic.settings())
    for name in (STATE_TOPIC, OFFSETS_TOPIC):
        cluster.create(name, INTERNAL_PARTITIONS, {})
    groups_by_name: dict[str, AnyGroup] = {}
    settings = GroupSettings(first_wait_s, session_s, heartbeat_s)
    producer_ids = itertools.count(1000).__next__
    coordinators: dict[int, Coordinator] = {}

    async def verify(asking: str, name: str, batch: Batch, target: Target, adds: bool) -> None:
        leader = cluster.partitions[STATE_TOPIC, partition_of(name, INTERNAL_PARTITIONS)].leader
        await asyncio.sleep(2 * network.delay_s())
        if leader not in cluster.alive or not network.passes(asking, f"broker-{leader}"):
            raise RefusedError(NOT_ENOUGH_REPLICAS)
        coordinator = coordinators[leader]
        if not adds:
            code = coordinator.check(name, batch, target)
            if code != NONE:
                raise RefusedError(_OF_PRODUCE.get(code, code))
            return
        for _ in range(ADDED_AGAIN if target[0] != OFFSETS_TOPIC else 1):
            code = await coordinator.add_for(name, batch, target)
            if code != CONCURRENT_TRANSACTIONS:
                break
            await asyncio.sleep(ADDED_AGAIN_S)
        if code != NONE:
            raise RefusedError(code if code == CONCURRENT_TRANSACTIONS else _OF_PRODUCE.get(code, code))

    for node, address in addresses.items():
        broker = Broker(cluster, node)
        coordinator = Coordinator(broker, network, chance, addresses, producer_ids)
        coordinators[node] = coordinator
        records = Records(broker, addresses, CONFIGURATION, partial(verify, broker.name))
        groups = Groups(broker, groups_by_name, settings)
        rooms = (
            records,
            coordinator,
            Membership(groups),
            ConsumerMembership(broker, groups),
            OffsetRequests(broker, groups, partial(verify, broker.name)),
            Inspection(broker, coordinator, groups),
        )
        for room in rooms:
            broker.serve(room.handlers())
        network.nodes[address] = broker
        coordinator.start()
    await asyncio.sleep(1)  # until the coordinators have loaded their logs
    return World(network, cluster, chance)


def history(
    main: Callable[[World], Coroutine[Any, Any, None]],
    seed: int = 1,
    first_wait_s: float = 0.0,
    transaction_version: int = 2,
    session_s: float = SESSION_S,
    heartbeat_s: float = HEARTBEAT_S,
    partitions: int = PARTITIONS,
) -> None:
    """Run a history in a new world; the arguments after `seed` are as for `started`."""
    chance = random.Random(seed)

    async def run(network: Network) -> None:
        world = await started(
            network,
            chance,
            first_wait_s,
            transaction_version=transaction_version,
            session_s=session_s,
            heartbeat_s=heartbeat_s,
            partitions=partitions,
        )
        await main(world)

    # No history knows what an earlier one found silent
    with virtual_time() as loop, mock.patch.object(connections, "_silent", set()):
        loop.run_until_complete(run(Network(loop, chance)))
