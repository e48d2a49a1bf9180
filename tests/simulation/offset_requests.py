"""A broker as group coordinator: the offsets that groups of either protocol commit.

Offsets are records of the log, so those that were not replicated are lost with it.
"""

from collections.abc import Mapping
from typing import Final

from shared.kafka.protocol.codec import Values
from shared.kafka.runtime.scope import now_ms
from tests.simulation import errors
from tests.simulation.broker import Broker, Handler, by_topic
from tests.simulation.cluster import Partition, Target
from tests.simulation.consumer_groups import ConsumerGroup
from tests.simulation.coordinated import Groups
from tests.simulation.errors import RefusedError
from tests.simulation.groups import Group, State
from tests.simulation.members import NO_GENERATION
from tests.simulation.offsets import Committed, Offsets, Place, entries
from tests.simulation.records import Verify

APPEND_TIMEOUT_S: Final = 5.0
KNOWS_ABORTABLE, ADDS = 4, 5
"""The first versions of TxnOffsetCommit with TRANSACTION_ABORTABLE, and that adds the group's partition (KIP-890)."""
OF_CONSUMERS: Final = 9
"""The first version of OffsetCommit for members of the newer protocol (KIP-848)."""
TELLS_GROUP_CODE: Final = 2
"""The first version of OffsetFetch with an error code of the group."""
NO_OFFSET: Final = -1


