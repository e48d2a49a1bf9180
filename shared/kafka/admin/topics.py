"""Administration: topics from the catalogue, and a group's offsets.

Invariant: every function may be called again and completes the remaining work. It knows the catalogue, and no service.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka.errors import (
    InvalidReplicationFactorError,
    NoError,
    TopicAlreadyExistsError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka.protocol.admin import CreateTopicsRequest
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.metadata import MetadataRequest

from shared.events.catalogue import BY_NAME, REPLICATION_FACTOR, TOPICS, Topic
from shared.kafka.admin.installation import ensure_installation
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.errors import TopicMismatchError, is_retriable, unavailable

POLL_S = 0.1
CREATE_TIMEOUT_MS = 4_000  # below the time that a request may take
_NO_GENERATION = -1  # OffsetCommit outside of a membership

Partitions = dict[str, list[int]]
"""By topic, the leader of each partition in order; -1 for none."""


async def ensure_topics(
    bootstrap_servers: Bootstrap,
    partitions: int,
    replication_factor: int = REPLICATION_FACTOR,
    *,
    topics: Sequence[Topic] | None = None,
    deadline_s: float = 30,
) -> list[str]:
    """Create the topics that are missing, and wait until every broker sees a leader for each partition.

    With the catalogue's topics, the installation gets its id. Where it is new, ownership is enforced from its first
    payment on.

    Args:
        partitions: of each topic, ONCE_PARTITIONS.
        replication_factor: replicas of each partition of a topic that is created. It is never taken from the brokers
            that answer: they register one after the other.
        topics: None for those of the catalogue.
        deadline_s: seconds for the topics, and then for each record of the installation.

    Returns:
        The names of the topics created.

    Raises:
        KafkaUnavailableError: no broker answers, or too few are there for the replication factor.
        TopicMismatchError: a topic exists with another number of partitions.
    """
    created = await _ensure(
        bootstrap_servers, partitions, replication_factor, TOPICS if topics is None else topics, deadline_s
    )
    if topics is None:
        await ensure_installation(bootstrap_servers, deadline_s)
    return created


async def _ensure(
    bootstrap_servers: Bootstrap, partitions: int, replication_factor: int, wanted: Sequence[Topic], deadline_s: float
) -> list[str]:
    deadline = time.monotonic() + deadline_s
    created: list[str] = []
    async with Cluster(bootstrap_servers, deadline_s=deadline_s, connect_s=deadline_s) as cluster:
        while True:
            views = [await _describe(cluster, node_id) for node_id in cluster.brokers]
            present = {name for view in views for name in view}
            missing = [topic for topic in wanted if topic.name not in present]
            if views:
                # Before any is created: topics of two counts would be of no use
                _refuse_mismatch(views[0], [topic.name for topic in wanted if topic.name in views[0]], partitions)
            if missing:
                created += await _create(cluster, missing, partitions, replication_factor)
            elif views and all(_complete(view, wanted) for view in views):
                _refuse_mismatch(views[0], [topic.name for topic in wanted], partitions)
                return created
            if time.monotonic() > deadline:
                raise unavailable(
                    bootstrap_servers, f"{_unfinished(len(views), replication_factor)} after {deadline_s:g} s"
                )
            await asyncio.sleep(POLL_S)
            await cluster.refresh()


def _unfinished(brokers: int, replication_factor: int) -> str:
    if brokers < replication_factor:
        return f"each topic has {replication_factor} replicas, and of the brokers for them {brokers} answer"
    return "not every topic has its leaders"


async def replicas_of(bootstrap_servers: Bootstrap, topic: str) -> int:
    """Return the replication factor of a topic.

    Raises:
        TopicMismatchError: it does not exist.
        KafkaUnavailableError: no broker answers.
    """
    async with Cluster(bootstrap_servers) as cluster:
        found = await replicas(cluster)
    if topic not in found:
        raise TopicMismatchError(f"{topic} is missing: create topics with `once up`")
    return found[topic]


async def replicas(cluster: Cluster) -> dict[str, int]:
    """Return the replication factor of each topic."""
    response = await cluster.retry(lambda: cluster.send_to_any(_metadata()), "topics cannot be read")
    return {
        name: min(len(partition[3]) for partition in partitions)
        for error_code, name, _, partitions in response.topics
        if for_code(error_code) is NoError
    }


async def check_topics(bootstrap_servers: Bootstrap, names: Sequence[str], partitions: int) -> None:
    """Refuse a cluster that lacks these topics, or whose partition counts are not `partitions`, ONCE_PARTITIONS.

    Raises:
        TopicMismatchError: a topic is missing, or its partition count differs.
        KafkaUnavailableError: no broker answers.
    """
    async with Cluster(bootstrap_servers) as cluster:
        view = await cluster.retry(lambda: _describe_any(cluster), "topics cannot be read")
    _refuse_mismatch(view, names, partitions)


async def set_group_offsets(
    bootstrap_servers: Bootstrap, group: str, topic: str, offsets: Mapping[int, int], *, deadline_s: float = 30
) -> None:
    """Set a consumer group's committed offsets. The group must be empty; waits until its last member is gone.

    Args:
        group: the consumer group.
        topic: its input.
        offsets: the next offset to read, by partition.
        deadline_s: seconds to wait for the group to be empty.

    Raises KafkaUnavailableError: the cluster does not answer, or the group still has members at the deadline.
    """
    partitions = [(partition, offset, "") for partition, offset in sorted(offsets.items())]
    deadline = time.monotonic() + deadline_s
    async with Cluster(bootstrap_servers) as cluster:

        async def attempt() -> None:
            request = OffsetCommitRequest(group, _NO_GENERATION, "", -1, [(topic, partitions)])
            response = await cluster.send(await cluster.coordinator(group), request)
            for name, results in response.topics:
                for partition, error_code in results:
                    check(error_code, f"{group} {name}:{partition}")

        while True:
            try:
                return await cluster.retry(attempt, f"offsets of group {group} cannot be set")
            except UnknownMemberIdError as error:
                if time.monotonic() > deadline:
                    raise unavailable(bootstrap_servers, f"group {group} still has members: stop them") from error
            await asyncio.sleep(POLL_S)


async def _describe(cluster: Cluster, node_id: int) -> Partitions:
    """Return the topics as one broker sees them; empty when it does not answer."""

    async def attempt() -> Partitions:
        return _view(await cluster.send(node_id, _metadata()))

    return await cluster.retry(attempt, f"broker {node_id} does not answer")


async def _describe_any(cluster: Cluster) -> Partitions:
    return _view(await cluster.send_to_any(_metadata()))


def _metadata() -> Any:
    # None asks for all topics: asking by name would report one under creation as an error
    return MetadataRequest(None, allow_auto_topic_creation=False)


def _view(response: Any) -> Partitions:
    view: Partitions = {}
    for error_code, name, _, partitions in response.topics:
        if for_code(error_code) is NoError:
            leaders = {partition[1]: partition[2] for partition in partitions}
            view[name] = [leaders[number] for number in sorted(leaders)]
    return view


def _complete(view: Partitions, topics: Sequence[Topic]) -> bool:
    return all(topic.name in view and min(view[topic.name], default=-1) >= 0 for topic in topics)


def _refuse_mismatch(view: Partitions, names: Sequence[str], partitions: int) -> None:
    missing = [name for name in names if name not in view]
    if missing:
        how = "once up" if all(name in BY_NAME for name in missing) else "once topics create"
        raise TopicMismatchError(f"{_are(missing)} missing: create topics with `{how}`")
    counts = {name: len(view[name]) for name in names if len(view[name]) != partitions}
    if not counts:
        return
    shown = "; ".join(f"{name} has {count} partitions" for name, count in counts.items())
    found = set(counts.values())
    all_alike = len(found) == 1 and len(counts) == len(names)
    change = f"set ONCE_PARTITIONS to {found.pop()}, or use" if all_alike else "use"
    raise TopicMismatchError(
        f"ONCE_PARTITIONS is {partitions}, and {shown}: {change} an empty cluster. The partitions of an installation "
        "cannot be changed: that would move its accounts"
    )


def _are(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


async def _create(cluster: Cluster, missing: list[Topic], partitions: int, replication_factor: int) -> list[str]:
    requests: list[tuple[Any, ...]] = [
        (topic.name, partitions, replication_factor, [], list(topic.settings(replication_factor).items()))
        for topic in missing
    ]

    async def attempt() -> list[str]:
        response = await cluster.send_to_any(CreateTopicsRequest(requests, CREATE_TIMEOUT_MS, validate_only=False))
        created: list[str] = []
        for name, error_code, message in response.topic_errors:
            error = for_code(error_code)
            if error is NoError:
                created.append(name)
            # Too few brokers have registered yet, or another client was faster: the next look shows which
            elif error not in {TopicAlreadyExistsError, InvalidReplicationFactorError} and not is_retriable(error()):
                raise error(f"topic {name}: {message}")
        return created

    return await cluster.retry(attempt, "topics cannot be created")
