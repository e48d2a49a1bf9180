"""Reads the identity of topics and logs: topic ids (KIP-516), and the leader epoch at a log's end (KIP-320).

A topic that was deleted and created again has another id. A leader epoch never decreases while the topic exists.
"""

import asyncio
from base64 import urlsafe_b64encode
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from shared.kafka.client.cluster import LATEST, Cluster, Target, check
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values


class LogEnd(NamedTuple):
    """The end of a partition's log as its leader knows it."""

    offset: int
    leader_epoch: int


async def topic_ids(cluster: Cluster, topics: Iterable[str]) -> dict[str, str]:
    """Return the ids of topics by name, in base64 as Kafka's tools print them.

    Raises KafkaUnavailableError: a topic does not exist, or the cluster does not answer.
    """
    asked = {"Topics": [{"Name": name} for name in topics], "AllowAutoTopicCreation": False}

    async def attempt() -> dict[str, str]:
        found = {}
        for topic in (await cluster.send_to_any(Request("Metadata", 12, asked)))["Topics"]:
            check(topic["ErrorCode"], topic["Name"])
            found[topic["Name"]] = urlsafe_b64encode(topic["TopicId"]).rstrip(b"=").decode()
        return found

    return await cluster.retry(attempt, "topic ids cannot be read")


async def stable_ends(cluster: Cluster, targets: Iterable[Target]) -> dict[Target, LogEnd]:
    """Return the last stable offset of each partition, with the leader epoch there (ListOffsets).

    Args:
        cluster: an open connection.
        targets: partitions of topics that were passed to its `partitions`.

    Raises KafkaUnavailableError: the cluster does not answer.
    """
    wanted = list(targets)

    async def attempt() -> dict[Target, LogEnd]:
        responses = await asyncio.gather(
            *(
                cluster.send(node_id, Request("ListOffsets", 5, _latest(group)))
                for node_id, group in cluster.by_leader(wanted).items()
            )
        )
        found = {}
        for response in responses:
            for topic in response["Topics"]:
                for part in topic["Partitions"]:
                    target = topic["Name"], part["PartitionIndex"]
                    check(part["ErrorCode"], "{}:{}".format(*target))
                    found[target] = LogEnd(part["Offset"], part["LeaderEpoch"])
        return found

    return await cluster.retry(attempt, "offsets cannot be read")


def _latest(targets: Iterable[Target]) -> Values:
    by_topic = defaultdict(list)
    for topic, partition in targets:
        by_topic[topic].append({"PartitionIndex": partition, "CurrentLeaderEpoch": -1, "Timestamp": LATEST})
    topics = [{"Name": name, "Partitions": parts} for name, parts in by_topic.items()]
    return {"ReplicaId": -1, "IsolationLevel": 1, "Topics": topics}
