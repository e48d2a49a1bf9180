"""Makes the faults of a history happen, and ends them all."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from shared.kafka.admin.transaction_state import STATE_TOPIC
from tests.simulation.cluster import Partition
from tests.simulation.errors import MESSAGE_TOO_LARGE
from tests.simulation.faults import (
    AnyFault,
    Cut,
    Delay,
    HoldMarkers,
    HoldReplication,
    Join,
    Kill,
    KillBroker,
    Leave,
    Lose,
    Move,
    Orphan,
    Pause,
    Refuse,
    Tear,
    Troubles,
    Twin,
    Upon,
)
from tests.simulation.instances import Instance
from tests.simulation.world import ADDRESSES, SERVERS, World

DECIDED_S: Final = 0.5
"""How long a coordinator decides without its followers, seconds."""
DOWN_S: Final = 1.0
"""How long it is down, and then alone, seconds: less than its session, so no other coordinator is elected."""
Disturbance = Coroutine[Any, Any, None]

FAULT: Final = "fault"
"""Who notes faults."""


class Disturber:
    """The services' instances, the cluster and the network, as faults find them.

    Args:
        instances: how many each service begins with.
        partitions: of each topic.
        begin: has work done that the history does not wait for.
    """

    def __init__(
        self, world: World, instances: Mapping[str, int], partitions: int, begin: Callable[[Disturbance], None]
    ) -> None:
        self._world = world
        self._begin = begin
        self._partitions = partitions
        self._loop = world.network.loop
        self._troubles = world.network.trouble = Troubles()
        self._instances: dict[str, Instance] = {}
        for service, count in instances.items():
            for number in range(count):
                self._new(service, number, f"{service}-{number}")

    def start(self) -> None:
        """Start all instances."""
        for instance in self._instances.values():
            instance.start()

    def stop(self) -> None:
        """Kill all instances, for good."""
        for instance in self._instances.values():
            instance.wanted = False
            instance.kill()

    def _new(self, service: str, number: int, name: str) -> Instance:
        made = self._instances[name] = Instance(self._loop, service, number, name, SERVERS, self._partitions)
        return made

    async def disturb(self, fault: AnyFault) -> None:
        """Inject a fault, and end it when it has lasted for as long as it should."""
        self._world.cluster.note(FAULT, repr(fault), state=False)
        match fault:
            case Kill(who=who, calls=calls, for_s=for_s):
                self._instances[who].kill_after(calls, lambda: self._loop.call_later(for_s, self._instances[who].start))
            case Pause(who=who, for_s=for_s):
                process = self._instances[who].process
                if process is not None:
                    process.pause()
                    self._loop.call_later(for_s, process.resume)
            case Leave(who=who, for_s=for_s):
                self._instances[who].leave()
                await asyncio.sleep(for_s)
                self._return(self._instances[who])
            case Join(service=service):
                number = sum(one.service == service for one in self._instances.values())
                self._new(service, number, f"{service}-{number}").start()
            case Twin(who=who, for_s=for_s):
                name = f"{who}-twin"
                while name in self._instances:
                    name += "-twin"
                twin = self._new(self._instances[who].service, self._instances[who].number, name)
                twin.start()
                await asyncio.sleep(for_s)
                twin.wanted = False
                twin.kill()
            case _:
                await self._disturb_cluster(fault)

    def _return(self, instance: Instance) -> None:
        instance.wanted = True
        instance.start()

    async def _disturb_cluster(self, fault: AnyFault) -> None:
        world = self._world
        match fault:
            case KillBroker(node=node, for_s=for_s):
                if len(world.cluster.alive) == len(ADDRESSES):  # one at a time: two of three must be in sync
                    world.kill(node)
                    await asyncio.sleep(for_s)
                    world.start(node)
            case Cut(one=one, other=other, for_s=for_s):
                pair = frozenset((one, other))
                world.network.cut.add(pair)
                await asyncio.sleep(for_s)
                world.network.cut.discard(pair)
            case Lose() | Delay() | Orphan():
                self._troubles.add(fault)
            case Upon(then=then):
                self._troubles.wait(fault, lambda: self._begin(self.disturb(then)))
            case _:
                await self._disturb_partition(fault)

    async def _disturb_partition(self, fault: AnyFault) -> None:
        world = self._world
        match fault:
            case Move(topic=topic, partition=number, turn=turn):
                partition = world.cluster.partitions[topic, number]
                able = sorted(partition.in_sync & world.cluster.alive)
                if able:
                    world.cluster.move(partition, able[turn % len(able)])
            case Refuse(topic=topic, partition=number, count=count):
                for partition in world.cluster.topic(topic):
                    if number in {None, partition.target[1]}:
                        partition.refuses += count * [MESSAGE_TOO_LARGE]
            case HoldMarkers(topic=topic, partition=number, for_s=for_s):
                partition = world.cluster.partitions[topic, number]
                partition.takes_markers = False
                await asyncio.sleep(for_s)
                partition.takes_markers = True
            case HoldReplication(topic=topic, partition=number, for_s=for_s):
                world.cluster.hold(world.cluster.partitions[topic, number])
                await asyncio.sleep(for_s)
                world.cluster.release(world.cluster.partitions[topic, number])
            case Tear(partition=number, turn=turn):
                await self._tear(world.cluster.partitions[STATE_TOPIC, number], turn)
            case _:
                raise TypeError(f"no such fault: {fault}")

    async def _tear(self, state: Partition, turn: int) -> None:
        """Kill a coordinator whose decisions are not replicated, and start it before it is succeeded."""
        world, former = self._world, state.leader
        others = sorted(world.cluster.alive & state.in_sync - {former})
        if len(world.cluster.alive) < len(ADDRESSES) or not others:
            return
        unreached = others[turn % len(others)]
        pair = frozenset((f"broker-{former}", f"broker-{unreached}"))
        world.cluster.hold(state)
        await asyncio.sleep(DECIDED_S)
        world.kill(former)
        await asyncio.sleep(DOWN_S)
        world.network.cut.add(pair)
        world.start(former)
        await asyncio.sleep(DOWN_S)
        if unreached in world.cluster.alive & state.in_sync:
            world.cluster.move(state, unreached)
        world.cluster.release(state)
        world.network.cut.discard(pair)

    def heal(self) -> None:
        """End every fault, and start what does not run. A twin does not come back."""
        world = self._world
        world.cluster.note(FAULT, "all are healed", state=False)
        self._troubles.clear()
        world.network.cut.clear()
        for node in ADDRESSES:
            if node not in world.cluster.alive:
                world.start(node)
        for partition in world.cluster.partitions.values():
            partition.takes_markers, partition.refuses = True, []
            world.cluster.release(partition)
        for name, instance in self._instances.items():
            if name.endswith("-twin"):
                instance.wanted = False
                instance.kill()
                continue
            if instance.process is not None:
                instance.process.resume()
            if not instance.wanted:
                # Also one that was stopped while it was paused: it ends now, and is started again
                self._return(instance)
