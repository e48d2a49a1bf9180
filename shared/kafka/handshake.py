"""Why a broker's connection fails under TLS: the client library says only that the broker is gone."""

import asyncio
import ssl
import struct
from typing import Final

from aiokafka.conn import collect_hosts

from shared.kafka.access import Bootstrap, Tls, access_by
from shared.kafka.errors import denied

ANSWER_S: Final = 3.0
LET_IN: Final = ""
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 0, 0)  # version 0, correlation id 0, no client_id


async def refuse_handshake(bootstrap_servers: Bootstrap) -> None:
    """Tell whether brokers refuse the certificate, after connections have failed.

    A client cannot tell by its library: it says that a broker is gone. Under TLS 1.3 a refusal comes as the answer to
    the first request.

    Raises:
        DeniedError: they do, or this side refuses theirs, and no broker lets it in.
    """
    access = access_by(bootstrap_servers)
    if access.tls is None:
        return
    hosts = [(host, port) for host, port, _ in collect_hosts(access.bootstrap_servers)]
    told = await asyncio.gather(*(_refusal(access.tls, host, port) for host, port in hosts))
    if not any(refusal == LET_IN for refusal in told):
        for (host, port), refusal in zip(hosts, told, strict=True):
            if refusal:
                raise denied(access, f"no TLS connection with {host}:{port}: {refusal}")


async def _refusal(tls: Tls, host: str, port: int) -> str | None:
    """Why a broker's connection is refused; LET_IN where it is not, None where nobody answers."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls.context())
            try:
                writer.write(_API_VERSIONS)
                await reader.readexactly(4)
            finally:
                writer.close()
    except ssl.SSLError as error:
        return _reason(error)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return None
    return LET_IN


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is refused: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()
