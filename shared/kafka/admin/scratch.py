"""A temporary topic and consumer group: made for one purpose, and deleted afterwards.

Invariant: their name cannot be taken for one of the catalogue's; they are deleted however the work on them ended.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from aiokafka.errors import GroupIdNotFound, NoError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code
from aiokafka.protocol.admin import CreateTopicsRequest, DeleteGroupsRequest, DeleteTopicsRequest
from aiokafka.protocol.metadata import MetadataRequest

from shared.events.catalogue import REPLICATION_FACTOR
from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.errors import unavailable

PREFIX = "once.trace."

_REQUEST_MS = 4_000  # below the time that a request may take
_DEADLINE_S = 30.0
_POLL_S = 0.02
_ASSIGNED = -1  # in place of the numbers that an assignment implies


@asynccontextmanager
async def scratch(cluster: Cluster, partitions: int) -> AsyncIterator[str]:
    """A new topic, known to every broker while the context is entered; it is deleted afterwards.

    A consumer group of the same name is deleted with it, if there is one.

    Args:
        cluster: where to create it.
        partitions: number of partitions.

    Raises KafkaUnavailableError: the cluster does not answer, or not every broker sees the topic in time.
    """
    name = PREFIX + secrets.token_hex(4)
    try:
        await create_topic(cluster, name, partitions)
        yield name
    finally:
        await cluster.retry(lambda: _delete_group(cluster, name), f"group {name} cannot be deleted")
        await delete_topic(cluster, name)


async def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    *,
    replicas: int = REPLICATION_FACTOR,
    on: Sequence[Sequence[int]] = (),
    configs: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create a topic, and wait until every broker knows it. One that exists already stays as it is.

    Args:
        replicas: of each partition; fewer where the cluster has fewer brokers.
        on: in place of a number of replicas, the brokers that have those of each partition, the first leader first.
        configs: of the topic, by Kafka's names.

    Raises KafkaUnavailableError: the cluster does not answer, or not every broker sees the topic in time.
    """
    await cluster.retry(
        lambda: _create(cluster, name, partitions, on or replicas, configs), f"topic {name} cannot be created"
    )
    await _everywhere(cluster, name, partitions)


async def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic, if it is there. Raises KafkaUnavailableError: the cluster does not answer."""
    await cluster.retry(lambda: _delete_topic(cluster, name), f"topic {name} cannot be deleted")


async def existing_topics(cluster: Cluster) -> set[str]:
    """Return the names of all topics, including internal ones. Raises KafkaUnavailableError."""

    async def attempt() -> set[str]:
        response = await cluster.send_to_any(_metadata())
        return {name for error_code, name, *_ in response.topics if for_code(error_code) is NoError}

    return await cluster.retry(attempt, "topics cannot be read")


async def _create(
    cluster: Cluster, name: str, partitions: int, replicas: int | Sequence[Sequence[int]], configs: Mapping[str, str]
) -> None:
    row: tuple[Any, ...]
    if isinstance(replicas, int):
        row = (name, partitions, min(replicas, len(cluster.brokers)), [], list(configs.items()))
    else:
        assigned = [(number, list(nodes)) for number, nodes in enumerate(replicas)]
        row = (name, _ASSIGNED, _ASSIGNED, assigned, list(configs.items()))
    request = CreateTopicsRequest([row], _REQUEST_MS, validate_only=False)
    for topic, error_code, message in (await cluster.send_to_any(request)).topic_errors:
        if for_code(error_code) is not TopicAlreadyExistsError:  # an earlier attempt that was not answered
            check(error_code, f"topic {topic}: {message}")


async def _everywhere(cluster: Cluster, name: str, partitions: int) -> None:
    """Wait until every broker knows the leaders: one that does not would answer a client with an error."""
    deadline = time.monotonic() + _DEADLINE_S
    while not all([await _leaders(cluster, node_id, name) == partitions for node_id in cluster.brokers]):
        if time.monotonic() > deadline:
            raise unavailable(cluster.bootstrap_servers, f"topic {name} has not all its leaders")
        await asyncio.sleep(_POLL_S)


async def _leaders(cluster: Cluster, node_id: int, name: str) -> int:
    """Return how many partitions of the topic have a leader, as one broker sees it."""

    async def attempt() -> int:
        response = await cluster.send(node_id, _metadata())
        found = [partitions for error_code, topic, _, partitions in response.topics if topic == name]
        return sum(leader >= 0 for partitions in found for _, _, leader, *_ in partitions)

    return await cluster.retry(attempt, f"broker {node_id} does not answer")


def _metadata() -> Any:
    # None asks for all topics: asking by name would report one under creation as an error
    return MetadataRequest(None, allow_auto_topic_creation=False)


async def _delete_group(cluster: Cluster, name: str) -> None:
    response = await cluster.send(await cluster.coordinator(name), DeleteGroupsRequest([name]))
    for group, error_code in response.results:
        if for_code(error_code) is not GroupIdNotFound:
            check(error_code, group)


async def _delete_topic(cluster: Cluster, name: str) -> None:
    response = await cluster.send_to_any(DeleteTopicsRequest([name], _REQUEST_MS))
    for topic, error_code in response.topic_error_codes:
        if for_code(error_code) is not UnknownTopicOrPartitionError:  # never made, or gone already
            check(error_code, topic)
