"""Requests to one group of the newer protocol (KIP-848), as its one member sends them, and others that are refused."""

from typing import Final

from shared.kafka.protocol.codec import Values
from tests.partitions import PARTITIONS
from tests.simulation.group_requests import GroupRequests
from tests.simulation.symbols import VERSIONS, Consumer, Fault, Given, Member, Session, Step, TopicId

_REBALANCE_MS: Final = 60_000
_JOIN, _LEAVE = 0, -1
_UNKNOWN: Final = "unknown"


class ConsumerRequests(GroupRequests):
    """A sequence as it is made, with its groups of both protocols.

    The group of the newer protocol is never joined by a classic member while it has a member, and the other way round:
    mixed groups are not modelled.
    """

    def __init__(self, seed: int, prefix: str, *, faults: bool) -> None:
        super().__init__(seed, prefix, faults=faults)
        self._consumer = Consumer(f"{prefix}-consumers", f"{prefix}-member")

    def _any_group(self) -> str:
        return self._consumer.group if self._likely(0.4) else super()._any_group()

    def _of_member(self) -> Values:
        if not self._likely(0.5):
            return super()._of_member()
        consumer = self._consumer
        if not consumer.beats and self._likely(0.8):
            self._join_again()
        if not consumer.beats or self._likely(0.1):
            return {"GroupId": consumer.group, "GenerationId": 1, "MemberId": _UNKNOWN}
        return {"GroupId": consumer.group, "GenerationId": self._epoch(), "MemberId": consumer.member_id}

    def _epoch(self) -> Given:
        """The newest epoch, or an earlier one, or one near it."""
        beats = self._consumer.beats
        step, copy = self._chance.choice(beats) if self._likely(0.3) else beats[-1]
        more = self._chance.choice((-1, 1)) if self._likely(0.15) else 0
        return Given(step, "MemberEpoch", copy, more)

    def _owned(self, topics: tuple[str, ...]) -> list[Values]:
        """Partitions of topics: mostly all, which the one member is assigned."""
        every = list(range(PARTITIONS))
        numbers = self._chance.sample(every, self._chance.randrange(PARTITIONS)) if self._likely(0.2) else every
        return [{"TopicId": TopicId(topic), "Partitions": numbers} for topic in topics]

    def _subscription(self) -> tuple[str, ...]:
        return self._chance.choice((self._topics, self._topics, self._topics[:1], self._topics[1:]))

    def _heartbeat(self, values: Values) -> None:
        """Send a heartbeat that gives an epoch."""
        step = len(self.steps)
        fault = self._ask("ConsumerGroupHeartbeat", values)
        if fault is not Fault.LOST:
            self._consumer.beats.append(Session(step))

    def _full(self, epoch: Given | int, topics: tuple[str, ...], owned: list[Values]) -> Values:
        return {
            "GroupId": self._consumer.group,
            "MemberId": self._consumer.member_id,
            "MemberEpoch": epoch,
            "RebalanceTimeoutMs": _REBALANCE_MS,
            "SubscribedTopicNames": list(topics),
            "TopicPartitions": owned,
        }

    def _join_again(self) -> None:
        self._consumer.topics = self._subscription()
        values = self._full(_JOIN, self._consumer.topics, [])
        if self._likely(0.1):
            wrong = ({"TopicPartitions": None}, {"RebalanceTimeoutMs": -1}, {"ServerAssignor": "sticky"})
            self._ask("ConsumerGroupHeartbeat", values | self._chance.choice(wrong))
        self._heartbeat(values)

    def beat(self) -> None:
        """Mostly of the member: all that it has, or only that it lives; now and then with another subscription."""
        consumer = self._consumer
        kind = self._chance.random()
        if kind < 0.05:
            self._ask("ConsumerGroupHeartbeat", self._full(1, self._topics, []) | {"MemberId": _UNKNOWN})
            return
        if not consumer.beats or kind < 0.15:
            self._join_again()
            return
        if kind < 0.3:
            values = {"GroupId": consumer.group, "MemberId": consumer.member_id, "MemberEpoch": self._epoch()}
            self._ask("ConsumerGroupHeartbeat", values)
            return
        before = consumer.topics
        if kind < 0.55:
            consumer.topics = self._subscription()
        owned = self._owned(self._chance.choice((before, before, consumer.topics)))
        epoch = self._epoch()
        if epoch.more or epoch.step != consumer.beats[-1].step:
            self._ask("ConsumerGroupHeartbeat", self._full(epoch, consumer.topics, owned))
            return
        self._heartbeat(self._full(epoch, consumer.topics, owned))

    def leave_consumers(self) -> None:
        member_id = self._consumer.member_id if self._likely(0.8) else _UNKNOWN
        values = {"GroupId": self._consumer.group, "MemberId": member_id, "MemberEpoch": _LEAVE}
        self._ask("ConsumerGroupHeartbeat", values)
        if member_id != _UNKNOWN:
            self._consumer.beats.clear()

    def leave(self) -> None:
        super().leave()
        if self.steps[-1].values["MemberId"] == self._consumer.member_id:
            self._consumer.beats.clear()

    def join_consumers(self) -> None:
        """Let a classic member be given an id in the empty group, which becomes a classic one."""
        if self._consumer.beats:
            return
        # A request that was lost may have brought the member back
        values = {"GroupId": self._consumer.group, "MemberId": self._consumer.member_id, "MemberEpoch": _LEAVE}
        self.steps.append(Step("ConsumerGroupHeartbeat", 1, values))
        self._join(Member(self._consumer.group), "")

    def describe_consumers(self) -> None:
        groups = [self._consumer.group, self._members[0].group, f"{self._consumer.group}-unknown"]
        version = self._chance.choice(VERSIONS["ConsumerGroupDescribe"])
        self.steps.append(Step("ConsumerGroupDescribe", version, {"GroupIds": groups}))
