"""Redis Sentinel for tests: sentinels that watch a master and its replica, and agree on a new master."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from deploy.drills.faults.redis import ReplicatedRedis
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.prerequisites import require_redis
from deploy.local.process import ManagedProcess, Signalled
from deploy.local.redis.server import RedisCommandError, command
from tests.harness import wait_until

MASTER = "once"
SENTINELS = 3
QUORUM = 2
DOWN_AFTER_MS = 1_000


class Sentinel(Signalled):
    """One sentinel; it keeps what it learns in its own configuration file."""

    def __init__(self, directory: Path, master_port: int) -> None:
        directory.mkdir(parents=True)
        (self.port,) = free_ports(1)
        config = directory / "sentinel.conf"
        config.write_text(f"""\
bind {LOOPBACK}
port {self.port}
dir {directory}
sentinel monitor {MASTER} {LOOPBACK} {master_port} {QUORUM}
sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}
sentinel failover-timeout {MASTER} 5000
""")
        self.process = ManagedProcess("sentinel", [require_redis(), str(config), "--sentinel"], {}, directory / "log")

    def ready(self) -> bool:
        """Whether it knows the replica and the other sentinels, so that it can take part in a failover."""
        return self._shows(f"slaves=1,sentinels={SENTINELS}")

    def names(self, port: int) -> bool:
        """Whether it takes the server at this port for the master."""
        return self._shows(f"address={LOOPBACK}:{port},")

    def _shows(self, text: str) -> bool:
        try:
            return text in command(self.port, "INFO", "sentinel")
        except RedisCommandError:
            return False


@contextmanager
def watched(directory: Path, master: ReplicatedRedis) -> Iterator[list[Sentinel]]:
    """Sentinels that watch a master with one replica, ready for a failover; killed at the end."""
    with ExitStack() as stack:
        sentinels = [Sentinel(directory / f"sentinel-{number}", master.port) for number in range(SENTINELS)]
        for sentinel in sentinels:
            sentinel.process.start()
            stack.callback(sentinel.process.kill)
        for sentinel in sentinels:
            wait_until(sentinel.ready, "the sentinel knows the replica and the other sentinels", 30)
        yield sentinels


def url_of(sentinels: list[Sentinel]) -> str:
    """ONCE_REDIS_URL for these."""
    nodes = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in sentinels)
    return f"redis+sentinel://{nodes}/{MASTER}/0"
