"""Finds out whether TLS is why a connection fails: the client library reports only that the broker is gone."""

import asyncio
import ssl
from contextlib import suppress
from typing import Final

from aiokafka.conn import collect_hosts

from shared.kafka.client.access import Bootstrap, access_by
from shared.kafka.client.errors import DeniedError, denying_unusable
from shared.kafka.protocol.headers import encode_request, framed

ANSWER_S: Final = 3.0
LET_IN: Final = ""
_ALERT: Final = 21
"""First byte of a TLS alert (RFC 8446, 5.1); a Kafka response begins with its length."""


async def refuse_handshake(bootstrap_servers: Bootstrap) -> None:
    """Raise DeniedError if brokers refuse the certificate, after connections have failed.

    The client library cannot distinguish this: it reports that a broker is gone. Under TLS 1.3 a refusal comes as the
    answer to the first request.

    Raises:
        DeniedError: no broker accepts the connection, and one of them refuses this side's certificate, has one that
            this side refuses, or expects TLS. Or this side's files cannot be used.
    """
    access = access_by(bootstrap_servers)
    hosts = [(host, port) for host, port, _ in collect_hosts(access.bootstrap_servers)]
    with denying_unusable():
        context = None if access.tls is None else access.tls.context()
    refusals = await asyncio.gather(*(_refusal(context, host, port) for host, port in hosts))
    if LET_IN in refusals:
        return
    for (host, port), refusal in zip(hosts, refusals, strict=True):
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
    """Return why a broker refuses the connection; LET_IN where it does not, None where no broker answers."""
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(framed(encode_request("ApiVersions", 0, {})))
                answer = await reader.readexactly(4)
            finally:
                writer.transport.abort()  # does not wait for TLS's close_notify: nothing was begun
                with suppress(OSError):  # the same refusal again
                    await writer.wait_closed()
    except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
        return None  # the broker went away; a broker that refuses sends an alert
    except ssl.SSLError as error:
        return _reason(error)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return None
    return "speaks TLS" if context is None and answer[0] == _ALERT else LET_IN


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is refused: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()
