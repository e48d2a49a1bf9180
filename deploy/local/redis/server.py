"""A real Redis on this machine, as a child process on a free loopback port.

Invariant: port and data stay the same over a restart; it appends to its log and syncs once a second, as in production.
A crash of the machine may lose the last second: the record of effects is Kafka, not Redis. It may be a replica of
another one and be promoted, as in a failover. A secured one has TLS alone and the users of
deploy/security/redis_users.py; their passwords are made at its first start and stay over a restart.

A password is random, readable by its owner alone, made once and kept over restarts. The ACL file has its digest only,
and is replaced in one step.
"""

import shutil
import time
from pathlib import Path

from deploy.local.ports import LOCAL_HOSTS, LOOPBACK, free_ports
from deploy.local.prerequisites import require_redis
from deploy.local.process import ManagedProcess
from deploy.local.redis.wire import Login, RedisCommandError, command
from deploy.security import redis_users
from deploy.security.certificates import Authority
from deploy.security.files import make_once, read_password, replace, secret
from deploy.security.principals import OPERATOR, REDIS, REDIS_EXPORTER
from deploy.security.redis_users import USERS, RedisUser, acl_file, digest


def password_file(directory: Path, user: RedisUser) -> Path:
    """Path of that user's password.

    Args:
        directory: of Redis.
        user: one of USERS.
    """
    return directory / "passwords" / user.name


def make_users(directory: Path) -> Path:
    """Make the passwords that are missing, and the ACL file; returns the latter, which Redis reads when it starts.

    Args:
        directory: of Redis.
    """
    digests = {}
    for user in USERS:
        path = password_file(directory, user)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_once(path, secret)
        digests[user.name] = [digest(read_password(path))]
    return write_users(directory, acl_file(digests))


def write_users(directory: Path, text: str) -> Path:
    """Replace the ACL file, of which Redis takes notice at its next start or ACL LOAD; returns its path.

    Args:
        directory: of Redis.
        text: from `acl_file`.
    """
    path = directory / "users.acl"
    replace(path, text.encode())
    return path


_POLL_S = 0.05
_STOP_DEADLINE_S = 10.0


class RedisNotReadyError(RuntimeError):
    """Redis did not answer in time; the message shows the end of its log."""


class RedisRunningError(RuntimeError):
    """The operation needs a Redis that does not run."""


def redis_config(port: int, directory: Path, *, master_port: int | None = None, access: str = "") -> str:
    """The text of redis.conf.

    Args:
        port: on loopback.
        directory: for the append-only files.
        master_port: of the Redis to replicate, on loopback; None for a master.
        access: from `secured_config`; empty for a Redis without access control.
    """
    replicaof = "" if master_port is None else f"replicaof {LOOPBACK} {master_port}\n"
    return f"""\
bind {LOOPBACK}
{access or f"port {port}"}
protected-mode yes
daemonize no
dir {directory}
# The append-only log is the only persistence: no snapshots.
save ""
appendonly yes
appendfsync everysec
# A claim that was evicted would be a claim given twice: when memory is full, writes fail instead.
maxmemory 256mb
maxmemory-policy noeviction
# A first replica is fed at once; there are no others to wait for.
repl-diskless-sync-delay 0
loglevel notice
{replicaof}"""


def secured_config(port: int, authority: Authority, users_file: Path) -> str:
    """The lines of redis.conf that admit only clients with a certificate that sign in.

    Args:
        port: for TLS; there is no other.
        authority: issued its identity, and those of its clients.
        users_file: the ACL file.
    """
    identity_file = authority.identity_file(REDIS)
    return f"""\
port 0
tls-port {port}
tls-ca-cert-file {authority.ca_file}
tls-cert-file {identity_file}
tls-key-file {identity_file}
tls-auth-clients yes
tls-protocols "TLSv1.2 TLSv1.3"
aclfile {users_file}"""


