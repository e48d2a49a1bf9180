"""Whether Redis lets the outbox in and lets it do its work: asked once, before the outbox takes any input.

What holds: a Redis that refuses is a fault of configuration, told in one line with what to change; one that is away, or
cannot answer now, is none, and each partition waits for it. What is refused later (a right is taken away, a password
changed) is not asked here: the partitions' own questions fail then, and wait, see `trust`.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from services.outbox import scripts
from services.outbox.connection import Address, Way
from shared.eos.errors import UnsafeSettingsError

_KEY = "once:{access}:tried"
_WITH_TLS = "it speaks TLS there; use rediss:// in ONCE_REDIS_URL"
_WITHOUT_TLS = "it does not speak TLS there; give ONCE_REDIS_URL its port for TLS, or redis://"
_ALERT = "ALERT"  # in the reasons of OpenSSL's errors: what the other side sent


async def check_access(redis: Redis, way: Way, timeout_s: float) -> None:
    """Try every right that the scripts need.

    Args:
        redis: from `connection.connect`.
        way: the one that it was made of.
        timeout_s: seconds until it counts as away; a broken connection is looked into for twice as long at most.

    Raises:
        UnsafeSettingsError: Redis refuses the outbox; the message says what to change.
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
    """What a failed handshake is due to, if that is a certificate or a port without TLS."""
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
    """What a connection that broke is due to, if the other end can be made to tell."""
    if way.tls is None:
        return _WITH_TLS if await _speaks_tls(way.address, timeout_s) else None
    # Who writes at once may lose the alert that says why the connection ends: this one only listens
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
    """Whether Redis answers there without TLS; that it wants to know who asks is an answer."""
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
