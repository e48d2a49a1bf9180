"""Topics, broker settings and group offsets."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaConnectionError, KafkaError

from shared.events.catalogue import BY_NAME, PARTITIONS, REPLICATION_FACTOR, TOPICS
from shared.kafka.errors import KafkaUnavailableError, TopicMismatchError

TOPIC_ALREADY_EXISTS = 36
POLL_S = 0.1


@asynccontextmanager
async def _client(bootstrap_servers: str) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        await client.start()
        yield client
    except KafkaConnectionError as error:
        raise KafkaUnavailableError(f"no broker answers at {bootstrap_servers}: start the stack with `once up`") from error
    finally:
        await client.close()


async def ensure_topics(bootstrap_servers: str, *, deadline_s: float = 30) -> list[str]:
    """Create the catalogue's topics that are missing, and wait until every partition has a leader.

    Returns:
        The names of the topics that were created.

    Raises:
        KafkaUnavailableError: no broker answers, or leaders are missing after `deadline_s` seconds.
        TopicMismatchError: a topic that exists differs from the catalogue, or one was refused.
    """
    end = time.monotonic() + deadline_s
    async with _client(bootstrap_servers) as client:
        known = set(await client.list_topics())
        missing = [topic for topic in TOPICS if topic.name not in known]
        if missing:
            answer = await client.create_topics(
                [
                    NewTopic(topic.name, PARTITIONS, REPLICATION_FACTOR, topic_configs=topic.settings())
                    for topic in missing
                ]
            )
            for name, code, *rest in answer.topic_errors:
                if code not in {0, TOPIC_ALREADY_EXISTS}:
                    raise TopicMismatchError(f"topic {name} was refused with error {code}: {rest}")
        while not await _led(client):
            if time.monotonic() > end:
                raise KafkaUnavailableError(f"topics have no leader after {deadline_s} s")
            await asyncio.sleep(POLL_S)
    await check_topics(bootstrap_servers, list(BY_NAME))
    return [topic.name for topic in missing]


async def _led(client: Any) -> bool:
    topics = await client.describe_topics(list(BY_NAME))
    return all(
        topic["error_code"] == 0
        and len(topic["partitions"]) >= 1
        and all(partition["error_code"] == 0 and partition["leader"] >= 0 for partition in topic["partitions"])
        for topic in topics
    )


async def check_topics(bootstrap_servers: str, names: Sequence[str]) -> None:
    """Compare topics with the catalogue.

    Raises:
        TopicMismatchError: a topic is missing or has another number of partitions.
        KafkaUnavailableError: no broker answers.
    """
    async with _client(bootstrap_servers) as client:
        found = {topic["topic"]: len(topic["partitions"]) for topic in await client.describe_topics(list(names))}
    wrong = [f"{name} has {found.get(name, 0)}" for name in names if found.get(name, 0) != PARTITIONS]
    if wrong:
        raise TopicMismatchError(f"every topic must have {PARTITIONS} partitions: {', '.join(wrong)}")


async def broker_config(bootstrap_servers: str, name: str) -> str:
    """The value of a broker setting, as the first broker has it.

    Raises:
        KafkaUnavailableError: no broker answers.
    """
    async with _client(bootstrap_servers) as client:
        cluster = await client.describe_cluster()
        node = str(cluster["brokers"][0]["node_id"])
        [answer] = await client.describe_configs([ConfigResource(ConfigResourceType.BROKER, node, {name: None})])
        for resource in answer.resources:
            for entry in resource[4]:
                if entry[0] == name:
                    return str(entry[1])
    raise KafkaUnavailableError(f"broker {node} does not tell {name}")


async def set_group_offsets(
    bootstrap_servers: str, group: str, topic: str, offsets: Mapping[int, int], *, deadline_s: float
) -> None:
    """Set a group's committed offsets, once the group is empty.

    Args:
        offsets: by partition.
        deadline_s: how long to wait for the group's last member to leave.

    Raises:
        KafkaUnavailableError: the group is not empty by then, or no broker answers.
    """
    end = time.monotonic() + deadline_s
    async with _client(bootstrap_servers) as client:
        while True:
            [answer] = await client.describe_consumer_groups([group])
            if answer.groups[0][2] in {"Empty", "Dead"}:
                break
            if time.monotonic() > end:
                raise KafkaUnavailableError(f"group {group} still has members after {deadline_s} s")
            await asyncio.sleep(POLL_S)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        targets = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        consumer.assign(list(targets))
        await consumer.commit(targets)
    except KafkaError as error:
        raise KafkaUnavailableError(f"offsets of {group} were not set: {error!r}") from error
    finally:
        await consumer.stop()
