"""A consumer group as its coordinator has it: members, generations and rebalances (classic protocol, KIP-345, KIP-394).

It answers as Kafka 4.3's group coordinator does. A rebalance waits for all known members until the longest of their
rebalance timeouts has passed. That of an empty group waits for `group.initial.rebalance.delay.ms` in any case.

Invariant: each member of a generation gets its assignment from the leader of that generation.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tests.simulation.errors import (
    FENCED_INSTANCE_ID,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    MEMBER_ID_REQUIRED,
    NONE,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)
from tests.simulation.members import Joined, Member, Synced, answer, waits


class State(Enum):
    """A group's, by the name that DescribeGroups gives it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class Group:
    """One group, and the requests that wait in it.

    Attributes:
        pending: member ids that were given out and have not joined.
        leader: member id; empty without one.
        first_wait_s: how long the first rebalance of an empty group waits for more members.
    """

    name: str
    first_wait_s: float = 0.0
    state: State = State.EMPTY
    generation: int = 0
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    _instances: dict[str, str] = field(default_factory=dict)
    _numbers: int = 0
    _rebalance: asyncio.TimerHandle | None = None
    _gathers: bool = False

    async def join(
        self,
        member_id: str,
        instance: str | None,
        client: str,
        protocols: Mapping[str, bytes],
        *,
        session_s: float,
        rebalance_s: float,
    ) -> Joined:
        """JoinGroup from version 4 on: a dynamic member without an id is given one first."""
        if not protocols or (self.members and not self._common(protocols)):
            return Joined(INCONSISTENT_GROUP_PROTOCOL, member_id)
        new = not member_id
        if new:
            self._numbers += 1
            member_id = f"{instance or client}-{self.name}-{self._numbers}"
            if instance is None:
                self.pending.add(member_id)
                return Joined(MEMBER_ID_REQUIRED, member_id)
        refused = NONE if new or member_id in self.pending else self._unknown(member_id, instance)
        if refused != NONE:
            return Joined(refused, member_id)
        self.pending.discard(member_id)
        leader = self.leader
        replaced = new and instance is not None and self._replace(instance, member_id)
        member = self.members.get(member_id)
        if member is None:
            member = self._add(Member(member_id, instance, session_s, rebalance_s, dict(protocols)))
            self._prepare()
        else:
            changed = member.protocols != dict(protocols)
            member.protocols, member.session_s, member.rebalance_s = dict(protocols), session_s, rebalance_s
            self.beat(member)
            if replaced and self.state is State.STABLE and self._elected() == self.protocol:
                # Under the leader's old id: a leader that joins again does not assign (before version 9)
                return self._joined(member)._replace(leader=leader, members=())
            if not replaced and not changed and self._goes_on(member):
                return self._joined(member)
            self._prepare()
        if member.joining is None or member.joining.done():
            member.joining = asyncio.get_running_loop().create_future()
        joining = member.joining
        self._maybe_complete()
        return await asyncio.shield(joining)  # a second request waits for the same answer

    def _goes_on(self, member: Member) -> bool:
        """Whether the generation outlives that this member joins again; a leader that does wants another one."""
        return self.state is State.COMPLETING or (self.state is State.STABLE and member.member_id != self.leader)

    def _common(self, protocols: Mapping[str, bytes]) -> set[str]:
        return set(protocols).intersection(*(member.protocols for member in self.members.values()))

    def _unknown(self, member_id: str, instance: str | None) -> int:
        if instance is not None:
            owner = self._instances.get(instance)
            if owner is None:
                return UNKNOWN_MEMBER_ID
            if owner != member_id:
                return FENCED_INSTANCE_ID
        return NONE if member_id in self.members else UNKNOWN_MEMBER_ID

    def _add(self, member: Member) -> Member:
        self.members[member.member_id] = member
        if member.instance is not None:
            self._instances[member.instance] = member.member_id
        if not self.leader:
            self.leader = member.member_id
        self.beat(member)
        return member

    def _replace(self, instance: str, member_id: str) -> bool:
        """Give a static member that joins again a new id; requests under the old one are fenced (KIP-345)."""
        old = self._instances.get(instance)
        if old is None:
            return False
        member = self.members.pop(old)
        member.dismiss(FENCED_INSTANCE_ID)
        member.member_id = member_id
        self.members[member_id] = member
        self._instances[instance] = member_id
        if self.leader == old:
            self.leader = member_id
        return True

    def _prepare(self) -> None:
        if self.state is State.PREPARING:
            return
        loop = asyncio.get_running_loop()
        for member in self.members.values():
            if self.state is State.COMPLETING:
                member.assignment = b""
            answer(member.syncing, Synced(REBALANCE_IN_PROGRESS))
        waits_s = max((member.rebalance_s for member in self.members.values()), default=0.0)
        self._gathers = self.state is State.EMPTY and self.first_wait_s > 0
        if self._gathers:
            waits_s = self.first_wait_s
        self.state = State.PREPARING
        self._rebalance = loop.call_later(waits_s, self._complete)

    def _maybe_complete(self) -> None:
        if self._gathers:
            return
        if self.state is State.PREPARING and all(waits(member.joining) for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Begin the next generation, without dynamic members that did not rejoin in time."""
        self._gathers = False
        if self._rebalance is not None:
            self._rebalance.cancel()
        joined = [one for one in self.members.values() if waits(one.joining)]
        for member in [one for one in self.members.values() if one not in joined and one.instance is None]:
            self._forget(member)
        if not joined and self.members:  # static members only, and none is back: the group waits for them
            self.state = State.STABLE
            self._prepare()
            return
        self.generation += 1
        if not self.members:
            self.state, self.protocol = State.EMPTY, ""
            return
        if self.members[self.leader] not in joined:
            self.leader = joined[0].member_id
        self.protocol = self._elected()
        self.state = State.COMPLETING
        for member in joined:
            answer(member.joining, self._joined(member))
            self.beat(member)

    def _elected(self) -> str:
        """The assignor that all have, by the leader's preference."""
        common = self._common(self.members[self.leader].protocols)
        return next(name for name in self.members[self.leader].protocols if name in common)

    def _joined(self, member: Member) -> Joined:
        leads = member.member_id == self.leader
        all_members = [(one.member_id, one.instance, one.protocols[self.protocol]) for one in self.members.values()]
        members = all_members if leads else []
        return Joined(NONE, member.member_id, self.generation, self.protocol, self.leader, members)

    async def sync(
        self, member_id: str, instance: str | None, generation: int, assignments: Mapping[str, bytes]
    ) -> Synced:
        """SyncGroup: the leader brings all assignments, and the others wait for theirs."""
        refused = self.check(member_id, instance, generation)
        if refused != NONE:
            return Synced(refused)
        member = self.members[member_id]
        if self.state is State.PREPARING:
            return Synced(REBALANCE_IN_PROGRESS)
        self.beat(member)
        if self.state is State.STABLE:
            return Synced(NONE, member.assignment)
        member.syncing = syncing = asyncio.get_running_loop().create_future()
        if member_id == self.leader:
            self.state = State.STABLE
            for one in self.members.values():
                one.assignment = assignments.get(one.member_id, b"")
                answer(one.syncing, Synced(NONE, one.assignment))
        return await asyncio.shield(syncing)

    def check(self, member_id: str, instance: str | None, generation: int) -> int:
        """Whether a request comes from a member of this generation."""
        refused = self._unknown(member_id, instance)
        if refused != NONE:
            return refused
        return NONE if generation == self.generation else ILLEGAL_GENERATION

    def heartbeat(self, member_id: str, instance: str | None, generation: int) -> int:
        """Heartbeat; returns the error code."""
        refused = self.check(member_id, instance, generation)
        if refused != NONE:
            return refused
        self.beat(self.members[member_id])
        return REBALANCE_IN_PROGRESS if self.state is State.PREPARING else NONE

    def beat(self, member: Member) -> None:
        """Begin a member's session again."""
        if member.expiry is not None:
            member.expiry.cancel()
        member.expiry = asyncio.get_running_loop().call_later(member.session_s, self._expire, member)

    def _expire(self, member: Member) -> None:
        if waits(member.joining) or waits(member.syncing):
            self.beat(member)  # it waits for the group, not the group for it
        elif self.members.get(member.member_id) is member:
            self.leave(member.member_id)

    def leave(self, member_id: str) -> int:
        """LeaveGroup, and the end of a session; returns the error code."""
        member = self.members.get(member_id)
        if member is None:
            known = member_id in self.pending
            self.pending.discard(member_id)
            return NONE if known else UNKNOWN_MEMBER_ID
        self._forget(member)
        if self.state in {State.STABLE, State.COMPLETING}:
            self._prepare()
        self._maybe_complete()
        return NONE

    def moved(self) -> None:
        """Go on at another coordinator: what waits is refused there, and all sessions begin again."""
        for member in self.members.values():
            member.dismiss(NOT_COORDINATOR)
            self.beat(member)

    def _forget(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance is not None:
            del self._instances[member.instance]
        if member.expiry is not None:
            member.expiry.cancel()
        member.dismiss(UNKNOWN_MEMBER_ID)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), "")
