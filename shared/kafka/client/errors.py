"""Errors of the Kafka clients, and what the client library's errors mean to the runtime.

What holds: an error is told by its class name, in the names that `shared.eos.errors` classifies.
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
    """The brokers refuse what this principal wants to do, or its files cannot be used any more; the message says which.

    Like a cluster that cannot be reached to whoever only asks; whoever cannot work without ends (`is_denied`).
    """


class TopicMismatchError(Exception):
    """A topic is missing on the cluster or differs from the catalogue."""


class RecordTooLargeError(ValueError):
    """A record is larger than its topic takes; nothing of it was sent."""


class DrainTimeoutError(Exception):
    """The pipeline did not drain in time; the message names what lags."""


def error_name(error: BaseException) -> str:
    """Kafka's name of an error."""
    name = type(error).__name__
    return _NAMES.get(name, name)


def classify(exc: BaseException) -> EosError:
    """The runtime's error for an error of the client library; one of the runtime's own stays as it is."""
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
    """Whether the brokers denied something, by this error or by one that it came from."""
    return any(
        isinstance(one, DeniedError)
        or error_name(one) in _DENIALS
        or (isinstance(one, EosError) and one.cause in _DENIALS)
        for one in _causes(error)
    )


def gravity(error: EosError) -> int:
    """How much an error says of several that came at once: the largest one is what happened.

    A denial first: what it makes of a transaction's other partitions only follows from it. Then who ends for good; then
    what leaves the outcome unknown, as such a transaction must not be aborted at its epoch and gone on with.
    """
    if is_denied(error):
        return 3
    if isinstance(error, FencedError | FatalError):
        return 2
    return int(not isinstance(error, AbortableError))


def denial(error: BaseException, bootstrap_servers: Bootstrap) -> DeniedError | None:
    """What was denied, told once: the denial that an error came from, else one made of the error.

    Returns:
        None where nothing was denied.
    """
    told = next((one for one in _causes(error) if isinstance(one, DeniedError)), None)
    if told is None and is_denied(error):
        return denied(bootstrap_servers, str(error))
    return told


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it came from."""
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__


def denied(bootstrap_servers: Bootstrap, what: str) -> DeniedError:
    """The error for what the brokers refuse to do for this principal.

    Args:
        bootstrap_servers: as they were given.
        what: was refused, or is missing.
    """
    return DeniedError(
        f"denied to {access_by(bootstrap_servers).bearer}: {what} (brokers {bootstrap_servers}): docs/access.md says "
        "what each principal may do, `once access apply` grants it, ONCE_TLS_IDENTITY_FILE says who this is"
    )


@contextmanager
def denying_unusable() -> Iterator[None]:
    """Files that became unusable at work are a denial to whoever connects: the start has refused wrong settings.

    Raises:
        DeniedError: in place of a `SettingsError`, which names the file.
    """
    try:
        yield
    except SettingsError as error:
        raise DeniedError(str(error)) from error


def unavailable(bootstrap_servers: Bootstrap, what: str) -> KafkaUnavailableError:
    """The error for a cluster that does not answer.

    Args:
        bootstrap_servers: as they were given.
        what: what was wanted of it, and why it failed.
    """
    return KafkaUnavailableError(
        f"{what} (brokers {bootstrap_servers}): see `once status`; start the cluster with `once up`, or name another "
        "one in ONCE_BOOTSTRAP_SERVERS"
    )