class LocalRedis:
    """One Redis server.

    Args:
        directory: for data and configuration.
        log_directory: for redis.log; `logs` in `directory` when None.
        replica_of: the Redis that it replicates from its start on; None for a master.
        authority: makes it a secured one, which has no replica; issues at its start what identities are missing.

    Raises:
        PrerequisiteError: no redis-server on this machine.
        NoFreePortError: no port.
        ValueError: a secured one is to be a replica.
    """

    def __init__(
        self,
        directory: Path,
        *,
        log_directory: Path | None = None,
        replica_of: "LocalRedis | None" = None,
        authority: Authority | None = None,
    ) -> None:
        if authority is not None and replica_of is not None:
            raise ValueError("a secured Redis has no user for replicas: make it a master, or leave TLS out")
        self.directory = directory.resolve()
        self.authority = authority
        self._master = replica_of
        (self.port,) = free_ports(1)
        argv = [require_redis(), str(self._config_path)]
        logs = self.directory / "logs" if log_directory is None else log_directory.resolve()
        self.process = ManagedProcess("redis", argv, {}, logs / "redis.log")

    @property
    def url(self) -> str:
        """The address as client libraries take it, database 0."""
        return f"{'redis' if self.authority is None else 'rediss'}://{LOOPBACK}:{self.port}/0"

    def password_file(self, user: RedisUser) -> Path:
        """Path of that user's password, once a secured server has been started."""
        return password_file(self.directory, user)

    @property
    def _login(self) -> Login | None:
        if self.authority is None:
            return None
        password = self.password_file(redis_users.OPERATOR)
        return Login(redis_users.OPERATOR.name, password, self.authority.tls())

    @property
    def _config_path(self) -> Path:
        return self.directory / "redis.conf"

    @property
    def _data_path(self) -> Path:
        return self.directory / "data"

    def start(self) -> None:
        """Write the configuration and start the server; returns before it is ready. Does nothing when it runs.

        Raises:
            CredentialsError: the authority's key is missing.
        """
        self._data_path.mkdir(parents=True, exist_ok=True)
        master_port = None if self._master is None else self._master.port
        access = "" if self.authority is None else self._secure(self.authority)
        self._config_path.write_text(redis_config(self.port, self._data_path, master_port=master_port, access=access))
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

    def wipe(self) -> None:
        """Delete its data, so that it comes back empty.

        Raises:
            RedisRunningError: stop or kill it first.
        """
        if self.process.running:
            raise RedisRunningError("redis runs; stop it before its data is deleted")
        shutil.rmtree(self._data_path, ignore_errors=True)

    def flush(self) -> None:
        """Delete all keys, as an operator's slip would.

        Raises:
            RedisCommandError: it did not take the command.
        """
        self._command("FLUSHALL")

    def configure(self, name: str, value: str) -> None:
        """Change a setting until it is started again.

        Raises:
            RedisCommandError: it did not take the command.
        """
        self._command("CONFIG", "SET", name, value)

    def promote(self) -> None:
        """Make a replica a master, with the data that it has, also for later starts.

        Raises:
            RedisCommandError: it did not take the command.
        """
        self._command("REPLICAOF", "NO", "ONE")
        self._master = None

    def follow(self, master: "LocalRedis") -> None:
        """Make it a replica: it drops what it has and takes the master's data.

        Raises:
            RedisCommandError: it did not take the command.
        """
        self._command("REPLICAOF", LOOPBACK, str(master.port))
        self._master = master

    def info(self, section: str) -> dict[str, str]:
        """The fields of one section of INFO.

        Raises:
            RedisCommandError: it did not answer.
        """
        lines = self._command("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def wait_synced(self, replica: "LocalRedis", deadline_s: float = 10.0) -> None:
        """Wait until a replica has all that this one has written up to now, in an append-only log of its own.

        Before it has that log it refuses to stop in good order.

        Raises:
            RedisNotReadyError: not so after `deadline_s` seconds.
        """
        deadline = time.monotonic() + deadline_s
        written = int(self.info("replication")["master_repl_offset"])
        while True:
            seen = replica.info("replication")
            linked = seen.get("master_port") == str(self.port) and seen.get("master_link_status") == "up"
            if linked and int(seen["slave_repl_offset"]) >= written:
                log = replica.info("persistence")
                if log["aof_rewrite_in_progress"] == log["aof_rewrite_scheduled"] == "0":
                    return
            if time.monotonic() > deadline:
                raise RedisNotReadyError(f"the replica is not in sync after {deadline_s} s; it says {seen}")
            time.sleep(_POLL_S)

    def answers(self, timeout_s: float = 1.0) -> bool:
        """Whether it answers PING. While it loads its data it does not yet answer so."""
        try:
            return command(self.port, "PING", login=self._login, timeout_s=timeout_s) == "PONG"
        except RedisCommandError:
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

    def _secure(self, authority: Authority) -> str:
        """Make what a secured one needs; its lines of redis.conf."""
        authority.ensure(REDIS, LOCAL_HOSTS)
        for name in (OPERATOR, REDIS_EXPORTER):
            authority.ensure(name)
        return secured_config(self.port, authority, make_users(self.directory))

    def _command(self, *words: str) -> str:
        return command(self.port, *words, login=self._login)
