"""Transaction errors and how to handle them. Pure.

One table classifies the broker's errors by Kafka's names (Java: `org.apache.kafka.common.protocol.Errors`). An error
that is not in it is fatal: an unknown error is not retried.
"""

from enum import Enum


class Severity(Enum):
    """How an error may be handled."""

    RETRIABLE = "retriable"  # the client retries by itself; if the error lasts, the transaction's deadline ends it
    ABORTABLE = "abortable"  # the transaction aborts; the same producer begins the next one
    FORGOTTEN = "forgotten"  # the coordinator has forgotten the producer; InitProducerId makes another one
    FENCED = "fenced"  # another producer took over; this one never writes again
    FATAL = "fatal"  # the producer cannot continue


class EosError(Exception):
    """Base class of the runtime's errors.

    `cause` is the broker's error by its class name in the client library; this class's own where there is none.
    """

    def __init__(self, message: str, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause or type(self).__name__


class AbortableError(EosError):
    """The transaction must be aborted; nothing of it was committed."""


class RejoinError(EosError):
    """This instance's state is no longer reliable; it leaves the group, drops the state and rejoins."""


class UnknownOutcomeError(RejoinError):
    """The outcome of the commit is unknown, or the cluster did not answer in time.

    InitProducerId ends the transaction one way or the other; the committed offset and the markers say which.
    """


class FencedError(EosError):
    """The transactional.id has a newer epoch: this producer never writes again. The instance rejoins once."""


class FatalError(EosError):
    """The service cannot continue; it stops and must be restarted."""


class UnsafeSettingsError(EosError):
    """Settings under which exactly-once would not hold."""


EXIT_FENCED = 75
"""Exit code for fenced again and fatal (EX_TEMPFAIL of sysexits.h): restart the service, with backoff."""

SEVERITIES: dict[str, Severity] = {
    # The client retries these itself: no leader or coordinator for the moment, or no connection
    "NotLeaderForPartitionError": Severity.RETRIABLE,
    "LeaderNotAvailableError": Severity.RETRIABLE,
    "NotEnoughReplicasError": Severity.RETRIABLE,
    "NotEnoughReplicasAfterAppendError": Severity.RETRIABLE,
    "CoordinatorNotAvailableError": Severity.RETRIABLE,
    "CoordinatorLoadInProgressError": Severity.RETRIABLE,
    "NotCoordinatorError": Severity.RETRIABLE,
    "ConcurrentTransactions": Severity.RETRIABLE,
    "RequestTimedOutError": Severity.RETRIABLE,
    "KafkaTimeoutError": Severity.RETRIABLE,
    "KafkaConnectionError": Severity.RETRIABLE,
    "NodeNotReadyError": Severity.RETRIABLE,
    "UnknownTopicOrPartitionError": Severity.RETRIABLE,
    "KafkaStorageError": Severity.RETRIABLE,  # the leader's log directory failed; another replica is about to lead
    "UnstableOffsetCommitError": Severity.RETRIABLE,
    # After transactional.id.expiration.ms, seven days, without a transaction. No other producer has the id
    "InvalidProducerIdMapping": Severity.FORGOTTEN,
    # The whole batch was refused; the transaction cannot be committed without it
    "MessageSizeTooLargeError": Severity.ABORTABLE,
    "InvalidMessageError": Severity.ABORTABLE,
    "InvalidTimestampError": Severity.ABORTABLE,
    "CorruptRecordException": Severity.ABORTABLE,
    "RecordListTooLargeError": Severity.ABORTABLE,
    "TopicAuthorizationFailedError": Severity.ABORTABLE,
    "GroupAuthorizationFailedError": Severity.ABORTABLE,
    "TransactionAbortableError": Severity.ABORTABLE,
    # The log and the producer disagree: the next transaction begins under a new epoch, with new sequence numbers
    "OutOfOrderSequenceNumber": Severity.ABORTABLE,
    "UnknownProducerId": Severity.ABORTABLE,
    # The group has removed this member, or has assigned partitions since (KIP-447)
    "IllegalGenerationError": Severity.ABORTABLE,
    "UnknownMemberIdError": Severity.ABORTABLE,
    # The leader asked the coordinator, which has not added the partition, or has aborted the transaction since
    "InvalidTxnState": Severity.ABORTABLE,
    # Partition leaders and group coordinators know fencing as INVALID_PRODUCER_EPOCH
    "ProducerFenced": Severity.FENCED,
    "InvalidProducerEpoch": Severity.FENCED,
}


GENERATION = frozenset({"IllegalGenerationError", "UnknownMemberIdError"})
"""Refusals of a transaction's offsets, because other members may have the partitions."""

OVERSIZED = frozenset({"MessageSizeTooLargeError", "RecordListTooLargeError", "RecordTooLarge"})
"""Causes of refusals for the size of a batch, by topic or client."""


def severity(error_name: str) -> Severity:
    """Return the severity of an error by its class name in the client library; an unknown one is fatal."""
    return SEVERITIES.get(error_name, Severity.FATAL)


def as_eos_error(error_name: str, message: str) -> EosError:
    """Return the runtime's error for a client error that ended an operation, by the table above.

    A retriable error outlasted the client's own retries, so it is unknown whether the operation took effect.
    """
    kinds: dict[Severity, type[EosError]] = {
        Severity.RETRIABLE: UnknownOutcomeError,
        Severity.ABORTABLE: AbortableError,
        Severity.FORGOTTEN: RejoinError,
        Severity.FENCED: FencedError,
        Severity.FATAL: FatalError,
    }
    return kinds[severity(error_name)](f"{error_name}: {message}" if message else error_name, error_name)
