"""Topics and dynamic configuration that drills need, by Kafka's own tools."""

import json

from deploy.drills.clients.tools import admin_tool
from deploy.local.kafka.cluster import LocalKafka
from shared.kafka.client.cluster import Target

_CONFIG = "kafka.admin.ConfigCommand"
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
_ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
_TOPICS = "org.apache.kafka.tools.TopicCommand"
_RESTORING_CLIENT = "once"  # shared.kafka.client.cluster's, by which state is restored
_READ_QUOTA = "consumer_byte_rate"


async def create_topic(kafka: LocalKafka, name: str, replicas: str, *settings: str) -> None:
    """Create a topic of one partition.

    Args:
        kafka: the cluster.
        name: of a topic that is used nowhere else.
        replicas: node ids of its replicas, `0:1:2`; the first one leads.
        settings: of the topic, `name=value`.
    """
    words = [word for setting in settings for word in ("--config", setting)]
    await admin_tool(kafka, _TOPICS, "--create", "--topic", name, "--replica-assignment", replicas, *words)


async def delete_topic(kafka: LocalKafka, name: str) -> None:
    """Delete a topic, if it is there."""
    await admin_tool(kafka, _TOPICS, "--delete", "--if-exists", "--topic", name)


async def configure(kafka: LocalKafka, kind: str, name: str, setting: str) -> None:
    """Set `name=value` for one entity of a kind: topics, clients."""
    entity = ("--entity-type", kind, "--entity-name", name)
    await admin_tool(kafka, _CONFIG, "--alter", *entity, "--add-config", setting)


async def unconfigure(kafka: LocalKafka, kind: str, name: str, setting: str) -> None:
    """Delete a setting that `configure` made, named alone."""
    await admin_tool(
        kafka, _CONFIG, "--alter", "--entity-type", kind, "--entity-name", name, "--delete-config", setting
    )


async def slow_restores(kafka: LocalKafka, bytes_per_s: int) -> None:
    """Let no broker send more of a changelog than this to services that restore their state, until `free_restores`."""
    await configure(kafka, "clients", _RESTORING_CLIENT, f"{_READ_QUOTA}={bytes_per_s}")


async def free_restores(kafka: LocalKafka) -> None:
    """Remove the limit of `slow_restores`."""
    await unconfigure(kafka, "clients", _RESTORING_CLIENT, _READ_QUOTA)


async def move_leader(kafka: LocalKafka, target: Target, replicas: list[int]) -> None:
    """Have the first of its replicas lead a partition, as docs/runbooks/ProducerInitStalled.md does it.

    Args:
        kafka: the cluster.
        target: the partition.
        replicas: node ids of the replicas that it has, in the new order.
    """
    topic, partition = target
    plan = kafka.directory / f"leader-{topic}-{partition}.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": partition, "replicas": replicas}]})
    )
    await admin_tool(kafka, _REASSIGN, "--reassignment-json-file", str(plan), "--execute")
    words = ["--election-type", "preferred", "--topic", topic, "--partition", str(partition)]
    await admin_tool(kafka, _ELECT, *words)
