"""Errors of the Kafka clients, and their classification for the runtime.

Invariant: an error is identified by its class name, as `shared.eos.errors` classifies it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from shared.eos.errors import AbortableError, EosError, FatalError, FencedError, Severity, as_eos_error, severity
from shared.kafka.client.access import Bootstrap, access_by
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
    """A topic is missing on the cluster or differs from the catalogue."""


class RecordTooLargeError(ValueError):
    """A record is larger than its topic allows; no part of it was sent."""


class DrainTimeoutError(Exception):
    """The pipeline did not drain in time; the message names what lags."""


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
