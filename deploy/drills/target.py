"""A running cluster that drills act on: components by name, brokers by role.

Invariant: what a drill has taken away is listed until it is brought back, so that a run heals whatever ended it.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from deploy.drills.drill import LOCAL, SECURE
from deploy.drills.waiting import until
from deploy.local.kafka.cluster import KafkaNotReadyError
from deploy.local.kafka.probe import BrokerNotAnsweringError, ClusterView
from deploy.local.supervisor.component import Component
from deploy.local.supervisor.stack import Stack
from shared.kafka.admin.quorum import describe_quorum
from shared.kafka.client.access import Access
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.requests import Request

HEALTHY_S: Final = 90.0
POLL_S: Final = 0.1
_ELECT_PREFERRED: Final = Request("ElectLeaders", 2, {"ElectionType": 0, "TopicPartitions": None, "TimeoutMs": 30_000})


class NoSuchRoleError(LookupError):
    """No broker has the role now, such as a partition without a leader."""


class Target:
    """The local stack, plain or secure.

    Args:
        stack: started, with or without services.

    Attributes:
        name: LOCAL or SECURE.
        taken: components that a fault has taken away or paused, by name.
        healthy_s: seconds that it may take to become healthy.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.name = LOCAL if stack.access.tls is None else SECURE
        self.taken: set[str] = set()
        self.healthy_s = HEALTHY_S

    @property
    def access(self) -> Access:
        """Return how a client reaches the brokers as the operator."""
        return self.stack.access

    @property
    def bootstrap_servers(self) -> str:
        """Return all brokers as `host:port,...`."""
        return self.stack.kafka.bootstrap_servers

    @property
    def directory(self) -> Path:
        """Return where the stack keeps its data and logs."""
        return self.stack.directory

    def component(self, name: str) -> Component:
        """Return a component: a service, an observer, `broker-<n>`, `redis` or `prometheus`."""
        for component in self.stack.components:
            if component.name == name:
                return component
        raise NoSuchRoleError(f"nothing on this target is named {name}")

    # Brokers by role: each returns a component's name

    async def leader(self, topic: str, partition: int = 0) -> str:
        """Return the broker that leads a partition."""
        for seen in self.view().partitions:
            if (seen.topic, seen.partition) == (topic, partition) and seen.leader >= 0:
                return _broker(seen.leader)
        raise NoSuchRoleError(f"{topic} [{partition}] has no leader")

    async def transaction_coordinator(self, transactional_id: str) -> str:
        """Return the broker that coordinates the transactions of a transactional.id."""
        return await self._coordinator(transactional_id, transactional=True)

    async def group_coordinator(self, group: str) -> str:
        """Return the broker that coordinates a consumer group."""
        return await self._coordinator(group, transactional=False)

    async def controller(self) -> str:
        """Return the active controller: the leader of the quorum. Metadata names a random broker (KIP-500)."""
        async with Cluster(self.access) as cluster:
            quorum = await cluster.retry(lambda: describe_quorum(cluster), "the cluster has no active controller")
        return _broker(quorum["LeaderId"])

    async def other_brokers(self, name: str) -> list[str]:
        """Return the brokers without this one."""
        return [_broker(node.node_id) for node in self.stack.kafka.nodes if _broker(node.node_id) != name]

    def view(self) -> ClusterView:
        """Return the cluster as the first broker that answers sees it.

        Raises:
            NoSuchRoleError: no broker answers.
        """
        view = next(self.views(), None)
        if view is None:
            raise NoSuchRoleError("no broker answers")
        return view

    def views(self) -> Iterator[ClusterView]:
        """Yield the cluster as each broker that answers sees it."""
        for node in self.stack.kafka.nodes:
            if _broker(node.node_id) not in self.taken:
                with suppress(BrokerNotAnsweringError):
                    yield self.stack.kafka.view(node.node_id)

    # Components taken away and brought back

    def take_away(self, name: str) -> None:
        """Kill a component with SIGKILL and prevent its restart."""
        component = self.component(name)
        self.taken.add(name)
        component.release()
        component.kill()

    def stop(self, name: str) -> None:
        """Stop a component with SIGTERM, wait until it has ended, and prevent its restart."""
        component = self.component(name)
        self.taken.add(name)
        component.release()
        component.process.terminate()

    def kill(self, name: str) -> None:
        """Kill a component with SIGKILL; the supervisor starts it again."""
        self.component(name).kill()

    def pause(self, name: str) -> None:
        """Stop a component's process by SIGSTOP."""
        self.taken.add(name)
        self.component(name).pause()

    def bring_back(self, name: str) -> None:
        """Start or resume a component, and keep it running."""
        component = self.component(name)
        if component.process.running:
            component.resume()
        else:
            component.start()
        self.taken.discard(name)

    async def heal(self) -> None:
        """Bring back everything that was taken away, and wait until the target is as it was started.

        Raises:
            StackNotReadyError, KafkaNotReadyError: not so within `healthy_s` seconds.
        """
        for name in sorted(self.taken):
            self.bring_back(name)
        await self.settle()
        await self._elect_preferred_leaders()

    async def settle(self) -> None:
        """Wait until every component is ready, and every replica in sync; raises as `heal`."""
        await asyncio.to_thread(self.stack.wait_ready, self.healthy_s)
        await asyncio.to_thread(self.stack.kafka.wait_in_sync, self.healthy_s)

    async def ready(self, name: str, within_s: float = HEALTHY_S) -> float:
        """Wait until a component is ready.

        Returns:
            The seconds waited.

        Raises:
            TimeoutError: it is not ready within `within_s` seconds.
        """
        return await until(lambda: self.component(name).ready, f"{name} is ready", within_s)

    async def _elect_preferred_leaders(self) -> None:
        """Have each partition led by its first replica. Brokers do so by themselves, but later: in the next drill."""

        def elected() -> bool:
            return all(part.leader == part.replicas[0] for part in self.view().partitions)

        if elected():
            return
        async with Cluster(self.access) as cluster:
            await cluster.retry(lambda: cluster.send_to_any(_ELECT_PREFERRED), "leaders cannot be elected")
        deadline_s = time.monotonic() + HEALTHY_S
        while not elected():
            if time.monotonic() > deadline_s:
                raise KafkaNotReadyError(f"not each partition has its preferred leader after {HEALTHY_S:.0f} s")
            await asyncio.sleep(POLL_S)

    async def _coordinator(self, name: str, *, transactional: bool) -> str:
        async with Cluster(self.access) as cluster:
            return _broker(
                await cluster.retry(
                    lambda: cluster.coordinator(name, transactional=transactional), f"{name} has no coordinator"
                )
            )


def node_id(broker: str) -> int:
    """Return the id of a broker by its component's name."""
    return int(broker.removeprefix("broker-"))


def _broker(number: int) -> str:
    return f"broker-{number}"
