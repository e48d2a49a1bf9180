"""A connection to the cluster for single requests: metadata, offsets, fetches, administration.

It needs neither a consumer group nor a producer.

Invariant: a retriable error is retried, against fresh metadata, until a deadline; then it is a `KafkaUnavailableError`.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    NoError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition

from shared.kafka.client.access import Bootstrap, client_options
from shared.kafka.client.connections import CONNECTION_S, Client
from shared.kafka.client.errors import (
    KafkaUnavailableError,
    denied,
    denying_unusable,
    error_for,
    error_name,
    is_denied,
    is_retriable,
    refuse_handshake,
    unavailable,
)
from shared.kafka.client.fetch import Fetched, fetch_request, fetched
from shared.kafka.client.leaving import close_connections

LATEST = -1
EARLIEST = -2
"""Timestamps of ListOffsets for the end and the start of the log."""

DEADLINE_S = 30.0  # failover takes 10 s at most: the broker's session, then an election
REQUEST_TIMEOUT_S = 5.0
CONNECT_S = CONNECTION_S + 1.0  # one silent broker, then another one; short, because the address may simply be wrong
RETRY_BACKOFF_S = 0.1
PARTITION_BYTES = 4 * 1024 * 1024

_GROUPS = {False: ConnectionGroup.DEFAULT, True: ConnectionGroup.COORDINATION}

Target = tuple[str, int]
"""A partition: topic and number."""

T = TypeVar("T")


class Cluster:
    """An open connection while its context is entered.

    Args:
        client_id: as the brokers log it.
        deadline_s: seconds that retriable errors are retried, for each operation.
        connect_s: seconds that the first answer may take; `deadline_s` if that is shorter.
        request_timeout_s: seconds until a request without a response has failed, and its connection is closed.
        measure: called with the client library's client before it connects.

    Attributes:
        bootstrap_servers, deadline_s: as given.
    """

    def __init__(
        self,
        bootstrap_servers: Bootstrap,
        *,
        client_id: str = "once",
        deadline_s: float = DEADLINE_S,
        connect_s: float = CONNECT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        measure: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._client_id = client_id
        self.deadline_s = deadline_s
        self._connect_s = min(connect_s, deadline_s)
        self._request_timeout_s = request_timeout_s
        self._measure = measure
        self._topics: set[str] = set()
        self._client: Any = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect; raises KafkaUnavailableError."""
        with denying_unusable():
            options = client_options(self.bootstrap_servers)
        self._client = Client(
            **options,
            client_id=self._client_id,
            request_timeout_ms=int(self._request_timeout_s * 1000),
            retry_backoff_ms=int(RETRY_BACKOFF_S * 1000),
        )
        self._measure(self._client)
        try:
            await self.retry(self._client.bootstrap, "no broker answers", refresh=False, deadline_s=self._connect_s)
        except BaseException as error:
            await close_connections(self._client)
            if isinstance(error, KafkaUnavailableError):
                await refuse_handshake(self.bootstrap_servers)
            raise

    async def close(self) -> None:
        """Close its connections, if it was opened; nothing more is sent."""
        if self._client is not None:
            await close_connections(self._client)

    async def retry(
        self, attempt: Callable[[], Awaitable[T]], what: str, *, refresh: bool = True, deadline_s: float | None = None
    ) -> T:
        """Try an operation until it succeeds.

        Args:
            attempt: the operation; must be safe to repeat.
            what: description of the failure, for the error.
            refresh: ask for new metadata before each further attempt.
            deadline_s: seconds; None takes the connection's own.

        Raises:
            KafkaUnavailableError: retriable errors only, up to the deadline.
            DeniedError: the brokers deny it to this principal.
            KafkaError: any other error; retrying would not help.
        """
        deadline = time.monotonic() + (self.deadline_s if deadline_s is None else deadline_s)
        outdated = False
        while True:
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), RETRY_BACKOFF_S)):
                    if outdated:
                        await self.refresh()
                    return await attempt()
            except (KafkaError, TimeoutError) as error:
                if is_denied(error):
                    raise denied(self.bootstrap_servers, f"{what}: {error_name(error)} {error}") from error
                if not is_retriable(error):
                    raise
                if time.monotonic() + RETRY_BACKOFF_S >= deadline:
                    detail = str(error) or type(error).__name__
                    raise unavailable(self.bootstrap_servers, f"{what}: {detail}") from error
            await asyncio.sleep(RETRY_BACKOFF_S)
            outdated = refresh

    async def refresh(self) -> None:
        """Ask for new metadata of the topics in use."""
        await self._client.force_metadata_update()

    async def send(self, node_id: int, request: Any, *, coordination: bool = False) -> Any:
        """Send one request to one broker and wait for its response.

        A broker serves the requests of a connection one after the other: `coordination` takes another one.
        """
        return await self._client.send(node_id, request, group=_GROUPS[coordination])

    async def written(self, node_id: int, sending: "asyncio.Future[Any]") -> None:
        """Wait until a request to a coordinator, `sending`, has left the process's own buffer."""
        while not sending.done() and not self._connection(node_id)._requests:  # noqa: SLF001 # a condition of the client's
            await asyncio.sleep(0)
        while not sending.done() and self._connection(node_id)._writer.transport.get_write_buffer_size():  # noqa: SLF001
            await asyncio.sleep(0)

    def _connection(self, node_id: int) -> Any:
        return self._client._conns[node_id, ConnectionGroup.COORDINATION]  # noqa: SLF001 # no public access

    async def send_to_any(self, request: Any) -> Any:
        """Send one request to some broker."""
        return await self._client.send(self._client.get_random_node(), request)

    async def coordinator(self, name: str, *, transactional: bool = False) -> int:
        """Return the broker that coordinates a consumer group, or a transactional.id, as any broker knows it."""
        kind = CoordinationType.TRANSACTION if transactional else CoordinationType.GROUP
        node_id: int = await self._client.coordinator_lookup(kind, name)
        return node_id

    @property
    def brokers(self) -> list[int]:
        """Return the ids of the brokers in the metadata; there is at least one."""
        return [broker.nodeId for broker in self._client.cluster.brokers()]

    @property
    def some_broker(self) -> int:
        """Return the id of one of them."""
        return self.brokers[0]

    async def cluster_id(self) -> str:
        """Return the id that the cluster was given when its storage was formatted (KIP-78)."""

        async def attempt() -> str:
            response = await self.send_to_any(MetadataRequest([]))  # no topics
            found: str = response.cluster_id
            return found

        return await self.retry(attempt, "the cluster's id cannot be read")

    async def partitions(self, topics: Iterable[str]) -> list[Target]:
        """Return all partitions of the topics.

        Raises:
            KafkaUnavailableError: a topic does not exist, or the cluster does not answer.
            DeniedError: this principal may not describe one of them.
        """
        wanted = list(topics)
        self._topics.update(wanted)
        # A copy: the client detects new topics by comparing with the last set it was given
        self._client.set_topics(set(self._topics))

        async def attempt() -> list[Target]:
            found: list[Target] = []
            for topic in wanted:
                numbers = self._client.cluster.partitions_for_topic(topic)
                if numbers is None:
                    await self.refresh()
                    numbers = self._client.cluster.partitions_for_topic(topic)
                if topic in self._client.cluster.unauthorized_topics:
                    raise TopicAuthorizationFailedError(topic)  # waiting would not help
                if not numbers:
                    raise UnknownTopicOrPartitionError(f"topic {topic} does not exist")
                found += [(topic, number) for number in sorted(numbers)]
            return found

        return await self.retry(attempt, "topics cannot be read")

    def by_leader(self, targets: Iterable[Target]) -> dict[int, list[Target]]:
        """Group partitions by the broker that leads them.

        Raises:
            LeaderNotAvailableError: retriable: an election is under way.
        """
        leaders: dict[int, list[Target]] = defaultdict(list)
        for target in targets:
            leader = self.leader(target)
            if leader is None:
                raise LeaderNotAvailableError(f"{target[0]}:{target[1]} has no leader")
            leaders[leader].append(target)
        return leaders

    def leader(self, target: Target) -> int | None:
        """Return the broker that leads a partition; None while the metadata names none."""
        leader: int | None = self._client.cluster.leader_for_partition(TopicPartition(*target))
        return None if leader is None or leader < 0 else leader

    async def offsets(self, targets: Iterable[Target], timestamp: int, *, committed: bool = False) -> dict[Target, int]:
        """Return offsets by timestamp (ListOffsets).

        Args:
            targets: partitions of topics that were passed to `partitions`.
            timestamp: milliseconds since 1970 UTC, or LATEST, or EARLIEST.
            committed: LATEST is the last stable offset, not the high watermark.

        Returns:
            For a time, the first offset at or after it, or -1 when there is none.
        """
        wanted = list(targets)

        async def attempt() -> dict[Target, int]:
            responses = await asyncio.gather(
                *(
                    self.send(
                        node_id, OffsetRequest(-1, int(committed), _by_topic((t, p, timestamp) for t, p in group))
                    )
                    for node_id, group in self.by_leader(wanted).items()
                )
            )
            found: dict[Target, int] = {}
            for response in responses:
                for topic, partitions in response.topics:
                    for partition, error_code, _, offset in partitions:
                        check(error_code, f"{topic}:{partition}")
                        found[topic, partition] = offset
            return found

        return await self.retry(attempt, "offsets cannot be read")

    async def fetch(
        self,
        positions: Mapping[Target, int],
        *,
        committed: bool,
        wait_ms: int = 100,
        partition_bytes: int = PARTITION_BYTES,
    ) -> list[Fetched]:
        """Fetch once from the leader of each partition, all leaders at the same time.

        Args:
            positions: the offset to read from, by partition.
            committed: read_committed; else read_uncommitted.
            wait_ms: milliseconds that a broker without new records may wait.
            partition_bytes: maximum bytes from each partition; at least one batch is returned.
        """

        async def attempt() -> list[Fetched]:
            responses = await asyncio.gather(
                *(
                    self.send(
                        node_id,
                        fetch_request(
                            {target: positions[target] for target in group},
                            committed=committed,
                            wait_ms=wait_ms,
                            partition_bytes=partition_bytes,
                        ),
                    )
                    for node_id, group in self.by_leader(positions).items()
                )
            )
            parts = [part for response in responses for part in fetched(response)]
            for part in parts:
                check(part.error_code, "{}:{}".format(*part.target))
            return parts

        return await self.retry(attempt, "records cannot be read")


def check(error_code: int, what: str) -> None:
    """Raise the error of a response's code, unless it is 0."""
    error = error_for(error_code)
    if error is not NoError:
        raise error(what)


def _by_topic(rows: Iterable[tuple[Any, ...]]) -> list[tuple[str, list[Any]]]:
    grouped: dict[str, list[Any]] = defaultdict(list)
    for topic, *rest in rows:
        grouped[topic].append(tuple(rest))
    return list(grouped.items())
