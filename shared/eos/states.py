"""A transactional producer's states and transitions, as a table. Pure.

States are those of the Java client's `TransactionManager.State`, plus UNKNOWN: the response to EndTxn did not arrive.
There the Java client may send EndTxn again (KIP-890). With the first version of the protocol only discarding the
producer is safe.
"""

from enum import Enum, auto


class State(Enum):
    UNINITIALIZED = auto()
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    COMMITTING_TRANSACTION = auto()
    ABORTING_TRANSACTION = auto()
    ABORTABLE_ERROR = auto()
    UNKNOWN = auto()
    FATAL_ERROR = auto()
    CLOSED = auto()


class Event(Enum):
    INIT = auto()
    INITIALIZED = auto()
    BEGIN = auto()
    SEND_FAILED = auto()
    COMMIT = auto()
    ABORT = auto()
    ENDED = auto()
    OUTCOME_UNKNOWN = auto()
    FATAL = auto()
    CLOSE = auto()


class InvalidTransitionError(Exception):
    """The producer's state does not allow the operation: a defect of the caller."""


_S, _E = State, Event

TRANSITIONS: dict[tuple[State, Event], State] = {
    (_S.UNINITIALIZED, _E.INIT): _S.INITIALIZING,
    (_S.INITIALIZING, _E.INITIALIZED): _S.READY,
    (_S.READY, _E.BEGIN): _S.IN_TRANSACTION,
    (_S.IN_TRANSACTION, _E.SEND_FAILED): _S.ABORTABLE_ERROR,
    (_S.IN_TRANSACTION, _E.COMMIT): _S.COMMITTING_TRANSACTION,
    (_S.IN_TRANSACTION, _E.ABORT): _S.ABORTING_TRANSACTION,
    (_S.ABORTABLE_ERROR, _E.ABORT): _S.ABORTING_TRANSACTION,
    (_S.COMMITTING_TRANSACTION, _E.ENDED): _S.READY,
    (_S.ABORTING_TRANSACTION, _E.ENDED): _S.READY,
} | {
    (state, event): target
    for state in State
    if state not in {_S.UNINITIALIZED, _S.UNKNOWN, _S.FATAL_ERROR, _S.CLOSED}
    for event, target in ((_E.OUTCOME_UNKNOWN, _S.UNKNOWN), (_E.FATAL, _S.FATAL_ERROR))
}
TRANSITIONS |= {(state, _E.CLOSE): _S.CLOSED for state in State if state is not _S.CLOSED}


def advance(state: State, event: Event) -> State:
    """Return the state after the event; raise InvalidTransitionError where the table has none."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise InvalidTransitionError(f"{event.name} is not possible in {state.name}") from None
