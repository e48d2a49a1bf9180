"""Why a broker's connection fails, when TLS is why: the client library says only that the broker is gone."""

import asyncio
import ssl
import struct
from contextlib import suppress
from typing import Final

from aiokafka.conn import collect_hosts

from shared.kafka.client.access import Bootstrap, access_by
from shared.kafka.client.errors import DeniedError, denying_unusable

ANSWER_S: Final = 3.0
LET_IN: Final = ""
_ALERT: Final = 21
"""What a TLS record begins with that tells why a connection ends (RFC 8446, 5.1); a response begins with its length."""
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 0, 0)  # version 0, correlation id 0, no client_id


async def refuse_handshake(bootstrap_servers: Bootstrap) -> None:
    """Tell whether brokers refuse the certificate, after connections have failed.

    A client cannot tell by its library: it says that a broker is gone. Under TLS 1.3 a refusal comes as the answer to
    the first request.

    Raises:
        DeniedError: they do, or this side refuses theirs, or they speak TLS and this side does not; and no broker lets
            it in. Or this side's files cannot be used.
    """
    access = access_by(bootstrap_servers)
    hosts = [(host, port) for host, port, _ in collect_hosts(access.bootstrap_servers)]
    with denying_unusable():
        context = None if access.tls is None else access.tls.context()
    told = await asyncio.gather(*(_refusal(context, host, port) for host, port in hosts))
    if LET_IN in told:
        return
    for (host, port), refusal in zip(hosts, told, strict=True):
        if refusal is not None and access.tls is None:
            raise DeniedError(
                f"{host}:{port} {refusal}: name the authority's file in ONCE_TLS_CA_FILE and this client's own in "
                "ONCE_TLS_IDENTITY_FILE; `once credentials make` makes both"
            )
        if refusal is not None:
            raise DeniedError(
                f"denied to {access.bearer}: no TLS connection with {host}:{port}: {refusal}: ONCE_TLS_CA_FILE must "
                "name the brokers' authority, and ONCE_TLS_IDENTITY_FILE an identity that they trust and that has not "
                "expired (docs/security.md)"
            )


async def _refusal(context: ssl.SSLContext | None, host: str, port: int) -> str | None:
    """Why a broker's connection is refused; LET_IN where it is not, None where nobody answers."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(_API_VERSIONS)
                answer = await reader.readexactly(4)
            finally:
                writer.transport.abort()  # no farewell is waited for: nothing was begun
                with suppress(OSError):  # the refusal once more
                    await writer.wait_closed()
    except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
        return None  # it went away in the middle; who refuses says so
    except ssl.SSLError as error:
        return _reason(error)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return None
    return "speaks TLS" if context is None and answer[0] == _ALERT else LET_IN


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is refused: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()
