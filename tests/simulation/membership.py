"""A broker as coordinator of groups of the classic protocol: their memberships.

Generations are kept as if each change were replicated at once: a coordinator that moves takes the groups along, and
only what waits in them is refused.
"""

from collections.abc import Callable

from shared.kafka.protocol.codec import Values
from tests.simulation.broker import Handler
from tests.simulation.consumer_groups import ConsumerGroup
from tests.simulation.coordinated import Groups
from tests.simulation.errors import RefusedError
from tests.simulation.groups import Group


class Membership:
    """The APIs of members of classic groups."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def handlers(self) -> dict[str, Handler]:
        """What it serves, by API."""
        return {
            "JoinGroup": self.join,
            "SyncGroup": self.sync,
            "Heartbeat": self.heartbeat,
            "LeaveGroup": self.leave,
        }

    async def join(self, _version: int, values: Values, client: str) -> Values:
        member_id = values["MemberId"]
        try:
            group = self._groups.joined(values["GroupId"], is_new_member=not member_id)
            joined = await group.join(
                member_id,
                values.get("GroupInstanceId"),
                client,
                {protocol["Name"]: protocol["Metadata"] for protocol in values["Protocols"]},
                session_s=values["SessionTimeoutMs"] / 1000,
                rebalance_s=values["RebalanceTimeoutMs"] / 1000,
            )
        except RefusedError as refused:
            return {"ErrorCode": refused.code, "ProtocolName": "", "Leader": "", "MemberId": member_id, "Members": []}
        members = [
            {"MemberId": one, "GroupInstanceId": instance, "Metadata": metadata}
            for one, instance, metadata in joined.members
        ]
        return {
            "ErrorCode": joined.code,
            "GenerationId": joined.generation,
            "ProtocolName": joined.protocol,
            "Leader": joined.leader,
            "MemberId": joined.member_id,
            "Members": members,
        }

    async def sync(self, _version: int, values: Values, _client: str) -> Values:
        assignments = {one["MemberId"]: one["Assignment"] for one in values["Assignments"]}
        member_id, instance = values["MemberId"], values.get("GroupInstanceId")
        try:
            group = self._groups.classic(values["GroupId"])
            code, assignment = await group.sync(member_id, instance, values["GenerationId"], assignments)
        except RefusedError as refused:
            code, assignment = refused.code, b""
        return {"ErrorCode": code, "Assignment": assignment}

    async def heartbeat(self, _version: int, values: Values, _client: str) -> Values:
        def beat(group: Group) -> int:
            return group.heartbeat(values["MemberId"], values.get("GroupInstanceId"), values["GenerationId"])

        return {"ErrorCode": self._code(values["GroupId"], beat)}

    async def leave(self, _version: int, values: Values, _client: str) -> Values:
        """Versions before 3: one member, also of a group of the newer protocol."""
        try:
            known = self._groups.find(values["GroupId"])
        except RefusedError as refused:
            return {"ErrorCode": refused.code}
        if isinstance(known, ConsumerGroup):
            return {"ErrorCode": known.leave(values["MemberId"])}
        return {"ErrorCode": self._code(values["GroupId"], lambda group: group.leave(values["MemberId"]))}

    def _code(self, name: str, ask: Callable[[Group], int]) -> int:
        try:
            return ask(self._groups.classic(name))
        except RefusedError as refused:
            return refused.code
