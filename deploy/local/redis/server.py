"""A real Redis on this machine, as a child process on a free loopback port.

Invariant: port and data stay the same over a restart; it appends to its log and syncs once a second, as in production.
A crash of the machine may lose the last second: the record of effects is Kafka, not Redis.

A secured one has TLS alone and the users of deploy/security/redis_users.py. Their passwords are made at its first start
and stay over a restart, each in a file that its owner alone can read. The ACL file has their digests only.
"""

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Connection, SSLConnection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from deploy.local.ports import LOCAL_HOSTS, LOOPBACK, free_ports
from deploy.local.prerequisites import require_redis
from deploy.local.process import ManagedProcess, Signalled
from deploy.security import redis_users
from deploy.security.certificates import Authority
from deploy.security.files import make_once, read_password, replace, secret
from deploy.security.principals import OPERATOR, REDIS, REDIS_EXPORTER
from deploy.security.redis_users import USERS, RedisUser, acl_file, digest
from shared.kafka.client.access import Tls
from shared.settings import SettingsError

_ANSWER_TIMEOUT_S = 5.0
_POLL_S = 0.05
_STOP_DEADLINE_S = 10.0


class RedisCommandError(RuntimeError):
    """Redis refused a command, or the connection ended before its answer."""


class RedisNotReadyError(RuntimeError):
    """Redis did not answer in time; the message shows the end of its log."""


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials of a user of a secured Redis.

    The password's file is read at each connection, so a changed password takes effect.
    """

    user: str
    password_file: Path
    tls: Tls


def command(port: int, *words: str, login: Login | None = None, timeout_s: float = _ANSWER_TIMEOUT_S) -> str:
    """Send one command over a connection of its own, and return its string or integer.

    Args:
        port: on loopback.
        login: None for a Redis without users.
        timeout_s: seconds for the connection, and for each answer.

    Raises:
        RedisCommandError: it was refused, or not answered, or the login's files cannot be used.
    """
    try:
        connection = _connection(port, login, timeout_s)
        try:
            connection.connect()
            connection.send_command(*words)
            return str(connection.read_response())
        finally:
            connection.disconnect()
    except (OSError, RedisError, SettingsError) as error:
        raise RedisCommandError(f"{words[0]}: {error}") from error


def _connection(port: int, login: Login | None, timeout_s: float) -> Any:  # the client types none of its methods
    options: dict[str, Any] = {
        "host": LOOPBACK,
        "port": port,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": True,
        "protocol": 2,
        "driver_info": None,  # a user may have no right to CLIENT SETINFO
    }
    if login is None:
        return Connection(**options)  # type: ignore[no-untyped-call] # likewise
    return SSLConnection(
        **options,
        username=login.user,
        password=read_password(login.password_file),
        ssl_ca_certs=login.tls.ca_file,
        ssl_certfile=login.tls.identity_file,
    )


def password_file(directory: Path, user: RedisUser) -> Path:
    """Path of a user's password in a Redis' directory."""
    return directory / "passwords" / user.name


def make_users(directory: Path) -> Path:
    """Make the passwords that are missing, and the ACL file, whose path is returned."""
    digests = {}
    for user in USERS:
        path = password_file(directory, user)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_once(path, secret)
        digests[user.name] = [digest(read_password(path))]
    return write_users(directory, acl_file(digests))


def write_users(directory: Path, text: str) -> Path:
    """Replace the ACL file by a text from `acl_file`; Redis reads it at its next start or ACL LOAD."""
    path = directory / "users.acl"
    replace(path, text.encode())
    return path


def redis_config(port: int, directory: Path, *, access: str = "") -> str:
    """The text of redis.conf, for append-only files in `directory` and with the `access` of `secured_config`."""
    return f"""\
