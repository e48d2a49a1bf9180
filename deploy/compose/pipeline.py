"""The services that are always there: credentials, topics, Redis, the pipeline and the view; and who runs commands.

Pure. What a service is connected to comes from the local stack's topology; where it listens is said here.
"""

from pathlib import Path
from typing import Final

from deploy.compose import images, places
from deploy.compose.parts import (
    COMPLETED,
    CONFINED,
    HEALTHY,
    ONE_SHOT,
    Service,
    after,
    built,
    configuration,
    credentials,
    health,
    limits,
    needs,
    ready,
    scratch,
)
from deploy.compose.yaml import MERGE, Value
from deploy.local.supervisor.topology import HTTP_PORTS, SERVICES, VIEW, Endpoints, connections

CHAOS: Final = "chaos"
OPERATOR_PROFILE: Final = "operator"
CREDENTIALS: Final = "credentials"
TOPICS: Final = "topics"
API_KEYS: Final = "api-keys"
"""The gateway's file of its clients' keys."""

ENDPOINTS: Final = Endpoints(
    bootstrap_servers=places.BOOTSTRAP_SERVERS,
    redis_url=f"rediss://{places.REDIS}:{places.REDIS_PORT}/0",
    effects_directory=Path(places.EFFECTS),
    webhook_key_file=Path(places.OWN / "webhook.key"),
    view_file=Path(places.VIEW / "balances.sqlite"),
    authority=places.AS_SEEN,
    redis_password_file=Path(places.REDIS_PASSWORD),
)
CRASHING: Final = {
    "ingest": "after_send=kill:400",
    "transform": "after_offsets=kill:400",
    "ledger": "end_txn_sent=kill:400",
    "outbox": "before_call=kill:400",
}
"""Where the second member of each group kills itself under the profile chaos, in mid-transaction, again and again."""

_HOSTS: Final = {"gateway": "ONCE_GATEWAY_HOST", VIEW: "ONCE_VIEW_HOST"}
_PORTS: Final = {"gateway": places.GATEWAY_PORT, VIEW: places.VIEW_PORT}
_PUBLISHED: Final = {"gateway": "${GATEWAY_PORT:-8080}", VIEW: "${PAGE_PORT:-8090}"}
_KEPT: Final = {"outbox": f"effects:{places.EFFECTS}", VIEW: f"view:{places.VIEW}"}
_NETWORKS: Final = {
    "gateway": ["kafka", "figures", "edge"],
    "outbox": ["kafka", "figures", "redis", "edge"],  # its webhooks and mails go out
    VIEW: ["kafka", "figures", "edge"],
}
_MEMORY: Final = {"ingest": "512m", "ledger": "512m"}
_STOP_GRACE_S: Final = 20
"""Longer than ONCE_STOP_DEADLINE_S, the outbox's too, and what a stop takes besides."""
ANY: Final = "0.0.0.0"  # noqa: S104 # within the container's networks; what is published is said by `ports`


def pipeline_services() -> dict[str, Service]:
    """All of them by name, in the order in which records pass."""
    return {
        CREDENTIALS: _credentials(),
        TOPICS: _topics(),
        places.REDIS: _redis(),
        **{name: service(name) for name in SERVICES},
        **{f"{name}-chaos": _crashing(name, point) for name, point in CRASHING.items()},
        places.OPERATOR: _operator(),
    }


def environment(name: str) -> dict[str, str]:
    """The settings of a service."""
    settings = {
        **connections(name, ENDPOINTS),
        "ONCE_INSTANCE": "0",
        "ONCE_METRICS_HOST": ANY,
        "ONCE_METRICS_PORT": str(places.METRICS_PORT),
        "ONCE_LOG_LEVEL": "${LOG_LEVEL:-INFO}",
    }
    if name == "gateway":
        settings["ONCE_GATEWAY_API_KEYS_FILE"] = str(places.OWN / API_KEYS)
    if name in HTTP_PORTS:
        settings |= {_HOSTS[name]: ANY, HTTP_PORTS[name]: str(_PORTS[name])}
    if name == VIEW:
        watched = [f"{other}={other}:{places.METRICS_PORT}" for other in SERVICES if other != VIEW]
        settings["ONCE_VIEW_WATCHED"] = ",".join(watched)
    return settings


