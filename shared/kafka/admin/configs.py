"""Settings of brokers, topics and groups: read, compared with the catalogue, and changed one by one (KIP-339)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from shared.events.catalogue import TOPICS, Topic
from shared.kafka.admin.topics import replicas
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.requests import Request

TOPIC: Final = 2
"""Of ConfigResource.Type."""
_BROKER: Final = 4
_SET, _DELETE = 0, 1
"""Of AlterConfigOp.OpType."""


async def broker_config(bootstrap_servers: Bootstrap, name: str) -> str:
    """Return the value of a broker's setting, such as transaction.max.timeout.ms, as one broker has it.

    Raises:
        KafkaUnavailableError: no broker answers.
        LookupError: the broker knows no such setting.
    """
    async with Cluster(bootstrap_servers) as cluster:
        found = await _config(cluster, _BROKER, None, name)
    if found is None:
        raise LookupError(f"the brokers have no setting {name}")
    return found


async def topic_config(bootstrap_servers: Bootstrap, topic: str, name: str) -> str:
    """Return the value of a topic's setting, such as retention.ms, its own or the brokers' default.

    Raises:
        KafkaUnavailableError: no broker answers.
        LookupError: topics have no such setting.
    """
    async with Cluster(bootstrap_servers) as cluster:
        found = await _config(cluster, TOPIC, topic, name)
    if found is None:
        raise LookupError(f"topic {topic} has no setting {name}")
    return found


async def compaction_lag_ms(bootstrap_servers: Bootstrap, topics: Iterable[str]) -> int:
    """Return how long each of the topics keeps superseded records at least.

    Raises KafkaUnavailableError: no broker answers.
    """
    return min([int(await topic_config(bootstrap_servers, topic, "min.compaction.lag.ms")) for topic in topics])


class Difference(NamedTuple):
    """A topic's setting that is not as the catalogue says."""

    topic: str
    setting: str  # Kafka's name
    found: str | None
    wanted: str


async def configure_topics(
    bootstrap_servers: Bootstrap, topics: Sequence[Topic] = TOPICS, *, change: bool = True
) -> list[Difference]:
    """Give existing topics the settings of the catalogue, and return what differed. Other settings stay (KIP-339).

    Args:
        topics: those to compare; of these, topics that do not exist are left out.
        change: whether to set them, or only to compare.

    Raises:
        DeniedError: the principal may not read or change topics' settings.
        KafkaUnavailableError: no broker answers.
    """
    async with Cluster(bootstrap_servers) as cluster:
        factors = await replicas(cluster)
        wanted = {topic.name: topic.settings(factors[topic.name]) for topic in topics if topic.name in factors}
        found = await _configs(cluster, TOPIC, {name: list(settings) for name, settings in wanted.items()})
        differences = [
            Difference(name, setting, found[name].get(setting), value)
            for name, settings in wanted.items()
            for setting, value in settings.items()
            if found[name].get(setting) != value
        ]
        if change:
            changes: dict[str, dict[str, str | None]] = {}
            for one in differences:
                changes.setdefault(one.topic, {})[one.setting] = one.wanted
            await alter_configs(cluster, TOPIC, changes)
    return differences


async def alter_configs(cluster: Cluster, resource_type: int, changes: Mapping[str, Mapping[str, str | None]]) -> None:
    """Set some settings of resources, and leave the others; None deletes one, so that its default is in force.

    Raises:
        DeniedError: the principal may not change them.
        KafkaUnavailableError: no broker answers.
    """
    resources = [
        {
            "ResourceType": resource_type,
            "ResourceName": name,
            "Configs": [
                {"Name": setting, "ConfigOperation": _DELETE if value is None else _SET, "Value": value}
                for setting, value in settings.items()
            ],
        }
        for name, settings in changes.items()
    ]
    request = Request("IncrementalAlterConfigs", 1, {"Resources": resources, "ValidateOnly": False})

    async def attempt() -> None:
        for answer in (await cluster.send_to_any(request))["Responses"]:
            check(answer["ErrorCode"], f"{answer['ResourceName']}: {answer['ErrorMessage']}")

    if resources:
        await cluster.retry(attempt, f"settings of {', '.join(changes)} cannot be changed")


async def _config(cluster: Cluster, resource_type: int, resource: str | None, name: str) -> str | None:
    """Return a setting's value; None for `resource` is the broker that is asked."""
    [found] = (await _configs(cluster, resource_type, {resource: [name]})).values()
    return found.get(name)


async def _configs(
    cluster: Cluster, resource_type: int, names: Mapping[str | None, Sequence[str]]
) -> dict[str, dict[str, str]]:
    """Return values of settings by resource and name, of one broker; a setting that it does not know is left out."""

    async def attempt() -> dict[str, dict[str, str]]:
        broker = cluster.some_broker
        asked = [
            {
                "ResourceType": resource_type,
                "ResourceName": str(broker) if resource is None else resource,
                "ConfigurationKeys": some,
            }
            for resource, some in names.items()
        ]
        request = Request("DescribeConfigs", 1, {"Resources": asked, "IncludeSynonyms": False})
        results = (await cluster.send(broker, request))["Results"]
        for result in results:
            check(result["ErrorCode"], result["ErrorMessage"] or result["ResourceName"])
        return {
            result["ResourceName"]: {
                config["Name"]: config["Value"] for config in result["Configs"] if config["Value"] is not None
            }
            for result in results
        }

    return await cluster.retry(attempt, "settings cannot be read")
