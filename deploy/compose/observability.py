"""What watches, under the profile observability: the monitor, the Redis exporter, Prometheus and Grafana. Pure."""

from pathlib import Path
from typing import Final

from deploy.compose import images, places
from deploy.compose.parts import (
    COMPLETED,
    CONFINED,
    HEALTHY,
    Service,
    after,
    answers,
    configuration,
    credentials,
    health,
    limits,
    scratch,
)
from deploy.compose.pipeline import ENDPOINTS, service
from deploy.compose.yaml import MERGE
from deploy.local.supervisor.monitoring import KAFKA_JOB, Target, exporter_access, prometheus_yml
from deploy.local.supervisor.topology import OBSERVERS, SERVICES

OBSERVABILITY: Final = "observability"
_RETENTION_TIME: Final = "30d"
_RETENTION_SIZE: Final = "4GB"


def targets() -> list[Target]:
    """Everything that has figures, under the names that rules and dashboards know."""
    return [
        *(Target(name, f"{name}-0", places.METRICS_PORT, host=name) for name in (*SERVICES, *OBSERVERS)),
        *(
            Target(KAFKA_JOB, name, places.AGENT_PORT, {"broker": str(node_id)}, name)
            for node_id, name in enumerate(places.BROKERS)
        ),
        Target("redis", "redis-0", places.REDIS_EXPORTER_PORT, host=places.REDIS_EXPORTER),
        Target("prometheus", "prometheus-0", places.PROMETHEUS_PORT, host="127.0.0.1"),
    ]


def prometheus_config() -> str:
    """The text of prometheus.yml."""
    return prometheus_yml(targets(), Path(places.CONFIG / "rules" / "*.yml"))


def observability_services() -> dict[str, Service]:
    """All of them, by name."""
    made = {
        **{name: service(name) for name in OBSERVERS},
        places.REDIS_EXPORTER: _redis_exporter(),
        places.PROMETHEUS: _prometheus(),
        places.GRAFANA: _grafana(),
    }
    return {name: {**parts, "profiles": [OBSERVABILITY]} for name, parts in made.items()}


def _redis_exporter() -> Service:
    return {
        MERGE: [CONFINED],
        "image": images.REDIS_EXPORTER,
        "command": [
            f"-redis.addr={ENDPOINTS.redis_url}",
            f"-web.listen-address=:{places.REDIS_EXPORTER_PORT}",
            "-connection-timeout=1s",  # below the scrape's: a Redis that hangs is one that is down
            *exporter_access(places.AS_SEEN.tls(places.REDIS_EXPORTER), Path(places.EXPORTER_PASSWORDS)),
        ],
        "user": images.EXPORTER_USER,
        "group_add": [images.READERS],
        "networks": ["redis", "figures"],
        "volumes": [credentials(places.REDIS_EXPORTER)],
        "depends_on": after(credentials=COMPLETED),
        "healthcheck": health(answers(f"http://127.0.0.1:{places.REDIS_EXPORTER_PORT}/health")),
        "stop_grace_period": "10s",
        "deploy": limits("64m", "0.25"),
    }


def _prometheus() -> Service:
    return {
        MERGE: [CONFINED],
        "image": images.PROMETHEUS,
        "command": [
            f"--config.file={places.CONFIG}/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            f"--storage.tsdb.retention.time={_RETENTION_TIME}",
            f"--storage.tsdb.retention.size={_RETENTION_SIZE}",
            f"--web.listen-address=:{places.PROMETHEUS_PORT}",
            "--log.level=warn",
        ],
        "user": images.PROMETHEUS_USER,
        "networks": ["figures"],
        "volumes": [
            "prometheus:/prometheus",
            configuration("prometheus.yml"),
            f"./deploy/prometheus/rules:{places.CONFIG}/rules:ro",
        ],
        "tmpfs": scratch(),
        "healthcheck": health(answers(f"http://127.0.0.1:{places.PROMETHEUS_PORT}/-/ready")),
        "stop_grace_period": "30s",
        "deploy": limits("1g", "1.0"),
    }


DASHBOARDS: Final = "/var/lib/grafana/dashboards"
"""Where deploy/grafana/provisioning has Grafana look for them."""


def _grafana() -> Service:
    return {
        MERGE: [CONFINED],
        "image": images.GRAFANA,
        "environment": {
            "GF_SECURITY_ADMIN_PASSWORD__FILE": f"{places.OWN}/password",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
            "ONCE_PROMETHEUS_URL": f"http://{places.PROMETHEUS}:{places.PROMETHEUS_PORT}",
        },
        "user": images.GRAFANA_USER,
        "group_add": [images.READERS],
        "networks": ["figures"],
        "volumes": [
            "grafana:/var/lib/grafana",
            credentials(places.GRAFANA),
            "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro",
            f"./deploy/grafana/dashboards:{DASHBOARDS}:ro",
        ],
        "tmpfs": scratch("64m"),
        "depends_on": after(credentials=COMPLETED, prometheus=HEALTHY),
        "healthcheck": health(answers(f"http://127.0.0.1:{places.GRAFANA_PORT}/api/health")),
        "stop_grace_period": "30s",
        "deploy": limits("512m", "1.0"),
    }
