"""Errors of the Kafka clients, and what the client library's errors mean to the runtime.

What holds: an error is told by its class name, in the names that `shared.eos.errors` classifies.
"""

from shared.eos.errors import EosError, Severity, as_eos_error, severity

# The client library has renamed these classes and kept the newer names as aliases only
_NAMES = {
    "GroupLoadInProgressError": "CoordinatorLoadInProgressError",
    "GroupCoordinatorNotAvailableError": "CoordinatorNotAvailableError",
    "NotCoordinatorForGroupError": "NotCoordinatorError",
    "TimeoutError": "KafkaTimeoutError",
}


class KafkaUnavailableError(Exception):
    """The cluster cannot be reached, or did not acknowledge in time; the message says what to do."""


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


def unavailable(bootstrap_servers: str, what: str) -> KafkaUnavailableError:
    """The error for a cluster that does not answer.

    Args:
        bootstrap_servers: as they were given.
        what: what was wanted of it, and why it failed.
    """
    return KafkaUnavailableError(
        f"{what} (brokers {bootstrap_servers}): see `once status`; start the cluster with `once up`, or name another "
        "one in ONCE_BOOTSTRAP_SERVERS"
    )
