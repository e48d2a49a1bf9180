"""A producer that sends what its caller asks for: any producer id, epoch and sequence, in any order, without retries.

It shows what the broker answers to a client that breaks the rules which real clients keep.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Final, NamedTuple, Self

from deploy.drills.clients.record_batches import TRANSACTIONAL, record_batch
from shared.eos.records import Record
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import Batch, pages
from shared.kafka.client.cluster import EARLIEST, LATEST, REQUEST_TIMEOUT_S, Cluster, Target, check
from shared.kafka.client.errors import error_for, error_name
from shared.kafka.client.reader import read_topics
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values

CACHED_BATCHES: Final = 5
"""The number of batches that a broker remembers of each producer and partition."""
OUT_OF_ORDER: Final = "OutOfOrderSequenceNumber"
FENCED: Final = ("ProducerFenced", "InvalidProducerEpoch")
"""Answers to a producer whose transactional.id another producer has taken over."""
ALL: Final = -1
_PRODUCE_VERSION: Final = 11
_INIT_VERSION: Final = 4
_TIMEOUT_MS: Final = 10_000


class Answer(NamedTuple):
    """Answer to a request.

    Attributes:
        error: Kafka's name of it, such as OutOfOrderSequenceNumberError; empty without one.
        offset: of the first record, or -1.
    """

    error: str
    offset: int

    def __str__(self) -> str:
        return self.error or f"offset {self.offset}"

    @classmethod
    def of(cls, response: Values | None, topic: str) -> "Answer":
        """Return the answer in a Produce response that has one partition of the topic."""
        rows = [] if response is None else response["Responses"]
        [found] = [one for row in rows if row["Name"] == topic for one in row["PartitionResponses"]]
        code = found["ErrorCode"]
        return cls(error_name(error_for(code)()) if code else "", found["BaseOffset"])


class Identity(NamedTuple):
    """A producer's id and epoch."""

    producer_id: int
    epoch: int


class Numbered(NamedTuple):
    """A batch of one record with its sequence; a damaged one has a wrong checksum."""

    value: bytes
    sequence: int = -1
    damaged: bool = False


class NoLeaderError(Exception):
    """The partition has no leader now."""


class RawProducer:
    """A producer; open while its context is entered.

    Args:
        client_id: as the brokers and the proxy see it.
        request_timeout_s: seconds until a request without an answer has failed.
    """

    def __init__(
        self,
        bootstrap_servers: Bootstrap,
        *,
        client_id: str = "drill-raw",
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._cluster = Cluster(bootstrap_servers, client_id=client_id, request_timeout_s=request_timeout_s)

    async def __aenter__(self) -> Self:
        await self._cluster.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._cluster.close()

    async def init(self, transactional_id: str | None = None, *, timeout_ms: int = 60_000) -> Identity:
        """InitProducerId: return the producer's id and epoch."""
        request = Request(
            "InitProducerId",
            _INIT_VERSION,
            {
                "TransactionalId": transactional_id,
                "TransactionTimeoutMs": timeout_ms,
                "ProducerId": -1,
                "ProducerEpoch": -1,
            },
        )

        async def attempt() -> Values:
            if transactional_id is None:
                values: Values = await self._cluster.send(self._cluster.some_broker, request)
            else:
                node_id = await self._cluster.coordinator(transactional_id, transactional=True)
                values = await self._cluster.send(node_id, request, coordination=True)
            check(values["ErrorCode"], "InitProducerId")
            return values

        values = await self._cluster.retry(attempt, "no broker gives a producer id")
        return Identity(values["ProducerId"], values["ProducerEpoch"])

    async def produce(
        self,
        topic: str,
        values: Sequence[bytes],
        identity: Identity | None = None,
        sequence: int = -1,
        *,
        partition: int = 0,
        acks: int = ALL,
        transactional_id: str | None = None,
        damaged: bool = False,
    ) -> Answer:
        """Send one batch to the partition's leader and return its answer.

        Args:
            identity: None for a batch without idempotence.
            sequence: of the first record.
            damaged: whether a bit is changed on the way, so that the checksum is wrong.

        Raises:
            NoLeaderError: the partition has no leader now.
        """
        producer_id, epoch = identity or Identity(-1, -1)
        attributes = TRANSACTIONAL if transactional_id is not None else 0
        # A broker that restarts drops the state of producers whose last record's timestamp is a day old
        now_ms = time.time_ns() // 1_000_000
        records = [(None, value) for value in values]
        data = record_batch(records, producer_id, epoch, sequence, attributes=attributes, timestamp_ms=now_ms).data
        if damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        request = Request(
            "Produce",
            _PRODUCE_VERSION,
            {
                "TransactionalId": transactional_id,
                "Acks": acks,
                "TimeoutMs": _TIMEOUT_MS,
                "TopicData": [
                    {"Name": topic, "PartitionData": [{"Index": partition, "Records": data}]},
                ],
            },
        )
        await self._cluster.partitions([topic])
        leader = self._cluster.leader((topic, partition))
        if leader is None:
            raise NoLeaderError(f"{topic} [{partition}] has no leader")
        response = await self._cluster.send(leader, request)
        return Answer.of(response, topic)

    async def pipeline(self, topic: str, batches: Sequence[Numbered], identity: Identity | None = None) -> list[Answer]:
        """Send batches of one record at once, on one connection, without waiting for an answer in between.

        Returns:
            The answers in the same order. One that did not come has the client's error, such as RequestTimedOutError.
        """
        sent = (self.produce(topic, [one.value], identity, one.sequence, damaged=one.damaged) for one in batches)
        found = await asyncio.gather(*sent, return_exceptions=True)
        return [one if isinstance(one, Answer) else Answer(error_name(one), -1) for one in found]


async def log_of(
    bootstrap_servers: Bootstrap, topic: str, partition: int = 0, *, committed: bool = False
) -> list[Batch]:
    """Return every batch of a partition, markers included unless `committed`."""
    return [batch for _, batch in await _log_of(bootstrap_servers, topic, partition, committed=committed)]


async def values_of(
    bootstrap_servers: Bootstrap, topic: str, partition: int | None = 0, *, committed: bool = True
) -> list[bytes]:
    """Return the values of a partition's records in order; None for all partitions, in any order of them."""
    log = await _log_of(bootstrap_servers, topic, partition, committed=committed)
    return [one.value or b"" for target, batch in log if not batch.is_control for one in batch.records(target)]


async def _log_of(
    bootstrap_servers: Bootstrap, topic: str, partition: int | None, *, committed: bool
) -> list[tuple[Target, Batch]]:
    async with Cluster(bootstrap_servers) as cluster:
        targets = [one for one in await cluster.partitions([topic]) if partition in {None, one[1]}]
        starts = await cluster.offsets(targets, EARLIEST)
        ends = await cluster.offsets(targets, LATEST, committed=committed)
        async with aclosing(pages(cluster, starts, ends=ends, committed=committed)) as read:
            return [(page.target, batch) async for page in read for batch in page.batches]


async def committed_count(access: Bootstrap, *topics: str) -> int:
    """Return how many records readers see in topics of one partition."""
    logs = [await log_of(access, topic, committed=True) for topic in topics]
    return sum(batch.last_offset - batch.base_offset + 1 for log in logs for batch in log)


async def records_since(access: Bootstrap, topic: str, since: Mapping[Target, int]) -> list[Record]:
    """Return the committed records of a topic behind these offsets; a partition without one is read whole."""
    found: list[Record] = []
    await read_topics(access, [topic], lambda _topic, _partition, records: found.extend(records), start=since)
    return found
