"""The exporter that gives Prometheus the figures of the local Redis, as a supervised process.

Invariant: it listens on loopback. It signs in to a secured Redis as a user that reads figures and nothing else, and
its password is in a file that its owner alone can read.
"""

import json
from pathlib import Path

from deploy.local.ports import LOOPBACK
from deploy.local.prerequisites import require_redis_exporter
from deploy.local.process import ManagedProcess
from deploy.local.redis.server import LocalRedis
from deploy.local.supervisor.component import Component, http_ready
from deploy.security.files import read_password, replace
from deploy.security.principals import REDIS_EXPORTER
from deploy.security.redis_users import EXPORTER
from shared.kafka.client.access import Tls


class RedisExporter:
    """The exporter of one Redis.

    Args:
        port: where it serves /metrics, on loopback.
        redis: what it reads.
        directory: for its password file.
        logs: the directory of its log.

    Attributes:
        component: the process.

    Raises:
        PrerequisiteError: there is no such program on this machine.
    """

    def __init__(self, port: int, redis: LocalRedis, directory: Path, logs: Path) -> None:
        self._redis = redis
        self._password_path = directory / "redis-exporter.json"
        address = f"{LOOPBACK}:{port}"
        argv = [
            require_redis_exporter(),
            f"-redis.addr={redis.url}",
            f"-web.listen-address={address}",
            "-connection-timeout=1s",  # below the scrape's: a Redis that hangs is one that is down
            *self._access(),
        ]
        process = ManagedProcess("redis-exporter", argv, {}, logs / "redis-exporter.log")
        self.component = Component(process, lambda: http_ready(port, path="/health"), f"http://{address}/metrics")

    def prepare(self) -> None:
        """Write what it reads at its start. A secured Redis must have been started: it makes the password."""
        if self._redis.authority is not None:
            password = read_password(self._redis.password_file(EXPORTER))
            replace(self._password_path, json.dumps({self._redis.url: password}).encode())

    def _access(self) -> list[str]:
        if self._redis.authority is None:
            return []
        return exporter_access(self._redis.authority.tls(REDIS_EXPORTER), self._password_path)


def exporter_access(tls: Tls, password_path: Path) -> list[str]:
    """The words by which it signs in to a secured Redis.

    Args:
        tls: its files.
        password_path: JSON, an object of passwords by address.
    """
    return [
        f"-redis.user={EXPORTER.name}",
        f"-redis.password-file={password_path}",
        f"-tls-ca-cert-file={tls.ca_file}",
        f"-tls-client-cert-file={tls.identity_file}",
        f"-tls-client-key-file={tls.identity_file}",
        # It has no right to these: asking at each scrape would fill ACL LOG, which is for what is not expected
        "-set-client-name=false",
        "-config-command=-",
    ]
