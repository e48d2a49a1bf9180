"""A real Spark standalone master with one worker on this machine, from pyspark's own jars.

Invariant: both listen on loopback only and keep only their logs and the worker's scratch files. Executors on the worker
have Spark alone, and no module of this project. It must not know what is submitted.
"""

import http.client
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.prerequisites import PrerequisiteError, require_java
from deploy.local.process import ManagedProcess
from deploy.local.supervisor.component import Component

_POLL_S = 0.1
_STOP_DEADLINE_S = 10.0
_HEAP_MB = 256
_SCALA_VERSION = "2.13"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


class SparkNotReadyError(RuntimeError):
    """Master or worker did not come up in time; the message shows the end of its log."""


class LocalSpark:
    """One master and one worker.

    Args:
        directory: for the worker's scratch files.
        cores: of the worker.
        memory_mb: of the worker, MiB.
        log_directory: for the logs; `logs` in `directory` when None.

    Raises:
        PrerequisiteError: Java or pyspark is missing.
        NoFreePortError: no port.
    """

    def __init__(
        self, directory: Path, *, cores: int = 2, memory_mb: int = 1024, log_directory: Path | None = None
    ) -> None:
        self.directory = directory.resolve()
        self._port, self._ui_port, self._worker_ui_port = free_ports(3)
        logs = self.directory / "logs" if log_directory is None else log_directory.resolve()
        # Set by Spark's scripts; a worker starts executors with them
        environment = {
            "PYTHONPATH": "",
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": _SCALA_VERSION,
            "SPARK_LOCAL_IP": LOOPBACK,
        }
        where = ["--host", LOOPBACK, "--webui-port"]
        master = [*_java(_MASTER), *where, str(self._ui_port), "--port", str(self._port)]
        scratch = ["--work-dir", str(self.directory / "work")]
        offer = ["--cores", str(cores), "--memory", f"{memory_mb}m", *scratch, self.url]
        worker = [*_java(_WORKER), *where, str(self._worker_ui_port), *offer]
        self.master = Component(
            ManagedProcess("spark-master", master, environment, logs / "spark-master.log"), self._has_worker, self.url
        )
        self.worker = Component(
            ManagedProcess("spark-worker", worker, environment, logs / "spark-worker.log"),
            self._has_worker,
            f"http://{LOOPBACK}:{self._worker_ui_port}",
        )

    @property
    def url(self) -> str:
        """The master's URL."""
        return f"spark://{LOOPBACK}:{self._port}"

    @property
    def components(self) -> list[Component]:
        """Master and worker, for a supervisor."""
        return [self.master, self.worker]

    def start(self) -> None:
        """Start both; returns before they are ready. Does nothing when they run."""
        (self.directory / "work").mkdir(parents=True, exist_ok=True)
        for component in self.components:
            component.start()

    def stop(self) -> None:
        """Stop the worker, with the executors on it, then the master."""
        for component in reversed(self.components):
            component.release()
            component.process.terminate(_STOP_DEADLINE_S)

    def kill(self) -> None:
        """Kill both with SIGKILL. An executor ends when it finds its worker gone."""
        for component in reversed(self.components):
            component.release()
            component.kill()

    def wait_ready(self, deadline_s: float = 60.0) -> None:
        """Wait until the master has its worker.

        Raises:
            SparkNotReadyError: not after `deadline_s` seconds, or one has ended.
        """
        deadline = time.monotonic() + deadline_s
        while not self._has_worker():
            ended = [component.process for component in self.components if not component.process.running]
            if ended or time.monotonic() > deadline:
                process = (ended or [self.worker.process])[0]
                state = "has ended" if ended else f"is not registered after {deadline_s} s"
                raise SparkNotReadyError(f"{process.name} {state}; the end of its log:\n{process.log_tail()}")
            time.sleep(_POLL_S)

    def applications(self) -> list[dict[str, Any]]:
        """The ended applications, as the master reports them; empty while it does not answer."""
        found: list[dict[str, Any]] = self._status().get("completedapps", [])
        return found

    def _has_worker(self) -> bool:
        return any(worker["state"] == "ALIVE" for worker in self._status().get("workers", []))

    def _status(self) -> dict[str, Any]:
        """The master's answer at /json; empty while it does not answer."""
        connection = http.client.HTTPConnection(LOOPBACK, self._ui_port, timeout=2)
        try:
            connection.request("GET", "/json/")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()
        return found


def spark_home() -> Path:
    """Where pyspark's scripts and jars are.

    Raises:
        PrerequisiteError: it is not installed.
    """
    found = find_spec("pyspark")  # not imported for the name of a folder
    if found is None or found.origin is None:
        raise PrerequisiteError("pyspark is needed. Run: make setup")
    return Path(found.origin).parent


def _java(main: str) -> list[str]:
    # Not by spark-class: the process that it starts would take a shell's place only after a launcher JVM
    return [require_java(), f"-Xmx{_HEAP_MB}m", "-cp", f"{spark_home() / 'jars'}/*", main]
