"""A running cluster that drills act on: components by name, brokers by role.

Invariant: what a drill has taken away is listed until it is brought back, so that a run heals whatever ended it.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from deploy.drills.drill import LOCAL, SECURE
from deploy.drills.waiting import eventually
from deploy.local.kafka.cluster import KafkaNotReadyError
from deploy.local.kafka.probe import BrokerNotAnsweringError, ClusterView
from deploy.local.process import state_of
from deploy.local.supervisor.component import Component
from deploy.local.supervisor.stack import Stack, StackNotReadyError
from shared.kafka.admin.quorum import describe_quorum
from shared.kafka.client.access import Access
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.requests import Request

HEALTHY_S: Final = 90.0
POLL_S: Final = 0.1
_ELECT_PREFERRED: Final = Request("ElectLeaders", 2, {"ElectionType": 0, "TopicPartitions": None, "TimeoutMs": 30_000})


class NoSuchRoleError(LookupError):
    """No broker has the role now, such as a partition without a leader."""


class NotOnThisTargetError(Exception):
    """The drill needs what this target does not have, such as a process on this machine."""


class Target(ABC):
    """A cluster with its services. Its components are killed, taken away, paused and brought back by name.

    Attributes:
        name: one of TARGETS.
        access: how a client reaches the brokers as the operator.
        brokers: names of their components.
        directory: where the target keeps its data and logs, or a drill's files.
        effects_directory: of the logs that the `file:` destinations of effects write.
        taken: components that a fault has taken away or paused, by name.
        healthy_s: seconds that it may take to become healthy.
    """

    name: str
    access: Access
    brokers: Sequence[str]
    directory: Path
    effects_directory: Path

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self.healthy_s = HEALTHY_S

    @property
    def bootstrap_servers(self) -> str:
        """Return all brokers as `host:port,...`."""
        return self.access.bootstrap_servers

    @property
    def stack(self) -> Stack:
        """Return the local stack; raises NotOnThisTargetError where there is none."""
        raise NotOnThisTargetError(f"{self.name} has no processes on this machine")

    def component(self, name: str) -> Component:
        """Return a process of this machine: a service, an observer, `broker-<n>`, `redis` or `prometheus`.

        Raises:
            NoSuchRoleError: nothing is named so.
            NotOnThisTargetError: components are no processes of this machine.
        """
        for component in self.stack.components:
            if component.name == name:
                return component
        raise NoSuchRoleError(f"nothing on this target is named {name}")

    # Components. What is done to one returns the evidence; an empty text if it did not run

    @abstractmethod
    def kill(self, name: str) -> str:
        """Kill a component with SIGKILL; it is started again."""

    @abstractmethod
    def take_away(self, name: str) -> str:
        """Kill a component with SIGKILL and prevent its restart."""

    @abstractmethod
    def stop(self, name: str) -> str:
        """Stop a component with SIGTERM, wait until it has ended, and prevent its restart."""

    @abstractmethod
    def pause(self, name: str) -> str:
        """Stop a component's processes without ending them."""

    @abstractmethod
    def bring_back(self, name: str) -> None:
        """Start or resume a component, and keep it running."""

    @abstractmethod
    def is_ready(self, name: str) -> bool:
        """Whether a component is ready and, after a kill, started again."""

    @abstractmethod
    async def settle(self) -> None:
        """Wait until every component is ready, and every replica in sync; raises as `heal`."""

    @abstractmethod
    def views(self) -> Iterator[ClusterView]:
        """Yield the cluster as each broker that answers sees it."""

    async def ready(self, name: str, within_s: float = HEALTHY_S) -> float:
        """Wait until a component is ready.

        Returns:
            The seconds waited.

        Raises:
            TimeoutError: it is not ready within `within_s` seconds.
        """

        async def reached() -> bool:
            return await asyncio.to_thread(self.is_ready, name)

        return await eventually(reached, f"{name} is ready", within_s, every_s=POLL_S)

    async def heal(self) -> None:
        """Bring back everything that was taken away, and wait until the target is as it was started.

        Raises:
            StackNotReadyError, KafkaNotReadyError: not so within `healthy_s` seconds, or the first component that
                cannot be brought back. The others are brought back all the same.
            KafkaUnavailableError, NoSuchRoleError: the brokers do not elect the preferred leaders, or none answers.
        """
        errors = []
        for name in sorted(self.taken):
            try:
                await asyncio.to_thread(self.bring_back, name)
            except (StackNotReadyError, KafkaNotReadyError) as error:
                errors.append(error)
        if errors:
            raise errors[0]
        await self.settle()
        await self._elect_preferred_leaders()

    # Brokers by role: each returns a component's name

    async def leader(self, topic: str, partition: int = 0) -> str:
        """Return the broker that leads a partition."""
        for seen in self.view().partitions:
            if (seen.topic, seen.partition) == (topic, partition) and seen.leader >= 0:
                return broker_name(seen.leader)
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
        return broker_name(quorum["LeaderId"])

    async def other_brokers(self, name: str) -> list[str]:
        """Return the brokers without this one."""
        return [broker for broker in self.brokers if broker != name]

    def view(self) -> ClusterView:
        """Return the cluster as the first broker that answers sees it.

        Raises:
            NoSuchRoleError: no broker answers.
        """
        view = next(self.views(), None)
        if view is None:
            raise NoSuchRoleError("no broker answers")
        return view

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
            return broker_name(
                await cluster.retry(
                    lambda: cluster.coordinator(name, transactional=transactional), f"{name} has no coordinator"
                )
            )


