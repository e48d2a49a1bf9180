"""The connection to Redis, and a check of the outbox's rights before it takes any input.

Invariant: a password comes from a file, is in no URL, message or log, and is read at each connection, so a new one
counts without a restart. TLS trusts the authority that is set and no other. The client sends each command once, see
`claims`. The URL is parsed here because redis-py accepts options in it that turn TLS' checks off.

A Redis that refuses the outbox is a fault of configuration, reported in one line that says what to change. A Redis that
is away is no fault: each partition waits for it. A right or password that changes later fails the partitions' own
requests, which then wait, see `trust`.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from services.outbox import scripts
from services.outbox.sinks.credentials import load_password, refuse_public
from shared.addresses import is_loopback
from shared.eos.errors import UnsafeSettingsError
from shared.kafka.client.access import tls_of
from shared.settings import OutboxSettings

_PORT = 6379
_RESP = 2  # what scripts answer with; RESP3 would ask for notifications, which the user has no right to
_FILE_SETTING = "ONCE_REDIS_PASSWORD_FILE"
_NO_URL = "ONCE_REDIS_URL is no URL such as redis://127.0.0.1:6379/0 or rediss://redis:6379/0: correct it"


class Address(NamedTuple):
    """Where Redis listens."""

    host: str
    port: int
    database: int  # any but 0 needs the right to SELECT
    tls: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Way(NamedTuple):
    """How the outbox reaches Redis."""

    address: Address
    credentials: CredentialProvider | None = None  # None for a Redis without users
    tls: ssl.SSLContext | None = None  # for an address with TLS


def address_of(url: str) -> Address:
    """Parse ONCE_REDIS_URL; ValueError, which does not show it, if it is no such URL or has a user or password."""
    try:
        parts = urlsplit(url)
        port, path = parts.port, parts.path.removeprefix("/") or "0"
    except ValueError:
        raise ValueError(_NO_URL) from None
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "ONCE_REDIS_URL has a user or a password: name the user in ONCE_REDIS_USERNAME, write the password into a "
            f"file and name that in {_FILE_SETTING}"
        )
    wrong = parts.query or parts.fragment or not parts.hostname or not (path.isascii() and path.isdigit())
    if parts.scheme not in {"redis", "rediss"} or wrong:
        raise ValueError(_NO_URL)
    return Address(parts.hostname or "", _PORT if port is None else port, int(path), parts.scheme == "rediss")


def way_of(settings: OutboxSettings) -> Way:
    """Read the way to Redis; ValueError or SettingsError names the setting that cannot be used."""
    address = address_of(settings.redis_url)
    if bool(settings.redis_username) is not bool(settings.redis_password_file):
        raise ValueError(f"ONCE_REDIS_USERNAME and {_FILE_SETTING} belong together: set both or none")
    credentials = None
    if settings.redis_username:
        if not address.tls and not is_loopback(address.host):
            raise ValueError(
                f"ONCE_REDIS_URL has no TLS and leads to {address.host}: the password would cross the network in clear "
                "text; use rediss://"
            )
        credentials = FileCredentials(settings.redis_username, settings.redis_password_file)
        credentials.get_credentials()
    tls = tls_of(settings.tls_ca_file, settings.tls_identity_file) if address.tls else None
    if address.tls and tls is None:
        raise ValueError("ONCE_REDIS_URL is a rediss:// one: set ONCE_TLS_CA_FILE and ONCE_TLS_IDENTITY_FILE as well")
    return Way(address, credentials, None if tls is None else tls.context())


def connect(way: Way, timeout_s: float) -> Redis:
    """Make a client that sends each command once; `timeout_s` is for connecting and for an answer. `aclose()` it."""
    options: dict[str, Any] = {
        "host": way.address.host,
        "port": way.address.port,
        "db": way.address.database,
        "credential_provider": way.credentials,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": _RESP,
        "driver_info": None,
    }
    if way.tls is None:
        pool = ConnectionPool(connection_class=Connection, **options)
    else:
        pool = ConnectionPool(connection_class=_TlsConnection, tls=way.tls, **options)
    return Redis.from_pool(pool)


class FileCredentials(CredentialProvider):
    """A user whose password is in the file `path`."""

    def __init__(self, username: str, path: str) -> None:
        self._username = username
        self._path = path

    def get_credentials(self) -> tuple[str, str]:
        """Name and password, as the file has it now; ValueError if the file cannot be used."""
        refuse_public(self._path, _FILE_SETTING)
        return self._username, load_password(self._path, _FILE_SETTING)

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


_KEY = "once:{access}:tried"
_WITH_TLS = "it speaks TLS there; use rediss:// in ONCE_REDIS_URL"
_WITHOUT_TLS = "it does not speak TLS there; give ONCE_REDIS_URL its port for TLS, or redis://"
_ALERT = "ALERT"  # in the reasons of OpenSSL's errors: what the other side sent


async def check_access(redis: Redis, way: Way, timeout_s: float) -> None:
    """Try every right that the scripts need; UnsafeSettingsError if Redis refuses the outbox, with what to change.

    Args:
        timeout_s: until Redis counts as away; the cause of a broken connection is sought for twice as long at most.
    """
    try:
        async with asyncio.timeout(timeout_s):
            refused = await redis.register_script(scripts.ACCESS)(keys=[_KEY])
    except (AuthenticationError, NoPermissionError) as error:
        raise UnsafeSettingsError(_denied(way, error)) from error
    except (RedisError, OSError) as error:  # TimeoutError is an OSError
        why = _tls_fault(error) or await _looked_into(way, timeout_s)
        if why is not None:
            raise UnsafeSettingsError(f"Redis at {way.address}: {why}") from error
        return
    if refused:
        commands = ", ".join(sorted({command.decode() for command in refused}))
        raise UnsafeSettingsError(
            f"Redis at {way.address} does not let the outbox call {commands} on its keys, once:{{*}}:*; give its user "
            "the rights of docs/redis-access.md"
        )


def _denied(way: Way, error: RedisError) -> str:
    said = f"Redis at {way.address} refuses the outbox: {error}"
    if isinstance(error, NoPermissionError):
        return f"{said}; give its user the rights of docs/redis-access.md"
    return f"{said}; set ONCE_REDIS_USERNAME and ONCE_REDIS_PASSWORD_FILE to a user that it knows"


def _tls_fault(error: BaseException) -> str | None:
    """The cause of a failed handshake, if it is a certificate or a port without TLS."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is refused, {cause.verify_message}; ONCE_TLS_CA_FILE is to name its authority"
    if cause is None:
        return None
    if _ALERT in (cause.reason or ""):
        return (
            f"it refuses the outbox's certificate ({cause.reason}); ONCE_TLS_IDENTITY_FILE is to name one of an "
            "authority that it trusts"
        )
    return _WITHOUT_TLS if cause.reason == "WRONG_VERSION_NUMBER" else None


