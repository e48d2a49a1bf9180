"""Topics that drills need, and by Kafka's own tools quotas, configuration and a partition's leader."""

import json
from collections.abc import Sequence

from deploy.drills.clients.tools import admin_tool
from deploy.local.kafka.cluster import LocalKafka
from shared.kafka.admin import scratch
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Cluster, Target

_CONFIG = "kafka.admin.ConfigCommand"
_REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
_ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
_RESTORING_CLIENT = "once"  # shared.kafka.client.cluster's, by which state is restored
_READ_QUOTA = "consumer_byte_rate"


async def create_topic(
    access: Bootstrap, name: str, partitions: int = 1, *, replicas: int = 3, on: Sequence[int] = (), **configs: str
) -> None:
    """Create a topic, known to every broker.

    Args:
        on: in place of a number of replicas, the brokers that have those of each partition, the first leader first.
        configs: as Kafka names them, with underscores in place of dots, such as min_insync_replicas.
    """
    named = {key.replace("_", "."): value for key, value in configs.items()}
    assigned = [on] * partitions if on else ()
    async with Cluster(access) as cluster:
        await scratch.create_topic(cluster, name, partitions, replicas=replicas, on=assigned, configs=named)


async def delete_topic(access: Bootstrap, name: str) -> None:
    """Delete a topic, if it is there."""
    async with Cluster(access) as cluster:
        await scratch.delete_topic(cluster, name)


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