def service(name: str) -> Service:
    """One of SERVICES or OBSERVERS."""
    made: Service = {
        MERGE: [CONFINED],
        **built(images.SERVICES),
        "command": ["python", "-m", f"services.{name}"],
        "environment": dict(environment(name)),
        "networks": _NETWORKS.get(name, ["kafka", "figures"]),
        "volumes": [credentials(name), *([_KEPT[name]] if name in _KEPT else [])],
        "tmpfs": scratch(),
        "depends_on": after(topics=COMPLETED, **({"redis": HEALTHY} if name == "outbox" else {})),
        "healthcheck": health(ready(places.METRICS_PORT)),
        "stop_grace_period": f"{_STOP_GRACE_S}s",
        "deploy": limits(_MEMORY.get(name, "384m"), "1.0"),
    }
    if name in _PUBLISHED:
        made["ports"] = [f"${{PUBLISH_ADDRESS:-127.0.0.1}}:{_PUBLISHED[name]}:{_PORTS[name]}"]
    return made


def _crashing(name: str, point: str) -> Service:
    """A second member of a service's group that ends in mid-transaction, comes back, and ends again."""
    made = service(name)
    settings: dict[str, Value] = {**environment(name), "ONCE_INSTANCE": "chaos", "ONCE_CRASH_POINT": point}
    return {**made, "profiles": [CHAOS], "environment": settings, "restart": "always"}


def _credentials() -> Service:
    """Makes what is missing of everyone's credentials, each into a volume of its own."""
    return {
        MERGE: [ONE_SHOT],
        **built(images.SERVICES, builds=True),
        "entrypoint": ["python", "-m", "deploy.compose.credentials"],
        "command": [],
        "network_mode": "none",
        "volumes": [
            f"authority:{places.AUTHORITY}",
            *(f"{places.credentials_volume(name)}:{places.CREDENTIALS / name}" for name in places.HOLDERS),
        ],
        "tmpfs": scratch(),
        "deploy": limits("256m", "1.0"),
    }


def _topics() -> Service:
    return {
        MERGE: [ONE_SHOT],
        **built(images.SERVICES),
        "command": ["python", "-m", "deploy.compose.topics"],
        "environment": dict(connections(places.OPERATOR, ENDPOINTS)),
        "networks": ["kafka"],
        "volumes": [credentials(places.OPERATOR)],
        "tmpfs": scratch(),
        "depends_on": needs(dict.fromkeys(places.BROKERS, HEALTHY)),
        "deploy": limits("256m", "1.0"),
    }


def _redis() -> Service:
    return {
        MERGE: [CONFINED],
        "image": images.REDIS,
        "command": ["redis-server", str(places.CONFIG / "redis.conf")],
        "user": images.REDIS_USER,
        "group_add": [images.READERS],
        "networks": ["redis"],
        "volumes": [
            f"redis:{places.REDIS_DATA}",
            credentials(places.REDIS),
            configuration("redis.conf"),
            configuration("redis-healthy.sh"),
        ],
        "tmpfs": scratch(),
        "depends_on": after(credentials=COMPLETED),
        "healthcheck": health(["CMD", "sh", f"{places.CONFIG}/redis-healthy.sh"]),
        # It writes its log to the end first
        "stop_grace_period": "30s",
        "deploy": limits("768m", "1.0"),  # twice maxmemory, while it rewrites its log, and some more
    }


def _operator() -> Service:
    """Runs a command: `docker compose run --rm operator verify`."""
    return {
        MERGE: [ONE_SHOT],
        **built(images.SERVICES),
        "profiles": [OPERATOR_PROFILE],
        "entrypoint": ["once"],
        "command": ["--help"],
        "environment": dict(connections(places.OPERATOR, ENDPOINTS)),
        "networks": ["kafka"],
        "volumes": [credentials(places.OPERATOR), f"effects:{places.EFFECTS}:ro"],
        "tmpfs": scratch(),
        "depends_on": after(topics=COMPLETED),
        "deploy": limits("1g", "1.0"),
    }
