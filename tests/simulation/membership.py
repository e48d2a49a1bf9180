"""A broker as group coordinator: memberships, and the offsets that groups commit.

Generations are kept as if each change were replicated at once: a coordinator that moves takes the groups along, and
only what waits in them is refused. Offsets are records of the log, so those that were not replicated are lost with it.
"""

from collections.abc import Callable, Mapping
from typing import Final

from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, partition_of
from shared.kafka.protocol.codec import Values
from shared.kafka.runtime.owned import now_ms
from tests.simulation import errors
from tests.simulation.broker import Broker, Handler, by_topic
from tests.simulation.cluster import Partition, Target
from tests.simulation.errors import RefusedError
from tests.simulation.groups import Group, State
from tests.simulation.members import NO_GENERATION
from tests.simulation.offsets import Committed, Offsets, Place, entries
from tests.simulation.records import Verify

APPEND_TIMEOUT_S: Final = 5.0
KNOWS_ABORTABLE, ADDS = 4, 5
"""The first versions of TxnOffsetCommit with TRANSACTION_ABORTABLE, and that adds the group's partition (KIP-890)."""
NO_OFFSET: Final = -1


class Membership:
    """The group coordinator of the partitions of the offsets topic that a broker leads.

    Args:
        groups: of the cluster, by name; shared by its brokers.
        first_wait_s: as in Group.
        verify: asked before the first offsets of a transaction (KIP-890).
    """

    def __init__(self, broker: Broker, groups: dict[str, Group], first_wait_s: float, verify: Verify) -> None:
        self._broker = broker
        self._cluster = broker.cluster
        self._groups = groups
        self._first_wait_s = first_wait_s
        self._verify = verify
        self._offsets: dict[Target, Offsets] = {}
        self._cluster.on_leader.append(self._led_by)

    def handlers(self) -> dict[str, Handler]:
        """What it serves, by API."""
        return {
            "JoinGroup": self.join,
            "SyncGroup": self.sync,
            "Heartbeat": self.heartbeat,
            "LeaveGroup": self.leave,
            "OffsetCommit": self.commit,
            "TxnOffsetCommit": self.commit_in_transaction,
            "OffsetFetch": self.fetch,
        }

    def _led_by(self, partition: Partition) -> None:
        topic, number = partition.target
        if topic == OFFSETS_TOPIC and partition.leader == self._broker.node:
            for group in self._groups.values():
                if self._number(group.name) == number:
                    group.moved()

    def _number(self, name: str) -> int:
        return partition_of(name, len(self._cluster.topic(OFFSETS_TOPIC)))

    def _partition(self, name: str) -> Partition:
        partition = self._cluster.led((OFFSETS_TOPIC, self._number(name)), self._broker.node)
        if partition is None:
            raise RefusedError(errors.NOT_COORDINATOR)
        return partition

    def _group(self, name: str) -> Group:
        """The group, or an empty one that nobody else sees."""
        self._partition(name)
        return self._groups.get(name) or Group(name, self._first_wait_s)

    async def join(self, _version: int, values: Values, client: str) -> Values:
        member_id = values["MemberId"]
        try:
            group = self._group(values["GroupId"])
            if not member_id:
                self._groups[group.name] = group
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
            group = self._group(values["GroupId"])
            code, assignment = await group.sync(member_id, instance, values["GenerationId"], assignments)
        except RefusedError as refused:
            code, assignment = refused.code, b""
        return {"ErrorCode": code, "Assignment": assignment}

    async def heartbeat(self, _version: int, values: Values, _client: str) -> Values:
        def beat(group: Group) -> int:
            return group.heartbeat(values["MemberId"], values.get("GroupInstanceId"), values["GenerationId"])

        return {"ErrorCode": self._code(values["GroupId"], beat)}

    async def leave(self, _version: int, values: Values, _client: str) -> Values:
        """Versions before 3: one member."""
        return {"ErrorCode": self._code(values["GroupId"], lambda group: group.leave(values["MemberId"]))}

    def _code(self, name: str, ask: Callable[[Group], int]) -> int:
        try:
            return ask(self._group(name))
        except RefusedError as refused:
            return refused.code

    async def commit(self, _version: int, values: Values, _client: str) -> Values:
        """By a member of the generation, or by nobody's while the group is empty."""
        code = self._code(values["GroupId"], lambda group: self._may_commit(group, values))
        if code == errors.NONE:
            code = await self._append(values, -1, -1)
        return _for_each(values, code)

    def _make(self, name: str) -> None:
        """Make a group that only commits offsets."""
        self._groups.setdefault(name, Group(name, self._first_wait_s))

    def _may_commit(self, group: Group, values: Values) -> int:
        generation, instance = values["GenerationIdOrMemberEpoch"], values.get("GroupInstanceId")
        if generation == NO_GENERATION and not group.members:
            self._make(group.name)
            return errors.NONE
        if group.name not in self._groups:
            return errors.ILLEGAL_GENERATION
        refused = group.check(values["MemberId"], instance, generation)
        if refused == errors.NONE and group.state is State.COMPLETING:
            return errors.REBALANCE_IN_PROGRESS
        return refused

    async def commit_in_transaction(self, version: int, values: Values, _client: str) -> Values:
        """Fenced by the producer's epoch, and where it names a member by that one's generation (KIP-447)."""
        code = await self._append(values, values["ProducerId"], values["ProducerEpoch"], adds=version >= ADDS)
        if code == errors.TRANSACTION_ABORTABLE and version < KNOWS_ABORTABLE:
            code = errors.INVALID_TXN_STATE
        return _for_each(values, code)

    def _refuse_other_generation(self, values: Values) -> None:
        generation, member_id = values.get("GenerationId", NO_GENERATION), values.get("MemberId", "")
        instance = values.get("GroupInstanceId")
        group = self._groups.get(values["GroupId"])
        if group is None or (generation < 0 and not group.members):
            code = errors.NONE if generation < 0 else errors.ILLEGAL_GENERATION
        else:
            named = generation >= 0 or member_id or instance
            code = group.check(member_id, instance, generation) if named else errors.NONE
        if code != errors.NONE:
            raise RefusedError(code)

    async def _append(self, values: Values, producer_id: int, producer_epoch: int, *, adds: bool = False) -> int:
        offsets = {
            Place(values["GroupId"], topic["Name"], part["PartitionIndex"]): Committed(
                part["CommittedOffset"], part["CommittedMetadata"] or ""
            )
            for topic in values["Topics"]
            for part in topic["Partitions"]
        }
        try:
            partition = self._partition(values["GroupId"])
            if not self._cluster.takes_appends(partition):
                return errors.COORDINATOR_NOT_AVAILABLE
            batch = entries(offsets, producer_id, producer_epoch, timestamp_ms=now_ms())
            if batch.is_transactional:
                if not partition.log.is_open(batch):
                    partition.log.begin_verification(batch)
                    await self._verify(values["TransactionalId"], batch, partition.target, adds)
                    partition = self._partition(values["GroupId"])
                self._refuse_other_generation(values)
                self._make(values["GroupId"])
            partition.log.append(batch, sequenced=False)
            self._cluster.appended(partition)
            if not await partition.replicated(partition.log.end, APPEND_TIMEOUT_S):
                self._partition(values["GroupId"])
                return errors.COORDINATOR_NOT_AVAILABLE
        except RefusedError as refused:
            return errors.COORDINATOR_NOT_AVAILABLE if refused.code == errors.NOT_ENOUGH_REPLICAS else refused.code
        return errors.NONE

    async def fetch(self, _version: int, values: Values, _client: str) -> Values:
        """Before version 8: one group."""
        try:
            found = self._committed(self._partition(values["GroupId"]), values["GroupId"])
        except RefusedError as refused:
            return {"Topics": [], "ErrorCode": refused.code}
        asked = values["Topics"]
        wanted = (
            list(found)
            if asked is None
            else [(topic["Name"], number) for topic in asked for number in topic["PartitionIndexes"]]
        )
        answers = {target: _offset(target, found.get(target)) for target in wanted}
        return {"Topics": [{"Name": topic, "Partitions": parts} for topic, parts in by_topic(answers)]}

    def _committed(self, partition: Partition, group: str) -> Mapping[Target, Committed]:
        if partition.target not in self._offsets:
            self._offsets[partition.target] = Offsets(partition)
        return self._offsets[partition.target].of(group)


def _offset(target: Target, committed: Committed | None) -> Values:
    offset, metadata = (NO_OFFSET, "") if committed is None else committed
    return {"PartitionIndex": target[1], "CommittedOffset": offset, "Metadata": metadata, "ErrorCode": errors.NONE}


def _for_each(values: Values, code: int) -> Values:
    """The same code for each partition of a request."""
    topics = [
        {
            "Name": topic["Name"],
            "Partitions": [
                {"PartitionIndex": part["PartitionIndex"], "ErrorCode": code} for part in topic["Partitions"]
            ],
        }
        for topic in values["Topics"]
    ]
    return {"Topics": topics}
