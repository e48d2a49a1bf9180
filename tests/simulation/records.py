"""What a broker does with records: it takes, gives and finds them, and says who leads which partition."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, Final

from shared.kafka.client.batches import Batch, CorruptBatchError, decode
from shared.kafka.protocol.codec import Values
from tests.simulation import errors
from tests.simulation.broker import Broker, Handler, by_topic
from tests.simulation.cluster import Partition, Target, topic_id_of
from tests.simulation.errors import RefusedError
from tests.simulation.log import Log
from tests.simulation.network import Address

ALL: Final = -1
"""acks=all."""
READ_COMMITTED: Final = 1
EARLIEST, LATEST = -2, -1
"""Timestamps that ListOffsets takes for the ends of a log."""


Verify = Callable[[str, Batch, Target, bool], Awaitable[None]]
"""Asks the coordinator of a transactional.id; raises RefusedError unless the batch's transaction has the partition.

The last argument says whether the partition is added if the transaction does not have it.
"""


KNOWS_ABORTABLE: Final = 11
"""The first version of Produce with TRANSACTION_ABORTABLE (KIP-890)."""
ADDS: Final = 12
"""The first version of Produce that adds partitions to the transaction."""


class Records:
    """The APIs of records and metadata.

    Args:
        broker: that serves them.
        addresses: of all brokers, by node id.
        configuration: what DescribeConfigs tells of any broker.
        verify: asked before the first batch of a transaction on a partition (KIP-890).
    """

    def __init__(
        self,
        broker: Broker,
        addresses: Mapping[int, Address],
        configuration: Mapping[str, str],
        verify: Verify,
    ) -> None:
        self._broker = broker
        self._cluster = broker.cluster
        self._addresses = addresses
        self._configuration = configuration
        self._verify = verify

    def handlers(self) -> dict[str, Handler]:
        """What it serves, by API."""
        return {
            "Metadata": self.metadata,
            "Produce": self.produce,
            "Fetch": self.fetch,
            "ListOffsets": self.list_offsets,
            "DescribeConfigs": self.describe_configs,
            "DescribeQuorum": self.describe_quorum,
        }

    async def metadata(self, version: int, values: Values, _: str) -> Values:
        asked = values["Topics"]
        everything = asked is None or (version == 0 and not asked)
        names = self._names() if everything else [topic["Name"] for topic in asked if topic["Name"] is not None]
        ids = [] if everything else [topic["TopicId"] for topic in asked if topic["Name"] is None]
        nodes = sorted(self._cluster.registered)
        return {
            "Brokers": [self._node(node) for node in nodes],
            "ClusterId": "simulated",
            "ControllerId": nodes[0] if nodes else -1,
            "Topics": [self._topic(name) for name in names] + [self._topic_of(topic_id) for topic_id in ids],
        }

    def _node(self, node: int) -> Values:
        host, port = self._addresses[node]
        # The client draws one of a set of brokers. Without a rack they would hash by the address of None, which differs
        # between processes
        return {"NodeId": node, "Host": host, "Port": port, "Rack": f"rack-{node}"}

    def _names(self) -> list[str]:
        return list(dict.fromkeys(topic for topic, _ in self._cluster.partitions))

    def _topic_of(self, topic_id: bytes) -> Values:
        name = self._cluster.topic_of(topic_id)
        if name is not None:
            return self._topic(name)
        return {"ErrorCode": errors.UNKNOWN_TOPIC_ID, "Name": None, "TopicId": topic_id, "Partitions": []}

    def _topic(self, name: str) -> Values:
        partitions = self._cluster.topic(name)
        code = errors.NONE if partitions else errors.UNKNOWN_TOPIC_OR_PARTITION
        return {
            "ErrorCode": code,
            "Name": name,
            "TopicId": topic_id_of(name) if partitions else bytes(16),
            "IsInternal": name.startswith("__"),
            "Partitions": [self._described(partition) for partition in partitions],
        }

    def _described(self, partition: Partition) -> Values:
        led = partition.leader in self._cluster.registered
        return {
            "ErrorCode": errors.NONE if led else errors.LEADER_NOT_AVAILABLE,
            "PartitionIndex": partition.target[1],
            "LeaderId": partition.leader if led else -1,
            "LeaderEpoch": partition.epoch,
            "ReplicaNodes": list(partition.replicas),
            "IsrNodes": sorted(partition.in_sync),
            "OfflineReplicas": [node for node in partition.replicas if node not in self._cluster.registered],
        }

    async def produce(self, version: int, values: Values, _client: str) -> Values:
        """Append each partition's batch; with acks=all answer when it is replicated, or when the time is over."""
        wanted = [
            ((topic["Name"], part["Index"]), part["Records"])
            for topic in values["TopicData"]
            for part in topic["PartitionData"]
        ]
        timeout_s = values["TimeoutMs"] / 1000
        adding = asyncio.Lock() if version >= ADDS else None  # a request's partitions are added at once
        answers = await asyncio.gather(
            *(self._take(target, data, values, timeout_s, adding) for target, data in wanted)
        )
        if version < KNOWS_ABORTABLE:
            for answer in answers:
                if answer["ErrorCode"] == errors.TRANSACTION_ABORTABLE:
                    answer["ErrorCode"] = errors.INVALID_TXN_STATE
        by_target = dict(zip((target for target, _ in wanted), answers, strict=True))
        return {"Responses": [{"Name": name, "PartitionResponses": parts} for name, parts in by_topic(by_target)]}

    async def _take(
        self, target: Target, data: bytes, asked: Values, timeout_s: float, adding: asyncio.Lock | None
    ) -> Values:
        try:
            code, base = errors.NONE, await self._append(target, data, asked, timeout_s, adding)
        except RefusedError as refused:
            code, base = refused.code, -1
        return {"Index": target[1], "ErrorCode": code, "BaseOffset": base, "LogStartOffset": 0}

    async def _append(
        self, target: Target, data: bytes, asked: Values, timeout_s: float, adding: asyncio.Lock | None
    ) -> int:
        partition, acks = self._broker.led(target), asked["Acks"]
        if acks == ALL and not self._cluster.takes_appends(partition):
            raise RefusedError(errors.NOT_ENOUGH_REPLICAS)
        batch = _checked(partition, data)
        if batch.is_transactional and not partition.log.is_open(batch):
            partition.log.begin_verification(batch, from_zero=adding is not None)
            async with adding or nullcontext():
                await self._verify(asked["TransactionalId"] or "", batch, target, adding is not None)
            partition = self._broker.led(target)
        if partition.refuses:
            raise RefusedError(partition.refuses.pop(0))
        base = partition.log.append(batch)
        self._cluster.appended(partition)
        end = base + batch.last_offset - batch.base_offset + 1
        if acks == ALL and not await partition.replicated(end, timeout_s):
            self._broker.led(target)
            raise RefusedError(errors.REQUEST_TIMED_OUT)
        return base

    async def fetch(self, _version: int, values: Values, _client: str) -> Values:
        """Read when there is enough, or when the time is over. There are no fetch sessions (KIP-227)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + values["MaxWaitMs"] / 1000
        while True:
            answers, size, failed = self._read(values)
            left_s = deadline - loop.time()
            if failed or size >= values["MinBytes"] or left_s <= 0:
                return {"Responses": [{"Topic": name, "Partitions": parts} for name, parts in by_topic(answers)]}
            more: asyncio.Future[None] = loop.create_future()
            for target in answers:
                self._cluster.partitions[target].on_advance(more)
            await asyncio.wait([more], timeout=left_s)

    def _read(self, values: Values) -> tuple[dict[Target, Values], int, bool]:
        answers: dict[Target, Values] = {}
        size, failed, left = 0, False, values["MaxBytes"]
        for topic in values["Topics"]:
            for part in topic["Partitions"]:
                target = (topic["Topic"], part["Partition"])
                answers[target] = self._part(target, part, left, committed=values["IsolationLevel"] == READ_COMMITTED)
                failed = failed or answers[target]["ErrorCode"] != errors.NONE
                got = len(answers[target]["Records"] or b"")
                size, left = size + got, max(left - got, 0)
        return answers, size, failed

    def _readable(self, target: Target, offset: int) -> Log:
        log = self._broker.led(target).log
        if not log.start <= offset <= log.end:
            raise RefusedError(errors.OFFSET_OUT_OF_RANGE)
        return log

    def _part(self, target: Target, part: Values, left: int, *, committed: bool) -> Values:
        offset = part["FetchOffset"]
        try:
            log = self._readable(target, offset)
        except RefusedError as refused:
            return {
                "PartitionIndex": target[1],
                "ErrorCode": refused.code,
                "HighWatermark": -1,
                "AbortedTransactions": None,
                "Records": b"",
            }
        limit = log.last_stable_offset if committed else log.high_watermark
        read = list(log.read(offset, limit, min(part["PartitionMaxBytes"], left))) if left else []
        aborted = (log.aborted(offset, read[-1].last_offset + 1) if read else []) if committed else None
        return {
            "PartitionIndex": target[1],
            "ErrorCode": errors.NONE,
            "HighWatermark": log.high_watermark,
            "LastStableOffset": log.last_stable_offset,
            "LogStartOffset": log.start,
            "AbortedTransactions": _aborted(aborted),
            "Records": b"".join(batch.data for batch in read),
        }

    async def list_offsets(self, version: int, values: Values, _client: str) -> Values:
        answers = {
            (topic["Name"], part["PartitionIndex"]): self._offset(
                (topic["Name"], part["PartitionIndex"]), part["Timestamp"], values.get("IsolationLevel", 0), version
            )
            for topic in values["Topics"]
            for part in topic["Partitions"]
        }
        return {"Topics": [{"Name": name, "Partitions": parts} for name, parts in by_topic(answers)]}

    def _offset(self, target: Target, timestamp_ms: int, isolation: int, version: int) -> Values:
        try:
            partition = self._broker.led(target)
        except RefusedError as refused:
            return {"PartitionIndex": target[1], "ErrorCode": refused.code, "Timestamp": -1, "Offset": -1}
        log = partition.log
        end = log.last_stable_offset if isolation == READ_COMMITTED else log.high_watermark
        ends = {EARLIEST: (log.start, -1), LATEST: (end, -1)}
        offset, at_ms = ends[timestamp_ms] if timestamp_ms in ends else _first_since(partition, end, timestamp_ms)
        return {
            "PartitionIndex": target[1],
            "ErrorCode": errors.NONE,
            "Timestamp": at_ms,
            "Offset": offset,
            **({"LeaderEpoch": partition.epoch} if version >= 4 else {}),
        }

    async def describe_configs(self, _version: int, values: Values, _client: str) -> Values:
        return {"Results": [self._resource(resource) for resource in values["Resources"]]}

    def _resource(self, resource: Values) -> Values:
        known = self._configuration
        wanted = resource["ConfigurationKeys"]
        names = list(known) if wanted is None else [name for name in wanted if name in known]
        return {
            "ErrorCode": errors.NONE,
            "ResourceType": resource["ResourceType"],
            "ResourceName": resource["ResourceName"],
            "Configs": [
                {"Name": name, "Value": known[name], "ReadOnly": False, "IsSensitive": False} for name in names
            ],
        }

    async def describe_quorum(self, _version: int, _values: Values, _client: str) -> Values:
        """Every broker is a voter, and all have the history's time."""
        now_ms = time.time_ns() // 1_000_000
        nodes = sorted(self._cluster.registered)
        times = {"LogEndOffset": 0, "LastFetchTimestamp": now_ms, "LastCaughtUpTimestamp": now_ms}
        quorum = {
            "PartitionIndex": 0,
            "ErrorCode": errors.NONE,
            "LeaderId": nodes[0],
            "LeaderEpoch": 0,
            "HighWatermark": 0,
            "CurrentVoters": [{"ReplicaId": node, **times} for node in nodes],
            "Observers": [],
        }
        return {"ErrorCode": errors.NONE, "Topics": [{"TopicName": "__cluster_metadata", "Partitions": [quorum]}]}


def _checked(partition: Partition, data: bytes) -> Batch:
    """The one batch of a request, as the partition takes it."""
    try:
        [batch] = decode(data)
        records = batch.records(partition.target)
    except (CorruptBatchError, ValueError) as error:
        raise RefusedError(errors.CORRUPT_MESSAGE) from error
    if len(data) > partition.batch_bytes_max:
        raise RefusedError(errors.MESSAGE_TOO_LARGE)
    if partition.compacted and any(record.key is None for record in records):
        raise RefusedError(errors.INVALID_RECORD)
    return batch


def _first_since(partition: Partition, end: int, timestamp_ms: int) -> tuple[int, int]:
    """Offset and time of the first record that is not older; -1 and -1 without one."""
    for batch in partition.log.read(partition.log.start, end, 2**31):
        if batch.timestamp_ms >= timestamp_ms:
            for record in batch.records(partition.target):
                if record.timestamp_ms >= timestamp_ms:
                    return record.offset, record.timestamp_ms
    return -1, -1


def _aborted(aborted: Iterable[Any] | None) -> list[Values] | None:
    if aborted is None:
        return None
    return [{"ProducerId": one.producer_id, "FirstOffset": one.first_offset} for one in aborted]
