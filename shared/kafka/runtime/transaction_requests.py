"""The requests of a transaction, each sent once and awaited.

The cluster's feature transaction.version says which protocol it speaks: version 1 (KIP-98), or version 2 (KIP-890).

Invariant: nothing is repeated here. Errors of the brokers are raised, or returned by partition.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka.errors import KafkaError, NodeNotReadyError, NoError, OperationNotAttempted

from shared.kafka.client.cluster import Cluster, Target, check
from shared.kafka.client.errors import error_for
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values

_FIRST: Final[Mapping[str, int]] = {
    "InitProducerId": 4,
    "AddPartitionsToTxn": 3,
    "Produce": 11,
    "AddOffsetsToTxn": 3,
    "TxnOffsetCommit": 3,
    "EndTxn": 3,
}
_SECOND: Final[Mapping[str, int]] = {**_FIRST, "InitProducerId": 5, "Produce": 12, "TxnOffsetCommit": 5, "EndTxn": 5}
"""Partitions are still added by requests of their own: one append of the coordinator then does for all leaders."""
_FEATURE: Final = "transaction.version"
_ALL_IN_SYNC: Final = -1
UNKNOWN: Final = -1
"""In place of a producer id or an epoch."""


class GroupMember(NamedTuple):
    """A member of a consumer group, by which the group's coordinator accepts or refuses offsets.

    Attributes:
        member_id: empty for a producer outside of the group, which only its own epoch fences.
        epoch: of the member (KIP-848), or the generation of a classic group.
    """

    group: str
    member_id: str = ""
    epoch: int = UNKNOWN


class NoResponseError(KafkaError):  # type: ignore[misc] # the client ships no types
    """A request was sent and not answered. It may arrive at any time, or never."""


class TransactionRequests:
    """Requests of one transactional.id.

    Args:
        cluster: an open connection.
        timeout_ms: transaction.timeout.ms, which is also how long leaders wait for in-sync replicas.

    Attributes:
        second: whether the cluster speaks version 2 of the protocol; False before `negotiate`.
        producer_id, epoch: as the coordinator gave them; UNKNOWN before.
        unanswered: number of requests that were sent, not answered, and may still have an effect.
    """

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self.second = False
        self.producer_id = self.epoch = UNKNOWN
        self.unanswered = 0

    async def negotiate(self) -> None:
        """Learn the protocol's version from the cluster's finalised features (KIP-584)."""
        names = {"ClientSoftwareName": "once", "ClientSoftwareVersion": "0"}

        async def attempt() -> Values:
            found: Values = await self._cluster.send_to_any(Request("ApiVersions", 3, names))
            check(found["ErrorCode"], "ApiVersions")
            return found

        response = await self._cluster.retry(attempt, "the cluster's features cannot be read")
        levels = {feature["Name"]: feature["MaxVersionLevel"] for feature in response["FinalizedFeatures"]}
        self.second = levels.get(_FEATURE, 1) > 1

    async def init_producer_id(self, node_id: int, *, own: bool) -> None:
        """Get a producer id and a new epoch.

        Args:
            own: only if the present ones are still the newest (KIP-360).
        """
        producer = self._producer() if own else {}
        values = {"TransactionalId": self._transactional_id, "TransactionTimeoutMs": self._timeout_ms, **producer}
        response = await self._ask(node_id, "InitProducerId", values)
        check(response["ErrorCode"], self._transactional_id)
        self.producer_id, self.epoch = response["ProducerId"], response["ProducerEpoch"]

    async def add_partitions(self, node_id: int, targets: Iterable[Target]) -> None:
        topics = [{"Name": name, "Partitions": numbers} for name, numbers in _by_topic(targets)]
        values = {"TransactionalId": self._transactional_id, **self._producer(), "Topics": topics}
        request = {f"V3AndBelow{name}": value for name, value in values.items()}
        response = await self._ask(node_id, "AddPartitionsToTxn", request)
        _check_each(
            (topic["Name"], part["PartitionIndex"], part["PartitionErrorCode"])
            for topic in response["ResultsByTopicV3AndBelow"]
            for part in topic["ResultsByPartition"]
        )

    async def produce(self, node_id: int, batches: Mapping[Target, bytearray]) -> dict[Target, KafkaError | None]:
        """Send a batch for each partition; return each partition's error, or None."""
        parts = ((topic, {"Index": number, "Records": data}) for (topic, number), data in batches.items())
        topics = [{"Name": name, "PartitionData": data} for name, data in _by_topic(parts)]
        values = {
            "TransactionalId": self._transactional_id,
            "Acks": _ALL_IN_SYNC,
            "TimeoutMs": self._timeout_ms,
            "TopicData": topics,
        }
        response = await self._ask(node_id, "Produce", values, coordination=False)
        return {
            (topic["Name"], part["Index"]): _error(part["ErrorCode"], topic["Name"], part["Index"])
            for topic in response["Responses"]
            for part in topic["PartitionResponses"]
        }

    async def add_offsets(self, node_id: int, group: str) -> None:
        """Add the partition that has a group's offsets."""
        values = {"TransactionalId": self._transactional_id, **self._producer(), "GroupId": group}
        check((await self._ask(node_id, "AddOffsetsToTxn", values))["ErrorCode"], group)

    async def commit_offsets(
        self, node_id: int, member: GroupMember, offsets: Mapping[Target, int], metadata: str
    ) -> None:
        """Commit offsets within the transaction, as a member of the group at its epoch (KIP-447)."""
        parts = (
            (topic, {"PartitionIndex": number, "CommittedOffset": offset, "CommittedMetadata": metadata})
            for (topic, number), offset in offsets.items()
        )
        topics = [{"Name": name, "Partitions": numbers} for name, numbers in _by_topic(parts)]
        of_member = {"GroupId": member.group, "MemberId": member.member_id, "GenerationId": member.epoch}
        own = {"TransactionalId": self._transactional_id, **of_member, **self._producer()}
        response = await self._ask(node_id, "TxnOffsetCommit", {**own, "Topics": topics})
        _check_each(
            (topic["Name"], part["PartitionIndex"], part["ErrorCode"])
            for topic in response["Topics"]
            for part in topic["Partitions"]
        )

    async def end(self, node_id: int, *, commit: bool) -> None:
        """End the transaction; in version 2 under a new epoch, or a new producer id, for the next one."""
        values = {"TransactionalId": self._transactional_id, **self._producer(), "Committed": commit}
        response = await self._ask(node_id, "EndTxn", values)
        check(response["ErrorCode"], self._transactional_id)
        if self.second:
            self.producer_id, self.epoch = response["ProducerId"], response["ProducerEpoch"]

    def _producer(self) -> Values:
        return {"ProducerId": self.producer_id, "ProducerEpoch": self.epoch}

    async def _ask(self, node_id: int, api: str, values: Values, *, coordination: bool = True) -> Values:
        request = Request(api, (_SECOND if self.second else _FIRST)[api], values)
        self.unanswered += 1
        try:
            response: Values = await self._cluster.send(node_id, request, coordination=coordination)
        except NodeNotReadyError:
            self.unanswered -= 1  # not sent
            raise
        except KafkaError as error:
            raise NoResponseError(f"{api}: {error!r}") from error
        self.unanswered -= 1
        return response


def _by_topic(parts: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, list[Any]]]:
    topics: dict[str, list[Any]] = {}
    for topic, part in parts:
        topics.setdefault(topic, []).append(part)
    return topics.items()


def _error(code: int, topic: str, number: int) -> KafkaError | None:
    error = error_for(code)
    return None if error is NoError else error(f"{topic}:{number}")


def _check_each(parts: Iterable[tuple[str, int, int]]) -> None:
    """Raise one partition's error. The others' follow from it, or are the same, as nothing was done."""
    errors = [error for topic, number, code in parts if (error := _error(code, topic, number)) is not None]
    if errors:
        raise next((error for error in errors if not isinstance(error, OperationNotAttempted)), errors[0])
