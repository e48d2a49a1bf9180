"""A check of the outbox's rights in Redis, before it takes any input.

A Redis that refuses the outbox is a fault of configuration, reported in one line that says what to change. A Redis that
is away is no fault: each partition waits for it. A right or password that changes later fails the partitions' own
requests, which then wait, see `trust`.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from services.outbox.address import Node
from services.outbox.connection import RedisAccess
from shared.eos.errors import UnsafeSettingsError

ACCESS: Final = """
-- KEYS: 1 a key of its own, gone afterwards
local refused = {}

-- Only what the user may not do is reported: a replica, or a full memory, is not about rights.
-- Redis 7.0 says it in the second form, later ones in the third
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  local why = type(reply) == 'table' and reply.err or ''
  for _, form in ipairs({'NOPERM', 'The user executing the script', 'ACL failure in script'}) do
    if string.find(why, form, 1, true) then
      refused[#refused + 1] = command
      break
    end
  end
end

try('TIME')
try('INFO', 'server')
try('SCAN', '0', 'COUNT', 1)
try('SET', KEYS[1], '', 'PX', 1000)
try('GET', KEYS[1])
try('PEXPIRE', KEYS[1], 1000)
try('DEL', KEYS[1])
try('HSET', KEYS[1], 'field', '')
try('PEXPIREAT', KEYS[1], '99999999999999')
try('HGET', KEYS[1], 'field')
try('HMGET', KEYS[1], 'field')
try('HGETALL', KEYS[1])
try('HLEN', KEYS[1])
try('OBJECT', 'ENCODING', KEYS[1])
try('HDEL', KEYS[1], 'field')
try('DEL', KEYS[1])
return refused
"""
"""Tries each command that the other scripts call, and returns those that the user may not call, none if it may all."""
_KEY = "once:{access}:tried"
_WITH_TLS = "it speaks TLS there; use rediss:// in ONCE_REDIS_URL"
_WITHOUT_TLS = "it does not speak TLS there; give ONCE_REDIS_URL its port for TLS, or redis://"
_REFUSED_MODES = {
    "cluster": "a Redis Cluster, whose redirections the outbox does not follow; use a single Redis, or Redis Sentinel",
    "sentinel": "a sentinel; use redis+sentinel://host:port/master_name/0 in ONCE_REDIS_URL",
}
_ALERT = "ALERT"  # in the reasons of OpenSSL's errors: what the other side sent


async def check_access(redis: Redis, access: RedisAccess, timeout_s: float) -> None:
    """Try every right that the scripts need; UnsafeSettingsError if Redis refuses the outbox, with what to change.

    Args:
        timeout_s: until Redis counts as away; the cause of a broken connection is sought for twice as long at most.
    """
    try:
        async with asyncio.timeout(timeout_s):
            mode = (await redis.info("server")).get("redis_mode")
            if mode in _REFUSED_MODES:
                raise UnsafeSettingsError(f"Redis at {access.address} is {_REFUSED_MODES[mode]}")
            refused = await redis.register_script(ACCESS)(keys=[_KEY])
    except (AuthenticationError, NoPermissionError) as error:
        raise UnsafeSettingsError(_denied(access, error)) from error
    except (RedisError, OSError) as error:  # TimeoutError is an OSError
        why = _tls_fault(error) or await _looked_into(access, timeout_s)
        if why is not None:
            raise UnsafeSettingsError(f"Redis at {access.address}: {why}") from error
        return
    if refused:
        commands = ", ".join(sorted({command.decode() for command in refused}))
        raise UnsafeSettingsError(
            f"Redis at {access.address} does not let the outbox call {commands} on its keys, once:{{*}}:*; give its "
            "user the rights of docs/redis-access.md"
        )


def _denied(access: RedisAccess, error: RedisError) -> str:
    said = f"Redis at {access.address} refuses the outbox: {error}"
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


async def _looked_into(access: RedisAccess, timeout_s: float) -> str | None:
    """Why a connection broke, if the other end can be made to say it: Redis, or the first sentinel."""
    node = access.address.nodes[0]
    if access.tls is None:
        return _WITH_TLS if await _speaks_tls(node, timeout_s) else None
    # A client that writes at once may lose the alert that says why the connection ends: this one only listens
    try:
        async with asyncio.timeout(timeout_s), _opened(node, access.tls) as (reader, _):
            await reader.read(1)
    except ssl.SSLError as error:
        return _tls_fault(error)
    except OSError:
        return _WITHOUT_TLS if await _answers_plainly(node, timeout_s) else None
    return None


async def _speaks_tls(node: Node, timeout_s: float) -> bool:
    anyone = ssl.create_default_context()
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(timeout_s), _opened(node, anyone):
            return True
    except ssl.SSLError as error:
        return _ALERT in (error.reason or "")
    except OSError:
        return False


async def _answers_plainly(node: Node, timeout_s: float) -> bool:
    """Whether Redis answers there without TLS; asking for a password is an answer."""
    try:
        async with asyncio.timeout(timeout_s), _opened(node, None) as (reader, writer):
            writer.write(b"PING\r\n")
            return (await reader.read(1)) in {b"+", b"-"}
    except OSError:
        return False


@contextlib.asynccontextmanager
async def _opened(
    node: Node, tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(node.host, node.port, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
