"""Names of hosts, ports within the networks, paths within containers, and who has which credentials. Pure."""

from pathlib import Path, PurePosixPath
from typing import Final

from deploy.local.supervisor.topology import OBSERVERS, SERVICES
from deploy.security import principals
from deploy.security.certificates import Authority
from shared.events.catalogue import REPLICATION_FACTOR
from shared.kafka.admin import rules

BROKERS: Final = tuple(principals.broker(node_id) for node_id in range(REPLICATION_FACTOR))
KAFKA_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
AGENT_PORT: Final = 9404
"""Of a broker's figures; broker.sh has it as well."""
METRICS_PORT: Final = 9100
"""Of each service's /metrics, /healthz and /readyz."""
GATEWAY_PORT: Final = 8080
VIEW_PORT: Final = 8090
REDIS: Final = principals.REDIS
REDIS_PORT: Final = 6379
REDIS_EXPORTER: Final = principals.REDIS_EXPORTER
REDIS_EXPORTER_PORT: Final = 9121
PROMETHEUS: Final = "prometheus"
PROMETHEUS_PORT: Final = 9090
GRAFANA: Final = "grafana"
GRAFANA_PORT: Final = 3000
SPARK_MASTER: Final = "spark-master"
SPARK_WORKER: Final = "spark-worker"
SPARK_PORT: Final = 7077
SPARK_MASTER_UI_PORT: Final = 8081
SPARK_WORKER_UI_PORT: Final = 8082

RECONCILIATION: Final = rules.RECONCILIATION
OPERATOR: Final = principals.OPERATOR

BOOTSTRAP_SERVERS: Final = ",".join(f"{name}:{KAFKA_PORT}" for name in BROKERS)

PROGRAM: Final = PurePosixPath("/opt/once/app")
"""Where this project is in its images."""
DATA: Final = PurePosixPath("/var/lib/once")
KAFKA_DATA: Final = DATA / "kafka"
REDIS_DATA: Final = PurePosixPath("/data")
"""Where the image of Redis has a folder of its user."""
EFFECTS: Final = DATA / "effects"
VIEW: Final = DATA / "view"
LAKE: Final = DATA / "lake"
SCRATCH: Final = DATA / "scratch"
"""What Spark spills and shuffles."""
AUTHORITY: Final = DATA / "authority"
"""The authority with its key; `credentials` alone sees it."""
CREDENTIALS: Final = DATA / "credentials"
"""Everyone's credentials, as `credentials` sees them."""
OWN: Final = PurePosixPath("/run/once")
"""Where a container finds its own credentials, and nobody else's."""
AS_SEEN: Final = Authority(Path(OWN))
"""The authority as a container sees it: its certificates, and the container's own identity."""
USERS_FILE: Final = OWN / "users.acl"
REDIS_PASSWORD: Final = OWN / "redis.password"
EXPORTER_PASSWORDS: Final = OWN / "redis-exporter.json"
CONFIG: Final = PurePosixPath("/etc/once")

HOLDERS: Final = (*BROKERS, REDIS, *SERVICES, *OBSERVERS, REDIS_EXPORTER, GRAFANA, RECONCILIATION, OPERATOR)
"""Who has credentials; each has a volume of its own for them."""

CERTIFIED: Final = tuple(name for name in HOLDERS if name != GRAFANA)
"""Who has a certificate."""


def credentials_volume(holder: str) -> str:
    """The volume of one holder's credentials."""
    return f"credentials-{holder}"
