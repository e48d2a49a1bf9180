"""The nightly reconciliation, under the profile reconciliation: a Spark master, a worker, and what runs it. Pure.

What holds: each is on one network. Spark listens at the address that its host's name has for itself, and tells others
the name: with two addresses, they may look for it at the other one.
"""

from typing import Final

from deploy.compose import images, places
from deploy.compose.parts import (
    COMPLETED,
    CONFINED,
    HEALTHY,
    Service,
    after,
    built,
    credentials,
    health,
    limits,
    ready,
    scratch,
)
from deploy.compose.pipeline import ENDPOINTS
from deploy.compose.yaml import MERGE
from deploy.local.supervisor.topology import connections

PROFILE: Final = "reconciliation"
_CLASS: Final = "org.apache.spark.deploy"
_SPARK_CLASS: Final = "/opt/once/spark/bin/spark-class"
_LAKE: Final = f"lake:{places.LAKE}"
# A worker offers what executors may take; the master schedules by it
_OFFERED_CORES: Final = "${SPARK_CORES:-2}"
_OFFERED_MEMORY: Final = "${SPARK_MEMORY:-2g}"


def reconciliation_services() -> dict[str, Service]:
    """All of them, by name."""
    made = {
        places.SPARK_MASTER: _master(),
        places.SPARK_WORKER: _worker(),
        places.RECONCILIATION: _nightly(),
    }
    return {name: {**parts, "profiles": [PROFILE]} for name, parts in made.items()}


def _master() -> Service:
    where = ["--host", places.SPARK_MASTER, "--port", str(places.SPARK_PORT)]
    return {
        MERGE: [CONFINED],
        **built(images.RECONCILIATION, builds=True),
        "hostname": places.SPARK_MASTER,
        "command": [
            _SPARK_CLASS,
            f"{_CLASS}.master.Master",
            *where,
            "--webui-port",
            str(places.SPARK_MASTER_UI_PORT),
        ],
        "environment": {"SPARK_DAEMON_MEMORY": "256m"},
        "networks": ["spark"],
        "tmpfs": scratch("64m", executable=True),
        "healthcheck": health(ready(places.SPARK_MASTER_UI_PORT, "/json/")),
        "stop_grace_period": "15s",
        "deploy": limits("512m", "1.0"),
    }


def _worker() -> Service:
    master = f"spark://{places.SPARK_MASTER}:{places.SPARK_PORT}"
    offer = ["--cores", _OFFERED_CORES, "--memory", _OFFERED_MEMORY, "--work-dir", str(places.SCRATCH / "work")]
    where = ["--host", places.SPARK_WORKER, "--webui-port", str(places.SPARK_WORKER_UI_PORT)]
    return {
        MERGE: [CONFINED],
        **built(images.RECONCILIATION),
        "hostname": places.SPARK_WORKER,
        "command": [_SPARK_CLASS, f"{_CLASS}.worker.Worker", *where, *offer, master],
        "environment": {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_DIRS": str(places.SCRATCH)},
        "networks": ["spark"],
        # Its executors read the topics as the reconciliation does, and write the lake
        "volumes": [_LAKE, f"scratch:{places.SCRATCH}", credentials(places.RECONCILIATION)],
        "tmpfs": scratch("64m", executable=True),
        "depends_on": after(spark_master=HEALTHY, topics=COMPLETED),
        "healthcheck": health(ready(places.SPARK_WORKER_UI_PORT, "/json/")),
        "stop_grace_period": "30s",
        "deploy": limits("${SPARK_WORKER_LIMIT:-4g}", "2.0", pids=1024),
    }


def _nightly() -> Service:
    return {
        MERGE: [CONFINED],
        **built(images.RECONCILIATION),
        "hostname": places.RECONCILIATION,
        "working_dir": "/tmp",  # noqa: S108 # a container's, in memory: Spark makes a folder where it runs
        "command": ["python", "-m", "deploy.compose.nightly", "--at", "${RECONCILE_AT:-02:15}"],
        "environment": {
            **connections(places.RECONCILIATION, ENDPOINTS),
            "ONCE_SPARK_MASTER": f"spark://{places.SPARK_MASTER}:{places.SPARK_PORT}",
            "ONCE_SPARK_DRIVER_HOST": places.RECONCILIATION,
            "ONCE_SPARK_MEMORY": "1g",
            "ONCE_LAKE": str(places.LAKE),
        },
        "networks": ["spark"],
        "volumes": [_LAKE, credentials(places.RECONCILIATION)],
        "tmpfs": scratch("256m", executable=True),
        "depends_on": after(spark_worker=HEALTHY, topics=COMPLETED),
        "healthcheck": health(["CMD", "python", "-m", "deploy.compose.nightly", "--healthy"]),
        # A run that is stopped leaves nothing half done: the next one makes it again
        "stop_grace_period": "30s",
        "deploy": limits("3g", "2.0", pids=1024),
    }
