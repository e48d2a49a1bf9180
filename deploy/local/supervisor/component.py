"""One supervised process, such as a service: started again when it ends, asked whether it is ready.

Invariant: a process that ends while it is wanted is started again after a bounded, growing delay, whatever ended it; a
process that refused its settings (exit 78) is not. Starts and rounds of supervision may come from different threads,
and happen one after another.
"""

import http.client
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from deploy import PROJECT_ROOT
from deploy.local.ports import LOOPBACK
from deploy.local.process import ManagedProcess, Signalled
from deploy.local.supervisor.state import ComponentState
from deploy.local.supervisor.topology import ServiceSpec
from shared.settings import EXIT_CONFIG

FIRST_DELAY_S = 0.2
DELAY_S_MAX = 10.0
GOOD_RUN_S = 30.0
_PROBE_EVERY_S = 1.0  # once it is ready; before that, at every poll


class Backoff:
    """Delays that double from 0.2 s to 10 s, and start over once a run has lasted 30 s."""

    def __init__(self) -> None:
        self._delay_s = FIRST_DELAY_S

    def next_delay_s(self, ran_s: float) -> float:
        """The seconds to wait after a run of `ran_s` seconds has ended."""
        if ran_s >= GOOD_RUN_S:
            self._delay_s = FIRST_DELAY_S
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, DELAY_S_MAX)
        return delay_s


def may_restart(exit_code: int | None) -> bool:
    """Whether a process that ended so is started again; all are, but for a refused setting."""
    return exit_code != EXIT_CONFIG


class Component(Signalled):
    """A process under supervision.

    Args:
        process: may have been started already.
        probe: whether it can do its work; bounded in time, raises nothing.
        endpoint: where it listens, to be shown.
    """

    def __init__(self, process: ManagedProcess, probe: Callable[[], bool], endpoint: str) -> None:
        self.process = process
        self.endpoint = endpoint
        self.restarts = 0
        self.last_exit_code: int | None = None
        self.wanted = False
        self._probe = probe
        self._lock = threading.Lock()  # else a round during a start takes the last run's end for the new one's
        self._backoff = Backoff()
        self._restart_at_s: float | None = None
        self._started_at_s: float | None = None
        self._ready = False
        self._probed_s = 0.0

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def ready(self) -> bool:
        """Whether it was ready when last asked, at most some seconds ago."""
        return self._ready and self.process.running

    def start(self) -> None:
        """Start it, whatever its last run ended with, and from now on keep it running."""
        with self._lock:
            self._launch()
            self.wanted = True

    def release(self) -> None:
        """Do not start it again from now on."""
        with self._lock:
            self.wanted = False
            self._ready = False

    def keep_running(self, now_s: float) -> None:
        """Start it again if it has ended and its delay has passed; `now_s` is time.monotonic().

        Raises:
            OSError, subprocess.SubprocessError: the machine refused it; a later round tries again.
        """
        with self._lock:
            if not self.wanted or self.process.running:
                return
            self._ready = False
            if self._restart_at_s is None:
                self.last_exit_code = self.process.returncode
                ran_s = now_s - self.process.started_s
                self._restart_at_s = now_s + self._backoff.next_delay_s(ran_s)
            if now_s >= self._restart_at_s and may_restart(self.last_exit_code):
                self._launch()
                self.restarts += 1

    def check(self, now_s: float) -> None:
        """Ask whether it is ready, unless it was so less than a second ago; `now_s` is time.monotonic()."""
        if self._ready and now_s - self._probed_s < _PROBE_EVERY_S:
            return
        asked = self.process.pid
        answers = self.wanted and asked is not None and self._probe()
        with self._lock:  # it may have been started again or released meanwhile
            self._ready = answers and self.wanted and self.process.pid == asked
            self._probed_s = now_s

    def snapshot(self) -> ComponentState:
        """Its state, all of one moment."""
        with self._lock:
            return ComponentState(
                name=self.name,
                state=self._state(),
                pid=self.process.pid,
                restarts=self.restarts,
                last_exit_code=self.last_exit_code,
                started_at_s=self._started_at_s,
                endpoint=self.endpoint,
            )

    def _launch(self) -> None:
        self._ready = False
        self.process.start()
        self._restart_at_s = None
        self._started_at_s = time.time()

    def _state(self) -> str:
        if self.process.running:
            return "ready" if self._ready else "starting"
        if not self.wanted:
            return "stopped"
        judged = self._restart_at_s is not None  # until then, the last exit code is that of an earlier run
        return "failed" if judged and not may_restart(self.last_exit_code) else "waiting"


def http_ready(port: int, timeout_s: float = 0.5, path: str = "/readyz") -> bool:
    """Whether this path on this loopback port answers 200 within `timeout_s` seconds."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def service_component(spec: ServiceSpec, logs: Path, extra: Mapping[str, str]) -> Component:
    """A service that has not been started. It gets its settings by the environment only: `extra`, then its own."""
    environment = {**extra, **spec.environment}
    process = ManagedProcess(spec.name, spec.argv, environment, logs / f"{spec.name}.log", cwd=PROJECT_ROOT)
    return Component(process, lambda: http_ready(spec.metrics_port), spec.endpoint)