class OffsetRequests:
    """The APIs of committed offsets.

    Args:
        verify: asked before the first offsets of a transaction (KIP-890).
    """

    def __init__(self, broker: Broker, groups: Groups, verify: Verify) -> None:
        self._cluster = broker.cluster
        self._groups = groups
        self._verify = verify
        self._replicated: dict[Target, Offsets] = {}
        self._latest: dict[Target, Offsets] = {}

    def handlers(self) -> dict[str, Handler]:
        """What it serves, by API."""
        return {
            "OffsetCommit": self.commit,
            "TxnOffsetCommit": self.commit_in_transaction,
            "OffsetFetch": self.fetch,
        }

    async def commit(self, version: int, values: Values, _client: str) -> Values:
        """By a member of the generation or epoch, or by no member while the group is empty."""
        try:
            code = self._may_commit(version, values)
        except RefusedError as refused:
            code = refused.code
        if code == errors.NONE:
            code = await self._append(values, -1, -1)
        return _for_each(values, code)

    def _may_commit(self, version: int, values: Values) -> int:
        name, member_id = values["GroupId"], values["MemberId"]
        generation, instance = values["GenerationIdOrMemberEpoch"], values.get("GroupInstanceId")
        group = self._groups.find(name)
        if generation < 0 and (group is None or not group.members):
            self._groups.make_simple(name)
            return errors.NONE
        if group is None:
            return errors.ILLEGAL_GENERATION if version < OF_CONSUMERS else errors.GROUP_ID_NOT_FOUND
        if isinstance(group, ConsumerGroup):
            if member_id in group.members and version < OF_CONSUMERS:
                return errors.UNSUPPORTED_VERSION
            return group.check_commit(member_id, generation, _targets(values))
        refused = group.check(member_id, instance, generation)
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
        group = self._groups.find(values["GroupId"])
        generation = values.get("GenerationId", NO_GENERATION)
        if group is None or (generation < 0 and not group.members):
            code = errors.NONE if generation < 0 else errors.ILLEGAL_GENERATION
        else:
            code = _check_in_transaction(group, values, generation)
        if code != errors.NONE:
            raise RefusedError(code)

    async def _append(self, values: Values, producer_id: int, producer_epoch: int, *, adds: bool = False) -> int:
        name = values["GroupId"]
        offsets = {
            Place(name, topic["Name"], part["PartitionIndex"]): Committed(
                part["CommittedOffset"], part["CommittedMetadata"] or ""
            )
            for topic in values["Topics"]
            for part in topic["Partitions"]
        }
        try:
            partition = self._groups.partition(name)
            if not self._cluster.takes_appends(partition):
                return errors.COORDINATOR_NOT_AVAILABLE
            batch = entries(offsets, producer_id, producer_epoch, timestamp_ms=now_ms())
            if batch.is_transactional:
                if not partition.log.is_open(batch):
                    partition.log.begin_verification(batch)
                    await self._verify(values["TransactionalId"], batch, partition.target, adds)
                    partition = self._groups.partition(name)
                self._refuse_other_generation(values)
                self._groups.make_simple(name)
            partition.log.append(batch, sequenced=False)
            self._cluster.appended(partition)
            if not await partition.replicated(partition.log.end, APPEND_TIMEOUT_S):
                self._groups.partition(name)
                return errors.COORDINATOR_NOT_AVAILABLE
        except RefusedError as refused:
            return errors.COORDINATOR_NOT_AVAILABLE if refused.code == errors.NOT_ENOUGH_REPLICAS else refused.code
        return errors.NONE

    async def fetch(self, version: int, values: Values, _client: str) -> Values:
        """Before version 8: one group."""
        name, asked = values["GroupId"], values["Topics"]
        try:
            partition = self._groups.partition(name)
            if values.get("RequireStable", False):
                found, pending = await self._stable(partition, name)
            else:
                found, pending = _followed(self._replicated, partition).of(name), frozenset[Target]()
        except RefusedError as refused:
            if version >= TELLS_GROUP_CODE or asked is None:
                return {"Topics": [], "ErrorCode": refused.code}
            answers = {target: _offset(target, None, refused.code) for target in _wanted(asked)}
            return {"Topics": [{"Name": topic, "Partitions": parts} for topic, parts in by_topic(answers)]}
        wanted = list(found) if asked is None else _wanted(asked)
        answers = {
            target: _offset(target, None, errors.UNSTABLE_OFFSET_COMMIT)
            if target in pending
            else _offset(target, found.get(target))
            for target in wanted
        }
        return {"Topics": [{"Name": topic, "Partitions": parts} for topic, parts in by_topic(answers)]}

    async def _stable(self, partition: Partition, name: str) -> tuple[Mapping[Target, Committed], frozenset[Target]]:
        """The offsets with all that the leader has, and those that a transaction may change; once it is replicated."""
        latest = _followed(self._latest, partition, latest=True)
        found, pending = latest.of(name), latest.pending(name)
        if not await partition.replicated(partition.log.end, APPEND_TIMEOUT_S):
            raise RefusedError(errors.NOT_COORDINATOR)
        return found, pending


def _check_in_transaction(group: Group | ConsumerGroup, values: Values, generation: int) -> int:
    member_id, instance = values.get("MemberId", ""), values.get("GroupInstanceId")
    if generation == NO_GENERATION and not member_id and instance is None:
        return errors.NONE
    if isinstance(group, ConsumerGroup):
        code = group.check_commit(member_id, generation, _targets(values))
        return errors.ILLEGAL_GENERATION if code == errors.STALE_MEMBER_EPOCH else code
    return group.check(member_id, instance, generation)


def _followed(known: dict[Target, Offsets], partition: Partition, *, latest: bool = False) -> Offsets:
    if partition.target not in known:
        known[partition.target] = Offsets(partition, latest=latest)
    return known[partition.target]


def _targets(values: Values) -> list[Target]:
    return [(topic["Name"], part["PartitionIndex"]) for topic in values["Topics"] for part in topic["Partitions"]]


def _wanted(asked: list[Values]) -> list[Target]:
    return [(topic["Name"], number) for topic in asked for number in topic["PartitionIndexes"]]


def _offset(target: Target, committed: Committed | None, code: int = errors.NONE) -> Values:
    offset, metadata = (NO_OFFSET, "") if committed is None else committed
    return {"PartitionIndex": target[1], "CommittedOffset": offset, "Metadata": metadata, "ErrorCode": code}


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
