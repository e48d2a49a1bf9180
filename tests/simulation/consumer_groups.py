"""A group of the newer consumer protocol as its coordinator has it: epochs, and assignments that move (KIP-848).

It answers as Kafka 4.3's group coordinator does with group.consumer.assignment.interval.ms=0. Each change of members or
subscriptions raises the group's epoch, and the next heartbeat of any member brings a new target assignment. Each member
goes to it by its own heartbeats: it first gives up what it must, and then gets what other members have given up.

Invariant: at any time a partition is assigned to one member, or is to be revoked from one member, but never to two.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from tests.simulation.assignor import Target, uniform
from tests.simulation.errors import FENCED_MEMBER_EPOCH, NONE, STALE_MEMBER_EPOCH, UNKNOWN_MEMBER_ID

JOIN: Final = 0
"""The epoch in a heartbeat of a member that joins, or joins again."""
LEAVE: Final = -1
"""The epoch in a heartbeat of a member that leaves."""
NO_EPOCH: Final = -1


class State(Enum):
    """A group's, by the name that ConsumerGroupDescribe gives it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class Progress(Enum):
    """A member's way to its target assignment."""

    STABLE = "has all of it"
    UNREVOKED = "has to give up partitions first"
    UNRELEASED = "waits for partitions that other members have"


class Beat(NamedTuple):
    """The answer to a heartbeat.

    Attributes:
        assigned: None where it is left out.
    """

    code: int
    epoch: int = 0
    assigned: frozenset[Target] | None = None


@dataclass(slots=True)
class ConsumerMember:
    """A member of the group.

    Attributes:
        epoch: of the assignment that it was last given.
        previous: the epoch before, while the answer that gave the present one may be lost; -1 before any.
        assigned: its partitions, each with the epoch since which it has it.
        revoking: what it has to give up, likewise.
        expiry: the end of its session.
        deadline: the end of its rebalance timeout, while it has to give something up.
    """

    member_id: str
    client: str = ""
    rebalance_s: float = 0.0
    topics: frozenset[str] = frozenset()
    epoch: int = 0
    previous: int = NO_EPOCH
    progress: Progress = Progress.STABLE
    assigned: dict[Target, int] = field(default_factory=dict)
    revoking: dict[Target, int] = field(default_factory=dict)
    expiry: asyncio.TimerHandle | None = None
    deadline: asyncio.TimerHandle | None = None

    def holds(self, target: Target) -> bool:
        """Whether no other member may have this partition yet."""
        return target in self.assigned or target in self.revoking

    def fences(self, epoch: int, owned: Collection[Target] | None) -> bool:
        """Whether a heartbeat of this epoch, by a member that owns these partitions, is refused."""
        if epoch in {JOIN, self.epoch}:
            return False
        return epoch != self.previous or owned is None or not self.assigned.keys() >= set(owned)

    def cancel_timers(self) -> None:
        """Let neither its session nor its rebalance timeout end."""
        for timer in (self.expiry, self.deadline):
            if timer is not None:
                timer.cancel()


