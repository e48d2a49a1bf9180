"""Errors of the Kafka clients, and their classification for the runtime.

`refuse_handshake` detects that TLS is why a connection fails: the client library reports only that the broker is gone.

Invariant: an error is identified by its class name, as `shared.eos.errors` classifies it.
"""

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from aiokafka.conn import collect_hosts
from aiokafka.errors import KafkaError, ProducerFenced, for_code

from shared.eos.errors import AbortableError, EosError, FatalError, FencedError, Severity, as_eos_error, severity
from shared.kafka.client.access import Bootstrap, access_by
from shared.kafka.protocol.headers import encode_request, framed
from shared.settings import SettingsError

# The client library has renamed these classes and kept the newer names as aliases only
_NAMES = {
    "GroupLoadInProgressError": "CoordinatorLoadInProgressError",
    "GroupCoordinatorNotAvailableError": "CoordinatorNotAvailableError",
    "NotCoordinatorForGroupError": "NotCoordinatorError",
    "TimeoutError": "KafkaTimeoutError",
}


class KafkaUnavailableError(Exception):
    """The cluster cannot be reached, or did not acknowledge in time; the message says what to do."""


class DeniedError(KafkaUnavailableError):
    """The brokers refuse an operation to this principal, or its files cannot be used any more; the message says which.

    A caller that only reads treats it like an unreachable cluster; one that cannot work without it ends (`is_denied`).
    """


class TopicMismatchError(Exception):
    """A topic is missing on the cluster, or its partition count is another one than expected."""


class RecordTooLargeError(ValueError):
    """A record is larger than its topic allows; no part of it was sent."""


class DrainTimeoutError(Exception):
    """The pipeline did not drain in time; the message names what lags."""


class FencedInstanceIdError(KafkaError):  # type: ignore[misc] # the client ships no types
    """Another member has joined the group under the same group.instance.id (KIP-345)."""


class TransactionAbortableError(KafkaError):  # type: ignore[misc] # the client ships no types
    """The transaction must be aborted (KIP-890)."""


class FencedLeaderEpochError(KafkaError):  # type: ignore[misc] # the client ships no types
    """The request names an older epoch of the leader than the broker knows (KIP-320)."""

    retriable = invalid_metadata = True


class UnknownLeaderEpochError(KafkaError):  # type: ignore[misc] # the client ships no types
    """The request names a newer epoch of the leader than the broker knows yet (KIP-320)."""

    retriable = True


class OffsetNotAvailableError(KafkaError):  # type: ignore[misc] # the client ships no types
    """A new leader does not know the high watermark yet (KIP-207)."""

    retriable = True


class GroupIdNotFoundError(KafkaError):  # type: ignore[misc] # the client ships no types
    """The group does not exist, or is of the other protocol."""


class UnstableOffsetCommitError(KafkaError):  # type: ignore[misc] # the client ships no types
    """A transaction that commits the offset has not ended (KIP-447)."""

    retriable = True


class FencedMemberEpochError(KafkaError):  # type: ignore[misc] # the client ships no types
    """The coordinator has removed the member from the group (KIP-848)."""


_MORE: Final[dict[int, type[KafkaError]]] = {
    69: GroupIdNotFoundError,
    74: FencedLeaderEpochError,
    75: UnknownLeaderEpochError,
    78: OffsetNotAvailableError,
    82: FencedInstanceIdError,
    88: UnstableOffsetCommitError,
    90: ProducerFenced,
    110: FencedMemberEpochError,
    120: TransactionAbortableError,
}
"""Kafka's error codes that the client library does not know."""


def error_for(code: int) -> type[KafkaError]:
    """Return the class of an error code in a response; NoError for 0."""
    return _MORE.get(code) or for_code(code)


def error_name(error: BaseException) -> str:
    """Return Kafka's name of an error."""
    name = type(error).__name__
    return _NAMES.get(name, name)


def classify(exc: BaseException) -> EosError:
    """Return the runtime's error for an error of the client library; one of the runtime's own is returned as it is."""
    return exc if isinstance(exc, EosError) else as_eos_error(error_name(exc), str(exc))


def is_retriable(error: BaseException) -> bool:
    """Whether the same request may succeed when it is sent again, perhaps to another broker."""
    if severity(error_name(error)) is Severity.RETRIABLE:
        return True
    return bool(getattr(error, "retriable", False) or getattr(error, "invalid_metadata", False))


_DENIALS = frozenset(
    {
        "TopicAuthorizationFailedError",
        "GroupAuthorizationFailedError",
        "TransactionalIdAuthorizationFailed",
        "ClusterAuthorizationFailedError",
    }
)


def is_denied(error: BaseException) -> bool:
    """Whether the brokers denied an operation, by this error or by one of its causes."""
    return any(
        isinstance(one, DeniedError)
        or error_name(one) in _DENIALS
        or (isinstance(one, EosError) and one.cause in _DENIALS)
        for one in _causes(error)
    )


def gravity(error: EosError) -> int:
    """Rank errors that occurred together: the highest one is the cause.

    A denial ranks first: errors of the transaction's other partitions only follow from it. Then fatal errors. Then
    errors that leave the outcome unknown, as such a transaction must not be aborted and continued at its epoch.
    """
    if is_denied(error):
        return 3
    if isinstance(error, FencedError | FatalError):
        return 2
    return int(not isinstance(error, AbortableError))


def denial(error: BaseException, bootstrap_servers: Bootstrap) -> DeniedError | None:
    """Return the denial that caused an error, or a new one if the error itself is a denial.

    Returns:
        None where nothing was denied.
    """
    found = next((one for one in _causes(error) if isinstance(one, DeniedError)), None)
    if found is None and is_denied(error):
        return denied(bootstrap_servers, str(error))
    return found


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def denied(bootstrap_servers: Bootstrap, what: str) -> DeniedError:
    """Make the error for an operation that the brokers refuse to this principal.

    Args:
        bootstrap_servers: as given by the caller.
        what: the refused operation, or the missing right.
    """
    return DeniedError(
        f"denied to {access_by(bootstrap_servers).bearer}: {what} (brokers {bootstrap_servers}): docs/access.md says "
        "what each principal may do, `once access apply` grants it, ONCE_TLS_IDENTITY_FILE says who this is"
    )


@contextmanager
def denying_unusable() -> Iterator[None]:
    """Report files that became unusable after the start as a denial; the start has refused wrong settings.

    Raises:
        DeniedError: in place of a `SettingsError`, which names the file.
    """
    try:
        yield
    except SettingsError as error:
        raise DeniedError(str(error)) from error


def unavailable(bootstrap_servers: Bootstrap, what: str) -> KafkaUnavailableError:
    """Make the error for a cluster that does not answer.

    Args:
        bootstrap_servers: as given by the caller.
        what: the operation, and why it failed.
    """
    return KafkaUnavailableError(
        f"{what} (brokers {bootstrap_servers}): see `once status`; start the cluster with `once up`, or name another "
        "one in ONCE_BOOTSTRAP_SERVERS"
    )


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
