"""Errors of the cluster, and what an error of the client means to the runtime."""

from shared.eos.errors import EosError, as_eos_error


class KafkaUnavailableError(Exception):
    """The cluster cannot be reached or did not acknowledge in time."""


class TopicMismatchError(Exception):
    """The cluster's topics differ from the catalogue."""


def classify(error: BaseException) -> EosError:
    """The runtime's error for one of the client's, by its class name; unknown is fatal."""
    return as_eos_error(type(error).__name__, str(error))