@dataclass(slots=True)
class ConsumerGroup:
    """One group.

    Attributes:
        sizes: the partitions of a topic; 0 for one that does not exist.
        session_s: after which a member without heartbeats is removed.
        epoch: raised by each change of members, subscriptions or their topics.
        assignment_epoch: the group's epoch that the target assignment is for.
        target: by member id.
    """

    name: str
    sizes: Callable[[str], int]
    session_s: float
    epoch: int = 1
    assignment_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    target: dict[str, frozenset[Target]] = field(default_factory=dict)
    _topics: dict[str, int] = field(default_factory=dict)

    @property
    def state(self) -> State:
        if not self.members:
            return State.EMPTY
        if self.epoch > self.assignment_epoch:
            return State.ASSIGNING
        return State.STABLE if all(map(self._is_reconciled, self.members.values())) else State.RECONCILING

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        *,
        client: str = "",
        rebalance_s: float | None = None,
        topics: Iterable[str] | None = None,
        owned: Collection[Target] | None = None,
    ) -> Beat:
        """Take a heartbeat; what is None did not change since the last one.

        Args:
            owned: the partitions that the member has.
        """
        member = self.members.get(member_id)
        if member is None:
            if epoch != JOIN:
                return Beat(UNKNOWN_MEMBER_ID)
            member = ConsumerMember(member_id)
        elif member.fences(epoch, owned):
            return Beat(FENCED_MEMBER_EPOCH)
        self.members[member_id] = member
        member.client = client
        member.rebalance_s = member.rebalance_s if rebalance_s is None else rebalance_s
        subscribed = member.topics if topics is None else frozenset(topics)
        resubscribed, member.topics = subscribed != member.topics, subscribed
        self._raise_epoch(certainly=resubscribed)
        if self.assignment_epoch < self.epoch:
            self._assign()
        before = dict(member.assigned)
        self._reconcile(member, owned, resubscribed=resubscribed)
        self._begin_session(member)
        is_full = rebalance_s is not None and topics is not None and owned is not None
        given = epoch == JOIN or is_full or member.assigned != before
        return Beat(NONE, member.epoch, frozenset(member.assigned) if given else None)

    def _raise_epoch(self, *, certainly: bool) -> None:
        subscribed = set().union(*(member.topics for member in self.members.values()))
        topics = {topic: self.sizes(topic) for topic in subscribed if self.sizes(topic)}
        if certainly or topics != self._topics:
            self.epoch += 1
        self._topics = topics

    def _assign(self) -> None:
        subscriptions = {member_id: self.members[member_id].topics for member_id in sorted(self.members)}
        assigned = uniform(subscriptions, self.target, self.sizes)
        self.target = {member_id: frozenset(targets) for member_id, targets in assigned.items()}
        self.assignment_epoch = self.epoch

    def _is_reconciled(self, member: ConsumerMember) -> bool:
        return member.progress is Progress.STABLE and member.epoch == self.assignment_epoch

    def _reconcile(self, member: ConsumerMember, owned: Collection[Target] | None, *, resubscribed: bool) -> None:
        """Take a member as far as it can go, as CurrentAssignmentBuilder does."""
        stays = member.progress is Progress.STABLE and member.epoch == self.assignment_epoch
        if member.progress is Progress.UNREVOKED:
            stays = _owns_any(owned, member.revoking)
        if not stays:
            self._go_on(member, owned)
        elif resubscribed:
            self._drop_unsubscribed(member, owned)

    def _go_on(self, member: ConsumerMember, owned: Collection[Target] | None) -> None:
        wanted = {target for target in self.target.get(member.member_id, ()) if target[0] in member.topics}
        kept = {target: since for target, since in member.assigned.items() if target in wanted}
        revoking = {target: since for target, since in member.assigned.items() if target not in wanted}
        if revoking and _owns_any(owned, revoking):
            self._move(member, Progress.UNREVOKED, member.epoch, kept, revoking)
            return
        missing = wanted - kept.keys()
        others = [other for other in self.members.values() if other is not member]
        unreleased = {target for target in missing if any(other.holds(target) for other in others)}
        kept |= dict.fromkeys(missing - unreleased, self.assignment_epoch)
        self._move(member, Progress.UNRELEASED if unreleased else Progress.STABLE, self.assignment_epoch, kept, {})

    def _drop_unsubscribed(self, member: ConsumerMember, owned: Collection[Target] | None) -> None:
        dropped = {target: since for target, since in member.assigned.items() if target[0] not in member.topics}
        if not dropped:
            return
        kept = {target: since for target, since in member.assigned.items() if target not in dropped}
        revoking = member.revoking | dropped
        if _owns_any(owned, revoking):
            self._move(member, Progress.UNREVOKED, member.epoch, kept, revoking)
        else:
            member.assigned, member.previous = kept, member.epoch

    def _move(
        self,
        member: ConsumerMember,
        progress: Progress,
        epoch: int,
        assigned: dict[Target, int],
        revoking: dict[Target, int],
    ) -> None:
        member.previous, member.epoch, member.progress = member.epoch, epoch, progress
        member.assigned, member.revoking = assigned, revoking
        self._begin_rebalance(member)

    def _begin_rebalance(self, member: ConsumerMember) -> None:
        if member.deadline is not None:
            member.deadline.cancel()
            member.deadline = None
        if member.progress is Progress.UNREVOKED:
            loop = asyncio.get_running_loop()
            member.deadline = loop.call_later(member.rebalance_s, self._remove, member)

    def _begin_session(self, member: ConsumerMember) -> None:
        if member.expiry is not None:
            member.expiry.cancel()
        member.expiry = asyncio.get_running_loop().call_later(self.session_s, self._remove, member)

    def _remove(self, member: ConsumerMember) -> None:
        member.cancel_timers()
        del self.members[member.member_id]
        self.target.pop(member.member_id, None)
        self._raise_epoch(certainly=True)

    def leave(self, member_id: str) -> int:
        """Remove a member; returns the error code."""
        member = self.members.get(member_id)
        if member is None:
            return UNKNOWN_MEMBER_ID
        self._remove(member)
        return NONE

    def moved(self) -> None:
        """Go on at another coordinator: sessions and rebalance timeouts begin again."""
        for member in self.members.values():
            self._begin_session(member)
            self._begin_rebalance(member)

    def check_commit(self, member_id: str, epoch: int, targets: Iterable[Target]) -> int:
        """The error code of offsets that a member of this epoch commits.

        A former epoch is good for partitions that the member has, or has to give up, since then or longer (KIP-1251).
        """
        member = self.members.get(member_id)
        if member is None:
            return UNKNOWN_MEMBER_ID
        if epoch == member.epoch:
            return NONE
        since = member.revoking | member.assigned
        is_stale = epoch > member.epoch or any(epoch < since.get(target, epoch + 1) for target in targets)
        return STALE_MEMBER_EPOCH if is_stale else NONE


def _owns_any(owned: Collection[Target] | None, targets: Collection[Target]) -> bool:
    """Whether a member has any of these partitions; if it does not say what it has, it has them."""
    return owned is None or any(target in targets for target in owned)