async def _looked_into(way: Way, timeout_s: float) -> str | None:
    """Why a connection broke, if the other end can be made to say it."""
    if way.tls is None:
        return _WITH_TLS if await _speaks_tls(way.address, timeout_s) else None
    # A client that writes at once may lose the alert that says why the connection ends: this one only listens
    try:
        async with asyncio.timeout(timeout_s), _opened(way.address, way.tls) as (reader, _):
            await reader.read(1)
    except ssl.SSLError as error:
        return _tls_fault(error)
    except OSError:
        return _WITHOUT_TLS if await _answers_plainly(way.address, timeout_s) else None
    return None


async def _speaks_tls(address: Address, timeout_s: float) -> bool:
    anyone = ssl.create_default_context()
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(timeout_s), _opened(address, anyone):
            return True
    except ssl.SSLError as error:
        return _ALERT in (error.reason or "")
    except OSError:
        return False


async def _answers_plainly(address: Address, timeout_s: float) -> bool:
    """Whether Redis answers there without TLS; asking for a password is an answer."""
    try:
        async with asyncio.timeout(timeout_s), _opened(address, None) as (reader, writer):
            writer.write(b"PING\r\n")
            return (await reader.read(1)) in {b"+", b"-"}
    except OSError:
        return False


@contextlib.asynccontextmanager
async def _opened(
    address: Address, tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
