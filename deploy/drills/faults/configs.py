"""Faults of configuration: a topic has another setting until it is healed."""

import asyncio
from typing import Final

from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.target import Target
from shared.kafka.admin.topics import topic_config
from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.requests import Request

_TOPIC, _SET = 2, 0
"""Of Kafka's types of resources and operations (KIP-339)."""
_SEEN_S: Final = 30.0
_POLL_S: Final = 0.1


class TopicConfig:
    """A setting of a topic."""

    def __init__(self, topic: str, setting: str, value: str) -> None:
        self.name = f"{setting}={value} on {topic}"
        self._topic = topic
        self._setting = setting
        self._value = value
        self._before: str | None = None

    async def inject(self, target: Target) -> str:
        """Set it, and wait until every broker has it."""
        self._before = await topic_config(target.access, self._topic, self._setting)
        if self._before == self._value:
            raise NoEvidenceError(f"{self.name} before as well")
        await self._alter(target, self._value)
        return f"every broker has it; it was {self._before}"

    async def heal(self, target: Target) -> None:
        """Set what was there before."""
        if self._before is not None:
            await self._alter(target, self._before)
            self._before = None

    async def _alter(self, target: Target, value: str) -> None:
        config = {"Name": self._setting, "ConfigOperation": _SET, "Value": value}
        resource = {"ResourceType": _TOPIC, "ResourceName": self._topic, "Configs": [config]}
        request = Request("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
        async with Cluster(target.access) as cluster:

            async def attempt() -> None:
                for answer in (await cluster.send_to_any(request))["Responses"]:
                    check(answer["ErrorCode"], f"{self.name}: {answer['ErrorMessage']}")

            await cluster.retry(attempt, f"{self.name} cannot be set")
            async with asyncio.timeout(_SEEN_S):
                for node_id in cluster.brokers:
                    while await self._seen(cluster, node_id) != value:
                        await asyncio.sleep(_POLL_S)

    async def _seen(self, cluster: Cluster, node_id: int) -> str | None:
        """Return the setting as one broker has it."""
        asked = {"ResourceType": _TOPIC, "ResourceName": self._topic, "ConfigurationKeys": [self._setting]}
        request = Request("DescribeConfigs", 1, {"Resources": [asked], "IncludeSynonyms": False})
        [described] = (await cluster.retry(lambda: cluster.send(node_id, request), self.name))["Results"]
        check(described["ErrorCode"], self.name)
        [config] = described["Configs"]
        value: str | None = config["Value"]
        return value
