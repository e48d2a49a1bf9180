"""A real Redis on this machine, as a child process on a free loopback port.

What holds here: port and data stay the same over a restart; it appends to its log and syncs once a second, as in
production, so a kill -9 of the machine may lose the last second and the effects' memory is Kafka, not Redis. Readiness
is asked by PING over a socket, without a client library.
"""

import socket
import time
from pathlib import Path

from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.prerequisites import require_redis
from deploy.local.process import ManagedProcess

_POLL_S = 0.05
_STOP_DEADLINE_S = 10.0


class RedisNotReadyError(RuntimeError):
    """Redis did not answer in time; the message shows the end of its log."""


def redis_config(port: int, directory: Path) -> str:
    """The text of redis.conf.

    Args:
        port: on loopback.
        directory: for the append-only files.
    """
    return f"""\
bind {LOOPBACK}
port {port}
protected-mode yes
daemonize no
dir {directory}
# The append-only log is the only persistence: no snapshots beside it.
save ""
appendonly yes
appendfsync everysec
# A claim that was evicted would be a claim given twice: when memory is full, writes fail instead.
maxmemory 256mb
maxmemory-policy noeviction
loglevel notice
"""


class LocalRedis:
    """One Redis server.

    Args:
        directory: for data and configuration.
        log_directory: for redis.log; `logs` in `directory` when None.

    Raises:
        PrerequisiteError: no redis-server on this machine.
        NoFreePortError: no port.
    """

    def __init__(self, directory: Path, *, log_directory: Path | None = None) -> None:
        self.directory = directory.resolve()
        (self.port,) = free_ports(1)
        argv = [require_redis(), str(self._config_path)]
        logs = self.directory / "logs" if log_directory is None else log_directory.resolve()
        self.process = ManagedProcess("redis", argv, {}, logs / "redis.log")

    @property
    def url(self) -> str:
        """The address as client libraries take it, database 0."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def _config_path(self) -> Path:
        return self.directory / "redis.conf"

    def start(self) -> None:
        """Write the configuration and start the server; returns before it is ready. Does nothing when it runs."""
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        self._config_path.write_text(redis_config(self.port, data))
        self.process.start()

    def stop(self) -> None:
        """Stop it in good order: it syncs its log first."""
        self.process.terminate(_STOP_DEADLINE_S)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()

    def pause(self) -> None:
        """Stop its execution with SIGSTOP."""
        self.process.pause()

    def resume(self) -> None:
        """Let it run on (SIGCONT)."""
        self.process.resume()

    def answers(self, timeout_s: float = 1.0) -> bool:
        """Whether it answers PING. While it loads its data it does not yet answer so."""
        try:
            with socket.create_connection((LOOPBACK, self.port), timeout=timeout_s) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def wait_ready(self, deadline_s: float = 10.0) -> None:
        """Wait until it answers PING.

        Raises:
            RedisNotReadyError: not so after `deadline_s` seconds, or it has ended.
        """
        deadline = time.monotonic() + deadline_s
        while not self.answers():
            if not self.process.running or time.monotonic() > deadline:
                state = f"does not answer after {deadline_s} s" if self.process.running else "has ended"
                raise RedisNotReadyError(f"redis {state}; the end of its log:\n{self.process.log_tail()}")
            time.sleep(_POLL_S)
