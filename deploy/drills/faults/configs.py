"""Faults of configuration: a topic or a consumer group has another setting until it is healed."""

from typing import Final, NamedTuple

from deploy.drills.target import Target
from deploy.drills.waiting import eventually
from shared.kafka.admin.configs import TOPIC, alter_configs
from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.requests import Request

_GROUP: Final = 32
"""Of Kafka's types of resources (KIP-848)."""
_OWN: Final = frozenset({1, 8})
"""Of Kafka's sources of a setting: DYNAMIC_TOPIC_CONFIG and GROUP_CONFIG."""


class _Setting(NamedTuple):
    """A setting as a broker has it."""

    value: str | None
    is_own: bool  # set for the resource itself, and not a default


class TopicConfig:
    """A setting of a topic."""

    _kind = TOPIC

    def __init__(self, resource: str, setting: str, value: str) -> None:
        self.name = f"{setting}={value} on {resource}"
        self._resource = resource
        self._setting = setting
        self._value = value
        self._before: _Setting | None = None

    async def inject(self, target: Target) -> str:
        """Set it, and wait until every broker has it."""
        async with Cluster(target.access) as cluster:
            self._before = before = await self._seen(cluster, cluster.some_broker)
            await self._alter(cluster, self._value, expected=self._value)
        return f"every broker has it; it was {before.value}"

    async def heal(self, target: Target) -> None:
        """Set what was there before; a default is in force again without a setting of its own."""
        if self._before is not None:
            own = self._before.value if self._before.is_own else None
            async with Cluster(target.access) as cluster:
                await self._alter(cluster, own, expected=self._before.value)
            self._before = None

    async def _alter(self, cluster: Cluster, value: str | None, *, expected: str | None) -> None:
        """Set it, or delete it with None, and wait until every broker has what is expected."""
        await alter_configs(cluster, self._kind, {self._resource: {self._setting: value}})

        async def everywhere() -> bool:
            return all([(await self._seen(cluster, node_id)).value == expected for node_id in cluster.brokers])

        await eventually(everywhere, f"every broker has {self._setting}={expected} on {self._resource}")

    async def _seen(self, cluster: Cluster, node_id: int) -> _Setting:
        """Return the setting as one broker has it."""
        asked = {"ResourceType": self._kind, "ResourceName": self._resource, "ConfigurationKeys": [self._setting]}
        request = Request("DescribeConfigs", 1, {"Resources": [asked], "IncludeSynonyms": False})
        [described] = (await cluster.retry(lambda: cluster.send(node_id, request), self.name))["Results"]
        check(described["ErrorCode"], self.name)
        [config] = described["Configs"]
        return _Setting(config["Value"], config["ConfigSource"] in _OWN)


class GroupConfig(TopicConfig):
    """A setting of a consumer group."""

    _kind = _GROUP