bind {LOOPBACK}
{access or f"port {port}"}
protected-mode yes
daemonize no
dir {_quoted(directory)}
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
"""


def secured_config(port: int, authority: Authority, users_file: Path) -> str:
    """The lines of redis.conf that admit only clients with a certificate of the authority that sign in."""
    identity_file = _quoted(authority.identity_file(REDIS))
    return f"""\
port 0
tls-port {port}
tls-ca-cert-file {_quoted(authority.ca_file)}
tls-cert-file {identity_file}
tls-key-file {identity_file}
tls-auth-clients yes
tls-protocols "TLSv1.2 TLSv1.3"
aclfile {_quoted(users_file)}"""


def _quoted(path: Path) -> str:
    """One word of redis.conf, whatever is in the path."""
    return '"' + re.sub(r'["\\]', r"\\\g<0>", str(path)) + '"'


class LocalRedis(Signalled):
    """One Redis server.

    Args:
        directory: for data and configuration.
        log_directory: for redis.log; `logs` in `directory` when None.
        authority: makes it a secured one; issues at its start what identities are missing.

    Raises:
        PrerequisiteError: no redis-server on this machine.
        NoFreePortError: no port.
    """

    def __init__(
        self, directory: Path, *, log_directory: Path | None = None, authority: Authority | None = None
    ) -> None:
        self.directory = directory.resolve()
        self.authority = authority
        (self.port,) = free_ports(1)
        self._config_path = self.directory / "redis.conf"
        argv = [require_redis(), str(self._config_path)]
        logs = self.directory / "logs" if log_directory is None else log_directory.resolve()
        self.process = ManagedProcess("redis", argv, {}, logs / "redis.log")

    @property
    def url(self) -> str:
        """The address as client libraries take it, database 0."""
        return f"{'redis' if self.authority is None else 'rediss'}://{LOOPBACK}:{self.port}/0"

    def password_file(self, user: RedisUser) -> Path:
        """Path of a user's password, once a secured server has been started."""
        return password_file(self.directory, user)

    def start(self) -> None:
        """Write the configuration and start the server; returns before it is ready. Does nothing when it runs.

        Raises:
            CredentialsError: the authority's key is missing.
        """
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        access = "" if self.authority is None else self._secure(self.authority)
        self._config_path.write_bytes(os.fsencode(redis_config(self.port, data, access=access)))
        self.process.start()

    def stop(self) -> None:
        """Stop it in good order: it syncs its log first."""
        self.process.terminate(_STOP_DEADLINE_S)

    def flush(self) -> None:
        """Delete all keys, as an operator's slip would."""
        self.command("FLUSHALL")

    def command(self, *words: str, timeout_s: float = _ANSWER_TIMEOUT_S) -> str:
        """Send a command as the operator, with the outcomes of the function `command`."""
        login = None
        if self.authority is not None:
            password = self.password_file(redis_users.OPERATOR)
            login = Login(redis_users.OPERATOR.name, password, self.authority.tls())
        return command(self.port, *words, login=login, timeout_s=timeout_s)

    def answers(self, timeout_s: float = 1.0) -> bool:
        """Whether it answers PING, which it does not while it loads its data."""
        try:
            return self.command("PING", timeout_s=timeout_s) == "PONG"
        except RedisCommandError:
            return False

    def wait_ready(self, deadline_s: float = 10.0) -> None:
        """Wait until it answers PING; RedisNotReadyError after `deadline_s` seconds, or when it has ended."""
        deadline = time.monotonic() + deadline_s
        while not self.answers():
            if not self.process.running or time.monotonic() > deadline:
                state = f"does not answer after {deadline_s} s" if self.process.running else "has ended"
                raise RedisNotReadyError(f"redis {state}; the end of its log:\n{self.process.log_tail()}")
            time.sleep(_POLL_S)

    def _secure(self, authority: Authority) -> str:
        authority.ensure(REDIS, LOCAL_HOSTS)
        for name in (OPERATOR, REDIS_EXPORTER):
            authority.ensure(name)
        return secured_config(self.port, authority, make_users(self.directory))
