"""The connection to Redis: one server, or the master that the sentinels name.

Invariant: a password comes from a file, is in no URL, message or log, and is read at each connection, so a new one
counts without a restart. TLS trusts the authority that is set and no other. The client sends each command once, see
`claims`.

With Redis Sentinel, each new connection asks the sentinels for the master. After a failover the claims are distrusted
like those of any other server, see `scripts`.
"""

import ssl
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool, SentinelManagedConnection
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, RedisError

from services.outbox.address import Address, Node, address_of
from services.outbox.scripts import UNDER_WAY
from services.outbox.sinks.credentials import load_password, refuse_public
from shared.addresses import is_loopback
from shared.events.partitions import PARTITIONS_MAX
from shared.kafka.client.access import CONNECTION_IDLE_MS, tls_of
from shared.settings import OutboxSettings

CONNECTIONS_MAX: Final = PARTITIONS_MAX * UNDER_WAY
"""As many as an instance with all partitions uses at once. At its own limit, 100, the client refuses a command."""
_RESP = 2  # what scripts answer with; RESP3 would ask for notifications, which the user has no right to
_FILE_SETTING = "ONCE_REDIS_PASSWORD_FILE"
_SENTINEL_FILE_SETTING = "ONCE_REDIS_SENTINEL_PASSWORD_FILE"


class RedisAccess(NamedTuple):
    """How the outbox reaches Redis."""

    address: Address
    credentials: CredentialProvider | None = None  # None for a Redis without users
    tls: ssl.SSLContext | None = None  # for an address with TLS
    sentinel_credentials: CredentialProvider | None = None  # None for sentinels without users


def redis_access(settings: OutboxSettings) -> RedisAccess:
    """Read how Redis is reached; ValueError or SettingsError names the setting that cannot be used."""
    address = address_of(settings.redis_url)
    credentials = _credentials_of(
        address, settings.redis_username, settings.redis_password_file, "ONCE_REDIS_USERNAME", _FILE_SETTING
    )
    sentinel_credentials = _credentials_of(
        address,
        settings.redis_sentinel_username,
        settings.redis_sentinel_password_file,
        "ONCE_REDIS_SENTINEL_USERNAME",
        _SENTINEL_FILE_SETTING,
    )
    if sentinel_credentials is not None and not address.master:
        raise ValueError("ONCE_REDIS_SENTINEL_USERNAME is set, and ONCE_REDIS_URL names no sentinels: unset it")
    tls = tls_of(settings.tls_ca_file, settings.tls_identity_file) if address.tls else None
    if address.tls and tls is None:
        raise ValueError("ONCE_REDIS_URL has TLS: set ONCE_TLS_CA_FILE and ONCE_TLS_IDENTITY_FILE as well")
    return RedisAccess(address, credentials, None if tls is None else tls.context(), sentinel_credentials)


def _credentials_of(
    address: Address, username: str, password_file: str, user_setting: str, file_setting: str
) -> CredentialProvider | None:
    if bool(username) is not bool(password_file):
        raise ValueError(f"{user_setting} and {file_setting} belong together: set both or none")
    if not username:
        return None
    for node in address.nodes:
        if not address.tls and not is_loopback(node.host):
            raise ValueError(
                f"ONCE_REDIS_URL has no TLS and leads to {node.host}: the password would cross the network in clear "
                "text; use rediss:// or rediss+sentinel://"
            )
    credentials = FileCredentials(username, password_file, file_setting)
    credentials.get_credentials()
    return credentials


def connect(access: RedisAccess, timeout_s: float) -> Redis:
    """Make a client that sends each command once; `timeout_s` is for connecting and for an answer. `aclose()` it."""
    options = _options(access, access.credentials, timeout_s) | {"db": access.address.database}
    if not access.address.master:
        return Redis.from_pool(_pool(access.address.nodes[0], access, options))
    # All of them can be asked within the time of one command, though the first ones be silent
    sentinel_options = _options(access, access.sentinel_credentials, timeout_s / (len(access.address.nodes) + 1))
    sentinels = Sentinel([])  # type: ignore[no-untyped-call] # the client types none of this
    sentinels.sentinels = [Redis.from_pool(_pool(node, access, sentinel_options)) for node in access.address.nodes]
    connection_class = SentinelManagedConnection if access.tls is None else _TlsMasterConnection
    pool = _MasterPool(access.address.master, sentinels, connection_class=connection_class, **options)
    return Redis.from_pool(pool)


def _options(access: RedisAccess, credentials: CredentialProvider | None, timeout_s: float) -> dict[str, Any]:
    return {
        "credential_provider": credentials,
        "max_connections": CONNECTIONS_MAX,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": _RESP,
        "driver_info": None,
    } | ({} if access.tls is None else {"tls": access.tls})


def _pool(node: Node, access: RedisAccess, options: dict[str, Any]) -> ConnectionPool:
    connection_class = Connection if access.tls is None else _TlsConnection
    return _Pool(connection_class=connection_class, host=node.host, port=node.port, **options)


class FileCredentials(CredentialProvider):
    """A user whose password is in the file `path`, which `setting` names."""

    def __init__(self, username: str, path: str, setting: str = _FILE_SETTING) -> None:
        self._username = username
        self._path = path
        self._setting = setting

    def get_credentials(self) -> tuple[str, str]:
        """Name and password, as the file has it now; ValueError if the file cannot be used."""
        refuse_public(self._path, self._setting)
        return self._username, load_password(self._path, self._setting)

    async def get_credentials_async(self) -> tuple[str, str]:
        """The same for a connection, which AuthenticationError makes fail."""
        try:
            return self.get_credentials()
        except ValueError as error:
            raise AuthenticationError(str(error)) from None


class _TlsConnection(SSLConnection):
    """A connection with a context of this module. redis-py's own would also trust every authority of the system."""

    def __init__(self, *, tls: ssl.SSLContext, **options: Any) -> None:
        super().__init__(**options)
        self.ssl_context.context = tls


class _TlsMasterConnection(SentinelManagedConnection, _TlsConnection):
    """The same to the master that the sentinels name."""


class _Pool(ConnectionPool):
    """Closes a connection that was idle for CONNECTION_IDLE_MS: a burst needed it, or its server has gone.

    What was released last is used first, so that connections which the load does not need stay idle.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._idle_since_s: dict[AbstractConnection, float] = {}

    def get_available_connection(self) -> AbstractConnection:
        connection: AbstractConnection = super().get_available_connection()  # type: ignore[no-untyped-call]
        self._idle_since_s.pop(connection, None)
        return connection

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Close all connections, also those whose servers do not answer: with TLS, that raises an error."""
        with suppress(RedisError, OSError):
            await super().disconnect(inuse_connections)

    async def release(self, connection: AbstractConnection) -> None:
        now_s = time.monotonic()
        self._idle_since_s[connection] = now_s
        await super().release(connection)
        expired_s = now_s - CONNECTION_IDLE_MS / 1000
        for idle in [idle for idle, since_s in self._idle_since_s.items() if since_s < expired_s]:
            if self._idle_since_s.pop(idle, None) is not None:  # it may have been taken while another was closed
                await idle.disconnect(nowait=True)


class _MasterPool(_Pool, SentinelConnectionPool):
    """Connections to the present master; those to the sentinels are closed with them."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        await self.sentinel_manager.aclose()
