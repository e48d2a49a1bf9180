"""Monitoring of the local stack: Prometheus and the Redis exporter, as supervised processes.

Invariant: both listen on loopback; Prometheus finds the rules of deploy/prometheus and keeps its data and its
names of instances over restarts, within a bound. The exporter signs in to a secured Redis as a user that reads figures
only. The brokers' own part is the agent that LocalKafka loads.

Intervals are short because drills wait for alerts; a production Prometheus takes the same rules at 15 s at most.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from deploy import PROJECT_ROOT
from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.prerequisites import require_prometheus, require_redis_exporter
from deploy.local.process import ManagedProcess
from deploy.local.redis.server import LocalRedis
from deploy.local.supervisor.component import Component, http_ready
from deploy.local.supervisor.state import PROMETHEUS
from deploy.local.supervisor.topology import ServiceSpec
from deploy.security.files import read_password, replace
from deploy.security.principals import REDIS_EXPORTER
from deploy.security.redis_users import EXPORTER
from shared.kafka.client.access import Tls

SCRAPE_INTERVAL_S = 2
BROKER_SCRAPE_INTERVAL_S = 5  # an answer takes a broker more work than a service
KAFKA_JOB = "kafka"
RULES = PROJECT_ROOT / "deploy" / "prometheus" / "rules" / "*.yml"
_RETENTION_TIME = "1d"
_RETENTION_SIZE = "512MB"


@dataclass(frozen=True, slots=True)
class Target:
    """One process that is scraped.

    Attributes:
        job: the service's name, or `kafka`, `redis` or `prometheus`.
        instance: its name among those of the job, the same after a restart on another port.
        port: where it serves /metrics, on loopback.
        labels: further labels of all its series.
    """

    job: str
    instance: str
    port: int
    labels: dict[str, str] = field(default_factory=dict)


def prometheus_yml(targets: Sequence[Target], rules: Path) -> str:
    """The text of prometheus.yml, for targets job by job and an absolute pattern of rule files."""
    jobs = "".join(_job(name, list(members)) for name, members in groupby(targets, lambda target: target.job))
    return f"""\
global:
  scrape_interval: {SCRAPE_INTERVAL_S}s
  scrape_timeout: {SCRAPE_INTERVAL_S}s
  evaluation_interval: {SCRAPE_INTERVAL_S}s
rule_files:
  - {_quoted(str(rules))}
scrape_configs:
{jobs}"""


def _job(name: str, targets: Sequence[Target]) -> str:
    interval_s = BROKER_SCRAPE_INTERVAL_S if name == KAFKA_JOB else SCRAPE_INTERVAL_S
    lines = [f"  - job_name: {_quoted(name)}", f"    scrape_interval: {interval_s}s", "    static_configs:"]
    for target in targets:
        lines += [f"      - targets: [{_quoted(f'{LOOPBACK}:{target.port}')}]", "        labels:"]
        labels = {"instance": target.instance, **target.labels}
        lines += [f"          {label}: {_quoted(value)}" for label, value in labels.items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A JSON string, which YAML reads as the same string whatever is in it."""
    return json.dumps(text)


class RedisExporter:
    """The exporter of one Redis, with its log in `logs`.

    Args:
        port: where it serves /metrics, on loopback.
        directory: for its password file.

    Raises:
        PrerequisiteError: there is no such program on this machine.
    """

    def __init__(self, port: int, redis: LocalRedis, directory: Path, logs: Path) -> None:
        self._redis = redis
        self._password_path = directory / "redis-exporter.json"
        address = f"{LOOPBACK}:{port}"
        argv = [
            require_redis_exporter(),
            f"-redis.addr={redis.url}",
            f"-web.listen-address={address}",
            "-connection-timeout=1s",  # below the scrape's, so that a Redis that hangs counts as down
        ]
        if redis.authority is not None:
            argv += exporter_access(redis.authority.tls(REDIS_EXPORTER), self._password_path)
        process = ManagedProcess("redis-exporter", argv, {}, logs / "redis-exporter.log")
        self.component = Component(process, lambda: http_ready(port, path="/health"), f"http://{address}/metrics")

    def prepare(self) -> None:
        """Write what it reads at its start. A secured Redis must have been started: it makes the password."""
        if self._redis.authority is not None:
            password = read_password(self._redis.password_file(EXPORTER))
            replace(self._password_path, json.dumps({self._redis.url: password}).encode())


def exporter_access(tls: Tls, password_path: Path) -> list[str]:
    """The options by which the exporter signs in to a secured Redis; the file is a JSON object of passwords by URL."""
    return [
        f"-redis.user={EXPORTER.name}",
        f"-redis.password-file={password_path}",
        f"-tls-ca-cert-file={tls.ca_file}",
        f"-tls-client-cert-file={tls.identity_file}",
        f"-tls-client-key-file={tls.identity_file}",
        # It has no right to these: asking at each scrape would fill ACL LOG, which is for what is not expected
        "-set-client-name=false",
        "-config-command=-",
    ]


class Monitoring:
    """The part of a stack that watches it.

    Args:
        directory: for Prometheus' configuration and data.
        kafka: with metrics.
        services: those that run.

    Raises:
        PrerequisiteError: Prometheus or the Redis exporter is missing.
        NoFreePortError: no port.
    """

    def __init__(
        self,
        directory: Path,
        logs: Path,
        kafka: LocalKafka,
        redis: LocalRedis,
        services: Sequence[ServiceSpec],
    ) -> None:
        self._port, exporter_port = free_ports(2)
        self._exporter = RedisExporter(exporter_port, redis, directory, logs)
        self.redis_exporter = self._exporter.component
        self._config_path = directory / "prometheus.yml"
        self._data_path = directory / "data"
        self.prometheus = self._prometheus(logs)
        self._targets = [
            *(Target(spec.name, spec.instance, spec.metrics_port) for spec in services),
            *(
                Target(KAFKA_JOB, f"broker-{node.node_id}", port, {"broker": str(node.node_id)})
                for node, port in zip(kafka.nodes, kafka.metrics_ports, strict=True)
            ),
            Target("redis", "redis-0", exporter_port),
            Target("prometheus", "prometheus-0", self._port),
        ]

    @property
    def url(self) -> str:
        return self.prometheus.endpoint

    @property
    def components(self) -> list[Component]:
        """Both processes: the exporter, Prometheus."""
        return [self.redis_exporter, self.prometheus]

    def start(self) -> None:
        """Write Prometheus' configuration and start all; returns before they are ready."""
        self._data_path.mkdir(parents=True, exist_ok=True)
        self._config_path.write_text(prometheus_yml(self._targets, RULES))
        self._exporter.prepare()
        for component in self.components:
            component.start()

    def _prometheus(self, logs: Path) -> Component:
        address = f"{LOOPBACK}:{self._port}"
        argv = [
            require_prometheus(),
            f"--config.file={self._config_path}",
            f"--storage.tsdb.path={self._data_path}",
            f"--storage.tsdb.retention.time={_RETENTION_TIME}",
            f"--storage.tsdb.retention.size={_RETENTION_SIZE}",
            f"--web.listen-address={address}",
            f"--web.external-url=http://{address}",  # in alerts' links; its default is the machine's name
            "--log.level=warn",
        ]
        process = ManagedProcess(PROMETHEUS, argv, {}, logs / f"{PROMETHEUS}.log")
        return Component(process, lambda: http_ready(self._port, path="/-/ready"), f"http://{address}")
