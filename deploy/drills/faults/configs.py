"""Faults of configuration: a topic or a consumer group has another setting until it is healed."""

from deploy.drills.target import Target
from deploy.drills.waiting import eventually
from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.requests import Request

_TOPIC, _GROUP, _SET = 2, 32, 0
"""Of Kafka's types of resources and operations (KIP-339, KIP-848)."""


class TopicConfig:
    """A setting of a topic."""

    _kind = _TOPIC

    def __init__(self, resource: str, setting: str, value: str) -> None:
        self.name = f"{setting}={value} on {resource}"
        self._resource = resource
        self._setting = setting
        self._value = value
        self._before: str | None = None

    async def inject(self, target: Target) -> str:
        """Set it, and wait until every broker has it."""
        async with Cluster(target.access) as cluster:
            before = await self._seen(cluster, cluster.some_broker)
            await self._alter(cluster, self._value)
            self._before = before
        return f"every broker has it; it was {before}"

    async def heal(self, target: Target) -> None:
        """Set what was there before."""
        if self._before is not None:
            async with Cluster(target.access) as cluster:
                await self._alter(cluster, self._before)
            self._before = None

    async def _alter(self, cluster: Cluster, value: str) -> None:
        config = {"Name": self._setting, "ConfigOperation": _SET, "Value": value}
        resource = {"ResourceType": self._kind, "ResourceName": self._resource, "Configs": [config]}
        request = Request("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})

        async def attempt() -> None:
            for answer in (await cluster.send_to_any(request))["Responses"]:
                check(answer["ErrorCode"], f"{self.name}: {answer['ErrorMessage']}")

        await cluster.retry(attempt, f"{self.name} cannot be set")

        async def everywhere() -> bool:
            return all([await self._seen(cluster, node_id) == value for node_id in cluster.brokers])

        await eventually(everywhere, f"every broker has {self.name}")

    async def _seen(self, cluster: Cluster, node_id: int) -> str | None:
        """Return the setting as one broker has it."""
        asked = {"ResourceType": self._kind, "ResourceName": self._resource, "ConfigurationKeys": [self._setting]}
        request = Request("DescribeConfigs", 1, {"Resources": [asked], "IncludeSynonyms": False})
        [described] = (await cluster.retry(lambda: cluster.send(node_id, request), self.name))["Results"]
        check(described["ErrorCode"], self.name)
        [config] = described["Configs"]
        value: str | None = config["Value"]
        return value


class GroupConfig(TopicConfig):
    """A setting of a consumer group."""

    _kind = _GROUP
