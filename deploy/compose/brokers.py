"""The brokers: their services, and their server.properties out of the local stack's. Pure.

What holds: a setting of the local brokers, secured, is one of these brokers, but for addresses and paths.
"""

from pathlib import Path
from typing import Final

from deploy.compose import images, places
from deploy.compose.parts import (
    COMPLETED,
    CONFINED,
    Service,
    after,
    built,
    configuration,
    credentials,
    health,
    limits,
    scratch,
)
from deploy.compose.yaml import MERGE
from deploy.local.kafka.broker_config import BrokerAddress, server_properties

HEAP: Final = "${BROKER_HEAP:-512m}"
MEMORY: Final = "${BROKER_MEMORY:-1g}"
_VOLUMES: Final = ("/etc/kafka/secrets", "/var/lib/kafka/data", "/mnt/shared/config")
"""What the published image declares as volumes. Nothing is in them, and each start would leave three nameless ones."""
_NODES: Final = tuple(
    BrokerAddress(node_id, places.KAFKA_PORT, places.CONTROLLER_PORT) for node_id in range(len(places.BROKERS))
)


def properties_name(node_id: int) -> str:
    """The name of a broker's file."""
    return f"{places.BROKERS[node_id]}.properties"


def local_settings(node_id: int) -> dict[str, str]:
    """What the local stack tells the same broker."""
    text = server_properties(node_id, _NODES, Path(places.KAFKA_DATA), places.AS_SEEN)
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def addresses(node_id: int) -> dict[str, str]:
    """What differs from the local stack: everyone has a host of its own."""
    own = places.BROKERS[node_id]
    voters = ",".join(f"{number}@{host}:{places.CONTROLLER_PORT}" for number, host in enumerate(places.BROKERS))
    return {
        "controller.quorum.voters": voters,
        "listeners": f"SSL://:{places.KAFKA_PORT},CONTROLLER://:{places.CONTROLLER_PORT}",
        "advertised.listeners": f"SSL://{own}:{places.KAFKA_PORT}",
    }


def properties(node_id: int) -> str:
    """The text of a broker's server.properties."""
    settings = {**local_settings(node_id), **addresses(node_id)}
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def broker_services() -> dict[str, Service]:
    """One service for each broker, by name."""
    return {name: _broker(node_id, name) for node_id, name in enumerate(places.BROKERS)}


def _broker(node_id: int, name: str) -> Service:
    file = properties_name(node_id)
    return {
        MERGE: [CONFINED],
        **built(images.BROKER, builds=node_id == 0),
        "hostname": name,
        "command": [str(places.CONFIG / file)],
        "environment": {"HEAP": HEAP, "JAVA_MORE": "${BROKER_JAVA_OPTIONS:-}", "HOME": "/tmp"},  # noqa: S108 # a container's, in memory
        "networks": ["kafka", "figures", "spark"],
        "volumes": [
            f"{name}:{places.KAFKA_DATA}",
            credentials(name),
            configuration(file),
            configuration("log4j2.xml"),
        ],
        "tmpfs": [*scratch("64m", executable=True), *(f"{path}:size=4k,ro,nosuid,nodev,noexec" for path in _VOLUMES)],
        "depends_on": after(credentials=COMPLETED),
        # Its listener opens when it is part of the cluster; it ends a connection that says nothing
        "healthcheck": health(["CMD-SHELL", f"nc -w 2 {name} {places.KAFKA_PORT} </dev/null"]),
        # A broker hands its partitions over before it ends
        "stop_grace_period": "60s",
        "deploy": limits(MEMORY, "${BROKER_CPUS:-1.0}", pids=1024),
    }
