"""Topology of the local stack: its services, how each is started, and where each listens.

Pure: ports and addresses come in as arguments.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.local.ports import LOOPBACK, LOOPBACK_NETWORK
from deploy.security.certificates import Authority
from deploy.security.redis_users import OUTBOX
from shared.kafka.client.access import Tls

VIEW = "balances"
GATEWAY = "gateway"
MONITOR = "monitor"
SERVICES = (GATEWAY, "ingest", "transform", "ledger", "outbox", VIEW, MONITOR)
HTTP_PORTS = {GATEWAY: "ONCE_GATEWAY_PORT", VIEW: "ONCE_VIEW_PORT"}
"""Services with an HTTP interface of their own, each with the variable of its port."""
_INSTANCE = "0"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses and files that the services use.

    Attributes:
        effects_directory: where its file: destinations are.
        webhook_key_file: what its webhooks are signed with.
        api_keys_file: keys of the gateway's clients.
        partitions: of each topic.
        authority: that issued an identity for each of them; None where nothing is secured.
        redis_password_file: of the outbox's user; None for a Redis without users.
    """

    bootstrap_servers: str
    redis_url: str
    effects_directory: Path
    webhook_key_file: Path
    view_file: Path
    api_keys_file: Path
    partitions: int
    authority: Authority | None = None
    redis_password_file: Path | None = None


class UnknownServiceError(ValueError):
    """A service was asked for that is not in SERVICES."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """Command line and settings of one service.

    Attributes:
        instance: its name in logs and metrics.
        metrics_port: where it serves /metrics, /healthz and /readyz, on loopback.
        endpoint: the URL to show: its HTTP interface if it has one, else its metrics.
    """

    name: str
    instance: str
    argv: tuple[str, ...]
    environment: dict[str, str]
    metrics_port: int
    endpoint: str


def ports_needed(names: Sequence[str]) -> int:
    """Number of ports that these services take."""
    return len(names) + sum(name in HTTP_PORTS for name in names)


def service_specs(names: Sequence[str], endpoints: Endpoints, ports: Sequence[int]) -> list[ServiceSpec]:
    """One specification for each service, in the order of SERVICES; takes `ports_needed(names)` of the ports."""
    unknown = sorted(set(names) - set(SERVICES))
    if unknown:
        raise UnknownServiceError(f"no service {', '.join(unknown)}; there are {', '.join(SERVICES)}")
    free = iter(ports)
    specs = [_spec(name, endpoints, free) for name in SERVICES if name in names]
    watched = ",".join(f"{spec.name}={LOOPBACK}:{spec.metrics_port}" for spec in specs if spec.name != VIEW)
    view = next((spec for spec in specs if spec.name == VIEW), None)
    gateway = next((spec for spec in specs if spec.name == GATEWAY), None)
    if view is not None:
        view.environment["ONCE_VIEW_WATCHED"] = watched
    if view is not None and gateway is not None:
        gateway.environment["ONCE_GATEWAY_VIEW_URL"] = view.endpoint
    return specs


def connections(name: str, endpoints: Endpoints) -> dict[str, str]:
    """The settings of a service that say what it is connected to, wherever it runs."""
    environment = {
        "ONCE_BOOTSTRAP_SERVERS": endpoints.bootstrap_servers,
        "ONCE_PARTITIONS": str(endpoints.partitions),
        **_tls(name, endpoints.authority),
    }
    if name == "outbox":
        environment |= {
            "ONCE_REDIS_URL": endpoints.redis_url,
            "ONCE_OUTBOX_FILE_DIRECTORY": str(endpoints.effects_directory),
            "ONCE_WEBHOOK_KEY_FILE": str(endpoints.webhook_key_file),
            "ONCE_WEBHOOK_PREVIOUS_KEY_FILE": str(endpoints.webhook_key_file.with_suffix(".previous.key")),
            "ONCE_WEBHOOK_ALLOWED_NETWORKS": LOOPBACK_NETWORK,  # receivers on the machine of a local stack
            **_redis_user(endpoints.redis_password_file),
        }
    if name == GATEWAY:
        environment["ONCE_GATEWAY_API_KEYS_FILE"] = str(endpoints.api_keys_file)
    if name == VIEW:
        environment["ONCE_VIEW_DATABASE"] = f"sqlite:///{endpoints.view_file}"
    return environment


def _spec(name: str, endpoints: Endpoints, free: Iterator[int]) -> ServiceSpec:
    metrics_port = next(free)
    environment = connections(name, endpoints)
    environment |= {"ONCE_INSTANCE": _INSTANCE, "ONCE_METRICS_PORT": str(metrics_port)}
    endpoint = f"http://{LOOPBACK}:{metrics_port}/metrics"
    if name in HTTP_PORTS:
        port = next(free)
        environment[HTTP_PORTS[name]] = str(port)
        endpoint = f"http://{LOOPBACK}:{port}"
    argv = (sys.executable, "-m", f"services.{name}")
    return ServiceSpec(name, f"{name}-{_INSTANCE}", argv, environment, metrics_port, endpoint)


def _tls(name: str, authority: Authority | None) -> dict[str, str]:
    """The files of a service; named empty where there are none, for the supervisor's own environment is handed on."""
    tls = Tls("", "") if authority is None else authority.tls(name)
    return {"ONCE_TLS_CA_FILE": tls.ca_file, "ONCE_TLS_IDENTITY_FILE": tls.identity_file}


def _redis_user(password_file: Path | None) -> dict[str, str]:
    """The outbox's user in Redis; named empty for a Redis without users, as for `_tls`."""
    name, path = ("", "") if password_file is None else (OUTBOX.name, str(password_file))
    return {"ONCE_REDIS_USERNAME": name, "ONCE_REDIS_PASSWORD_FILE": path}
