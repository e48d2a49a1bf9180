"""Images: which, in which version, and as whom they run. Pure.

What holds: each name is pinned; those built here have a Dockerfile in deploy/images. Versions of Redis, Prometheus and
its exporter are those that the local stack's tests run with.
"""

from typing import Final

PYTHON: Final = "python:3.11.11-slim-bookworm"
JAVA: Final = "eclipse-temurin:17.0.13_11-jre-jammy"
KAFKA: Final = "apache/kafka:4.3.1"
REDIS: Final = "redis:7.0.15-bookworm"
REDIS_EXPORTER: Final = "oliver006/redis_exporter:v1.45.0-alpine"
PROMETHEUS: Final = "prom/prometheus:v2.42.0"
GRAFANA: Final = "grafana/grafana:11.4.0"

SERVICES: Final = "once-services:0.1.0"
BROKER: Final = "once-broker:0.1.0"
RECONCILIATION: Final = "once-reconciliation:0.1.0"

BUILT: Final = {
    SERVICES: "deploy/images/services.Dockerfile",
    BROKER: "deploy/images/broker.Dockerfile",
    RECONCILIATION: "deploy/images/reconciliation.Dockerfile",
}
"""The Dockerfile of each image that is built here; its context is the project's root."""

PUBLIC: Final = (PYTHON, JAVA, KAFKA, REDIS, REDIS_EXPORTER, PROMETHEUS, GRAFANA)
"""Images that others publish, to run or to build on."""

ONCE_UID: Final = 10001
"""User and group of everything that is built here; see the Dockerfiles."""
READERS: Final = str(ONCE_UID)
"""The group that may read credentials: other images' users join it."""
REDIS_USER: Final = "999:999"
PROMETHEUS_USER: Final = "65534:65534"
EXPORTER_USER: Final = "59000:59000"
GRAFANA_USER: Final = "472:472"
