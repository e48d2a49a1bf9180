"""Faults of Redis: it is flushed, comes back empty, or is failed over to a replica that lags."""

import asyncio
import shutil
import time
from pathlib import Path

from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.relay import Relay
from deploy.drills.target import Target
from deploy.local.ports import LOOPBACK
from deploy.local.redis.server import LocalRedis, RedisNotReadyError


class Flush:
    """FLUSHALL: every key is gone, the server stays."""

    name = "FLUSHALL of Redis"

    async def inject(self, target: Target) -> str:
        """Flush it."""
        redis = target.stack.redis
        before = int(redis.command("DBSIZE"))
        if not before:
            raise NoEvidenceError("Redis had no keys to lose")
        redis.flush()
        return f"{before} keys deleted"

    async def heal(self, target: Target) -> None:
        """Nothing to heal: the keys are gone."""


class ComeBackEmpty:
    """SIGKILL of Redis, which comes back at once, with or without its data.

    Args:
        keep: whether it keeps its data; what it had not synced within the last second may be lost in any case.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self.name = "SIGKILL of Redis" if keep else "Redis restarted empty"

    async def inject(self, target: Target) -> str:
        """Kill it, delete its data, and start it again."""
        redis = target.stack.redis
        before = int(redis.command("DBSIZE"))
        if not before:
            raise NoEvidenceError("Redis had no keys to lose")
        target.take_away("redis")
        redis.process.wait(10)
        if not self._keep:
            wipe(redis)
            (redis.directory / "data").mkdir()
        target.bring_back("redis")
        await asyncio.to_thread(redis.wait_ready)
        return f"{before} keys before, {redis.command('DBSIZE')} after"

    async def heal(self, target: Target) -> None:
        """Wait until it is ready."""
        await target.settle()


class FailOver:
    """SIGKILL of the master, whose clients go on with a replica that missed the last writes.

    Args:
        relay: the address that the clients use.
        replica: of the target's Redis, in sync.

    Invariant: call `lag` before the writes that the replica misses.
    """

    name = "Redis failed over to a lagging replica"

    def __init__(self, relay: Relay, replica: "ReplicatedRedis") -> None:
        self._relay = relay
        self._replica = replica

    def lag(self) -> None:
        """Let the replica look for its master where none is: it keeps its data, and misses all later writes."""
        self._replica.command("REPLICAOF", LOOPBACK, "1")

    async def inject(self, target: Target) -> str:
        """Kill the master, promote the replica, and let the clients reach it."""
        redis = target.stack.redis
        written, received = int(redis.command("DBSIZE")), int(self._replica.command("DBSIZE"))
        if received >= written:
            raise NoEvidenceError(f"the replica has all {written} keys")
        target.take_away("redis")
        self._replica.promote()
        self._relay.switch(self._replica.port)
        return f"the new master lacks {written - received} of {written} keys"

    async def heal(self, target: Target) -> None:
        """Start the old master again; the replica stays the master of its clients."""
        if "redis" in target.taken:
            target.bring_back("redis")
        await target.settle()


class ReplicatedRedis(LocalRedis):
    """A Redis that may be a replica of another one and be promoted, as in a failover.

    Args:
        replica_of: the Redis that it replicates from the start; None for a master.
    """

    def __init__(self, directory: Path, replica_of: LocalRedis | None = None) -> None:
        super().__init__(directory)
        self._master = replica_of

    def start(self) -> None:
        master = self._master
        self.process.argv[2:] = [] if master is None else ["--replicaof", LOOPBACK, str(master.port)]
        super().start()

    def promote(self) -> None:
        """Make a replica a master, with the data that it has, also for later starts."""
        self.command("REPLICAOF", "NO", "ONE")
        self._master = None

    def follow(self, master: LocalRedis) -> None:
        """Make it a replica: it drops what it has and takes the master's data."""
        self.command("REPLICAOF", LOOPBACK, str(master.port))
        self._master = master


def info(redis: LocalRedis, section: str) -> dict[str, str]:
    """The fields of one section of INFO."""
    lines = redis.command("INFO", section).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def wait_synced(master: LocalRedis, replica: LocalRedis, deadline_s: float = 10.0) -> None:
    """Wait until a replica has all present data of its master in its own append-only log.

    Before it has that log it refuses to stop in good order.
    """
    deadline = time.monotonic() + deadline_s
    written = int(info(master, "replication")["master_repl_offset"])
    while True:
        seen = info(replica, "replication")
        linked = seen.get("master_port") == str(master.port) and seen.get("master_link_status") == "up"
        if linked and int(seen["slave_repl_offset"]) >= written:
            log = info(replica, "persistence")
            if log["aof_rewrite_in_progress"] == log["aof_rewrite_scheduled"] == "0":
                return
        if time.monotonic() > deadline:
            raise RedisNotReadyError(f"the replica is not in sync after {deadline_s} s; it says {seen}")
        time.sleep(0.05)


def wipe(redis: LocalRedis) -> None:
    """Delete the data of a Redis that was stopped or killed, so that it comes back empty."""
    if redis.process.running:
        raise RuntimeError("redis runs; stop it before its data is deleted")
    shutil.rmtree(redis.directory / "data", ignore_errors=True)
