"""Monitoring of the local stack: Prometheus, the Redis exporter and the observers, as supervised processes.

Invariant: all of them listen on loopback; Prometheus finds the rules of deploy/prometheus and keeps its data and its
names of instances over restarts, within a bound. The brokers' own part is the agent that LocalKafka loads.

Intervals are short because drills wait for alerts; a production Prometheus takes the same rules at 15 or 30 s.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from deploy.local.kafka.cluster import LocalKafka
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.prerequisites import require_prometheus
from deploy.local.process import ManagedProcess
from deploy.local.redis.exporter import RedisExporter
from deploy.local.redis.server import LocalRedis
from deploy.local.supervisor.component import Component, http_ready
from deploy.local.supervisor.services import service_component
from deploy.local.supervisor.state import PROMETHEUS
from deploy.local.supervisor.topology import OBSERVERS, Endpoints, ServiceSpec, observer_specs, ports_needed

SCRAPE_INTERVAL_S = 2
BROKER_SCRAPE_INTERVAL_S = 5  # an answer takes a broker more work than a service
KAFKA_JOB = "kafka"


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
    """The text of prometheus.yml.

    Args:
        targets: those of one job follow each other.
        rules: a pattern of rule files, absolute.
    """
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


RULES = Path(__file__).parents[2] / "prometheus" / "rules" / "*.yml"
_RETENTION_TIME = "1d"
_RETENTION_SIZE = "512MB"


class Monitoring:
    """The watching part of a stack.

    Args:
        directory: for Prometheus' configuration and data.
        logs: the directory of the logs.
        kafka: with metrics.
        redis: the outbox's.
        services: those that run.
        endpoints: what the observers are connected to.
        extra: further variables for them.

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
        endpoints: Endpoints,
        extra: Mapping[str, str],
    ) -> None:
        self._directory = directory
        self._port, exporter_port = free_ports(2)
        specs = observer_specs(endpoints, free_ports(ports_needed(OBSERVERS)))
        self.observers = {spec.name: service_component(spec, logs, extra) for spec in specs}
        self._exporter = RedisExporter(exporter_port, redis, directory, logs)
        self.redis_exporter = self._exporter.component
        self.prometheus = self._prometheus(logs)
        self._targets = [
            *(Target(spec.name, spec.instance, spec.metrics_port) for spec in (*services, *specs)),
            *(
                Target(KAFKA_JOB, f"broker-{node.node_id}", port, {"broker": str(node.node_id)})
                for node, port in zip(kafka.nodes, kafka.metrics_ports, strict=True)
            ),
            Target("redis", "redis-0", exporter_port),
            Target("prometheus", "prometheus-0", self._port),
        ]

    @property
    def url(self) -> str:
        """Prometheus' address."""
        return self.prometheus.endpoint

    @property
    def components(self) -> list[Component]:
        """All processes: the observers, the exporter, Prometheus."""
        return [*self.observers.values(), self.redis_exporter, self.prometheus]

    def start(self) -> None:
        """Write Prometheus' configuration and start all; returns before they are ready."""
        self._data_path.mkdir(parents=True, exist_ok=True)
        self._config_path.write_text(prometheus_yml(self._targets, RULES))
        self._exporter.prepare()
        for component in self.components:
            component.start()

    @property
    def _config_path(self) -> Path:
        return self._directory / "prometheus.yml"

    @property
    def _data_path(self) -> Path:
        return self._directory / "data"

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
