"""A broker as coordinator of groups of the newer protocol: heartbeats, and the groups as operators see them (KIP-848).

Topics are named by id in these requests, and by name in the group.
"""

from collections.abc import Iterable
from typing import Any, Final

from shared.kafka.protocol.codec import Values
from tests.simulation import errors
from tests.simulation.assignor import Target
from tests.simulation.broker import Broker, Handler
from tests.simulation.cluster import topic_id_of
from tests.simulation.consumer_groups import JOIN, LEAVE, ConsumerGroup, ConsumerMember
from tests.simulation.coordinated import Groups
from tests.simulation.errors import RefusedError

ASSIGNOR: Final = "uniform"
_OWN_ID_SINCE: Final = 1
"""The first version of heartbeats in which a member must bring its id (KIP-1082)."""
_OF_CONSUMER: Final = 1
"""The type of members that use the newer protocol."""


class ConsumerMembership:
    """The APIs of the newer protocol."""

    def __init__(self, broker: Broker, groups: Groups) -> None:
        self._cluster = broker.cluster
        self._groups = groups
        self._numbers = 0

    def handlers(self) -> dict[str, Handler]:
        """What it serves, by API."""
        return {"ConsumerGroupHeartbeat": self.heartbeat, "ConsumerGroupDescribe": self.describe}

    async def heartbeat(self, version: int, values: Values, client: str) -> Values:
        """Join, stay and leave."""
        if not _is_valid(version, values):
            return {"ErrorCode": errors.INVALID_REQUEST}
        if values["ServerAssignor"] not in {None, ASSIGNOR}:
            return {"ErrorCode": errors.UNSUPPORTED_ASSIGNOR}
        epoch, member_id = values["MemberEpoch"], values["MemberId"]
        try:
            group = self._groups.consumer(values["GroupId"], is_joined=epoch == JOIN)
        except RefusedError as refused:
            return {"ErrorCode": refused.code}
        if epoch == LEAVE:
            code = group.leave(member_id)
            return {"ErrorCode": code} | ({"MemberId": member_id, "MemberEpoch": LEAVE} if code == errors.NONE else {})
        if not member_id:
            self._numbers += 1
            member_id = f"{client}-{group.name}-{self._numbers}"
        owned, timeout_ms = values["TopicPartitions"], values["RebalanceTimeoutMs"]
        beat = group.heartbeat(
            member_id,
            epoch,
            client=client,
            rebalance_s=None if timeout_ms < 0 else timeout_ms / 1000,
            topics=values["SubscribedTopicNames"],
            owned=None if owned is None else self._targets(owned),
        )
        if beat.code != errors.NONE:
            return {"ErrorCode": beat.code}
        return {
            "ErrorCode": errors.NONE,
            "MemberId": member_id,
            "MemberEpoch": beat.epoch,
            "HeartbeatIntervalMs": round(self._groups.settings.heartbeat_s * 1000),
            "Assignment": None if beat.assigned is None else {"TopicPartitions": _by_topic_id(beat.assigned)},
        }

    def _targets(self, owned: Iterable[Values]) -> list[Target]:
        """The partitions that a member names; those of an unknown topic id under a name that no topic has."""
        return [
            (self._cluster.topic_of(topic["TopicId"]) or topic["TopicId"].hex(), number)
            for topic in owned
            for number in topic["Partitions"]
        ]

    async def describe(self, _version: int, values: Values, _client: str) -> Values:
        return {"Groups": [self._described(name) for name in values["GroupIds"]]}

    def _described(self, name: str) -> Values:
        try:
            group = self._groups.consumer(name, is_joined=False)
        except RefusedError as refused:
            return {"ErrorCode": refused.code, "GroupId": name, "GroupState": ""}
        return {
            "ErrorCode": errors.NONE,
            "GroupId": name,
            "GroupState": group.state.value,
            "GroupEpoch": group.epoch,
            "AssignmentEpoch": group.assignment_epoch,
            "AssignorName": ASSIGNOR,
            "Members": [_member(group, member) for member in group.members.values()],
        }


def _is_valid(version: int, values: Values) -> bool:
    """Whether the coordinator looks at a heartbeat at all. Static members are not modelled."""
    epoch = values["MemberEpoch"]
    if not values["GroupId"] or values["InstanceId"] is not None or epoch < LEAVE:
        return False
    if not values["MemberId"] and (version >= _OWN_ID_SINCE or epoch != JOIN):
        return False
    if epoch != JOIN:
        return True
    owns_nothing = values["TopicPartitions"] == []
    return owns_nothing and values["RebalanceTimeoutMs"] >= 0 and values["SubscribedTopicNames"] is not None


def _member(group: ConsumerGroup, member: ConsumerMember) -> Values:
    target = group.target.get(member.member_id, frozenset())
    return {
        "MemberId": member.member_id,
        "MemberEpoch": member.epoch,
        "ClientId": member.client,
        "ClientHost": "",
        "SubscribedTopicNames": sorted(member.topics),
        "SubscribedTopicRegex": "",
        "Assignment": {"TopicPartitions": _by_topic_id({*member.assigned, *member.revoking}, named=True)},
        "TargetAssignment": {"TopicPartitions": _by_topic_id(target, named=True)},
        "MemberType": _OF_CONSUMER,
    }


def _by_topic_id(targets: Iterable[Target], *, named: bool = False) -> list[Values]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(targets):
        topics.setdefault(topic, []).append(number)
    found: list[dict[str, Any]] = [
        {"TopicId": topic_id_of(topic), "Partitions": numbers} | ({"TopicName": topic} if named else {})
        for topic, numbers in topics.items()
    ]
    return found