class LocalTarget(Target):
    """The local stack, plain or secure: its components are processes of this machine.

    Args:
        stack: started, with or without services.
    """

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self._stack = stack
        self.name = LOCAL if stack.access.tls is None else SECURE
        self.access = stack.access
        self.brokers = [broker_name(node.node_id) for node in stack.kafka.nodes]
        self.directory = stack.directory
        self.effects_directory = stack.effects_directory

    @property
    def stack(self) -> Stack:
        """Return the local stack."""
        return self._stack

    def kill(self, name: str) -> str:
        """Kill a component with SIGKILL; the supervisor starts it again."""
        component = self.component(name)
        pid = component.process.pid
        component.kill()
        return _killed(pid)

    def take_away(self, name: str) -> str:
        """Kill a component with SIGKILL and prevent its restart."""
        component = self.component(name)
        pid = component.process.pid
        self.taken.add(name)
        component.release()
        component.kill()
        return _killed(pid)

    def stop(self, name: str) -> str:
        """Stop a component with SIGTERM, wait until it has ended, and prevent its restart."""
        component = self.component(name)
        pid = component.process.pid
        self.taken.add(name)
        component.release()
        component.process.terminate()
        return "" if pid is None else f"process {pid} ended with {component.process.returncode}"

    def pause(self, name: str) -> str:
        """Stop a component's process by SIGSTOP."""
        component = self.component(name)
        self.taken.add(name)
        component.pause()
        pid = component.process.pid
        return f"process {pid} is stopped" if pid is not None and state_of(pid) == "T" else ""

    def bring_back(self, name: str) -> None:
        """Start or resume a component, and keep it running."""
        component = self.component(name)
        if component.process.running:
            component.resume()
        else:
            component.start()
        self.taken.discard(name)

    def is_ready(self, name: str) -> bool:
        """Whether a component is ready."""
        return self.component(name).ready

    async def settle(self) -> None:
        """Wait until every component is ready, and every replica in sync; raises as `heal`."""
        await asyncio.to_thread(self._stack.wait_ready, self.healthy_s)
        await asyncio.to_thread(self._stack.kafka.wait_in_sync, self.healthy_s)

    def views(self) -> Iterator[ClusterView]:
        """Yield the cluster as each broker that answers sees it."""
        for node in self._stack.kafka.nodes:
            if broker_name(node.node_id) not in self.taken:
                with suppress(BrokerNotAnsweringError):
                    yield self._stack.kafka.view(node.node_id)


def node_id(broker: str) -> int:
    """Return the id of a broker by its component's name."""
    return int(broker.removeprefix("broker-"))


def broker_name(number: int) -> str:
    """Return the name of a broker's component by its id."""
    return f"broker-{number}"


def _killed(pid: int | None) -> str:
    return "" if pid is None else f"process {pid} ended by signal 9"
