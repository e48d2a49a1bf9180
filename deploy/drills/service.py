"""A service as a process of its own, with settings of its own: started, killed, stopped and resumed by pid."""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import ClassVar, Self

from deploy import PROJECT_ROOT
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.process import ManagedProcess, ProcessNotRunningError, Signalled, state_of
from deploy.local.supervisor.component import http_ready

_ANSWER_S = 5.0


class Service(Signalled):
    """One instance of a service, which no supervisor starts again.

    Args:
        name: of the service.
        bootstrap_servers: brokers without access control.
        directory: for its log.
        instance: unique per service.
        settings: further variables, ONCE_ prefix left out.
    """

    process_type: ClassVar[type[ManagedProcess]] = ManagedProcess

    def __init__(
        self, name: str, bootstrap_servers: str, directory: Path, instance: str = "0", **settings: str
    ) -> None:
        self.name = name
        self.port = free_ports(1)[0]
        environment = {
            "ONCE_BOOTSTRAP_SERVERS": bootstrap_servers,
            "ONCE_INSTANCE": instance,
            "ONCE_METRICS_PORT": str(self.port),
            **{f"ONCE_{key}": value for key, value in settings.items()},
        }
        self.process: ManagedProcess = self.process_type(
            f"{name}-{instance}",
            [sys.executable, "-m", f"services.{name}"],
            environment,
            directory / f"{name}-{instance}-{self.port}.log",
            cwd=PROJECT_ROOT,
        )

    def start(self) -> Self:
        """Start it without waiting."""
        self.process.start()
        return self

    @property
    def ready(self) -> bool:
        """Whether it has taken over its partitions.

        Raises:
            ProcessNotRunningError: it has ended; the message has the end of its log.
        """
        self.raise_if_ended()
        return http_ready(self.port, 2.0)

    def raise_if_ended(self) -> None:
        """Raise ProcessNotRunningError with the end of its log, unless it runs."""
        if not self.process.running:
            raise ProcessNotRunningError(
                f"{self.name} ended with {self.process.returncode}:\n{self.process.log_tail()}"
            )

    @property
    def suspended(self) -> bool:
        """Whether it has been sent SIGSTOP."""
        pid = self.process.pid
        return pid is not None and state_of(pid) == "T"

    def metrics_text(self) -> str:
        """Return the answer of /metrics."""
        with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/metrics", timeout=_ANSWER_S) as answer:
            text: str = answer.read().decode()
        return text

    def metric(self, name: str) -> float:
        """Return the sum over a metric's series."""
        lines = self.metrics_text().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def not_ready_reasons(self) -> dict[str, str]:
        """Return the reasons of /readyz; empty while it is ready, `process` while it does not answer."""
        self.raise_if_ended()
        try:
            try:
                with urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/readyz", timeout=2):
                    return {}
            except urllib.error.HTTPError as answer:
                reasons: dict[str, str] = json.loads(answer.read())["reasons"]
                return reasons
        except OSError as error:  # refused, timed out or dropped
            return {"process": str(error)}
