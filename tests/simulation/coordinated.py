"""The groups of the cluster, of both protocols, as one broker coordinates those whose partition it leads.

An empty group changes its protocol when a member of the other one joins (KIP-848). A group with members does not, as
with group.consumer.migration.policy=disabled.
"""

from typing import Final, NamedTuple

from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, partition_of
from tests.simulation.broker import Broker
from tests.simulation.cluster import Partition
from tests.simulation.consumer_groups import ConsumerGroup
from tests.simulation.errors import (
    GROUP_ID_NOT_FOUND,
    INCONSISTENT_GROUP_PROTOCOL,
    NOT_COORDINATOR,
    UNKNOWN_MEMBER_ID,
    RefusedError,
)
from tests.simulation.groups import Group, State

SESSION_S: Final = 6.0
HEARTBEAT_S: Final = 1.0

AnyGroup = Group | ConsumerGroup


class GroupSettings(NamedTuple):
    """The brokers' settings of groups.

    Attributes:
        first_wait_s: group.initial.rebalance.delay.ms, in seconds: of classic groups.
        session_s: group.consumer.session.timeout.ms, in seconds: of the newer protocol.
        heartbeat_s: group.consumer.heartbeat.interval.ms, in seconds, likewise.
    """

    first_wait_s: float = 0.0
    session_s: float = SESSION_S
    heartbeat_s: float = HEARTBEAT_S


class Groups:
    """The groups that a broker coordinates.

    Args:
        by_name: all groups of the cluster, shared by its brokers.
    """

    def __init__(self, broker: Broker, by_name: dict[str, AnyGroup], settings: GroupSettings) -> None:
        self._broker = broker
        self._cluster = broker.cluster
        self._by_name = by_name
        self.settings = settings
        self._cluster.on_leader.append(self._led_by)

    def _led_by(self, partition: Partition) -> None:
        topic, number = partition.target
        if topic == OFFSETS_TOPIC and partition.leader == self._broker.node:
            for group in self._by_name.values():
                if self._number(group.name) == number:
                    group.moved()

    def _number(self, name: str) -> int:
        return partition_of(name, len(self._cluster.topic(OFFSETS_TOPIC)))

    def partition(self, name: str) -> Partition:
        """The partition of a group's offsets; raises RefusedError where another broker leads it."""
        partition = self._cluster.led((OFFSETS_TOPIC, self._number(name)), self._broker.node)
        if partition is None:
            raise RefusedError(NOT_COORDINATOR)
        return partition

    def find(self, name: str) -> AnyGroup | None:
        """A group of either protocol, or None; raises RefusedError where another broker coordinates it."""
        self.partition(name)
        return self._by_name.get(name)

    def names(self) -> list[str]:
        """The groups that this broker coordinates."""
        led = {
            p.target[1] for p in self._cluster.topic(OFFSETS_TOPIC) if self._cluster.led(p.target, self._broker.node)
        }
        return [name for name in self._by_name if self._number(name) in led]

    def classic(self, name: str) -> Group:
        """A classic group, or an empty one that only the caller sees.

        Raises:
            RefusedError: another broker coordinates it, or it has the newer protocol, so that no member is known.
        """
        known = self.find(name)
        if isinstance(known, ConsumerGroup):
            raise RefusedError(UNKNOWN_MEMBER_ID)
        return known or Group(name, self.settings.first_wait_s)

    def joined(self, name: str, *, is_new_member: bool) -> Group:
        """A classic group that a member joins; made by a new member.

        Raises:
            RefusedError: another broker coordinates it, or it has members of the newer protocol.
        """
        known = self.find(name)
        if isinstance(known, ConsumerGroup):
            if known.members:
                raise RefusedError(INCONSISTENT_GROUP_PROTOCOL)
            known = None
        group = known or Group(name, self.settings.first_wait_s)
        if is_new_member:
            self._by_name[name] = group
        return group

    def consumer(self, name: str, *, is_joined: bool) -> ConsumerGroup:
        """A group of the newer protocol; made by a member that joins.

        Raises:
            RefusedError: another broker coordinates it, there is none, or it has members of the classic protocol.
        """
        known = self.find(name)
        if isinstance(known, ConsumerGroup):
            return known
        if not is_joined or (known is not None and known.state is not State.EMPTY):
            raise RefusedError(GROUP_ID_NOT_FOUND)
        made = ConsumerGroup(name, self._size, self.settings.session_s)
        self._by_name[name] = made
        return made

    def _size(self, topic: str) -> int:
        return len(self._cluster.topic(topic))

    def make_simple(self, name: str) -> None:
        """Make a group that only commits offsets, if there is none."""
        self._by_name.setdefault(name, Group(name, self.settings.first_wait_s))
