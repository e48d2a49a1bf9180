"""Faults of a transaction's requests, and the moment when a late request does most harm. Pure."""

from enum import Enum
from typing import Final, NamedTuple

from deploy.drills.proxy.rules import Action, Drop, Hold, Part, RepeatLate

APIS: Final = ("Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "InitProducerId")


class Kind(Enum):
    """What happens to one request.

    DOUBLED is a copy that arrives by another connection after the transaction. LATE is the request itself, held until
    its client has given up and worked on. KILLED_BEFORE kills the coordinator's broker when the request is on its way
    there, KILLED_AFTER when the answer is on its way back; the broker is started again at once.
    """

    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    DOUBLED = "copy late"
    LATE = "request late"
    KILLED_BEFORE = "broker killed before"
    KILLED_AFTER = "broker killed after"


ACTIONS: Final[dict[Kind, Action]] = {
    Kind.REQUEST_LOST: Drop(Part.REQUEST),
    Kind.ANSWER_LOST: Drop(Part.ANSWER),
    Kind.DOUBLED: RepeatLate(),
    Kind.LATE: Hold(Part.REQUEST),
    Kind.KILLED_BEFORE: Drop(Part.REQUEST),
    Kind.KILLED_AFTER: Drop(Part.ANSWER),
}


class Moment(Enum):
    """When a late request is delivered: with no transaction open, or before a request of the next one."""

    IDLE = None
    BEFORE_OFFSETS = "TxnOffsetCommit"
    BEFORE_END = "EndTxn"


MOMENTS: Final = {
    "Produce": Moment.BEFORE_END,  # it becomes a part of the next transaction
    "AddPartitionsToTxn": Moment.IDLE,  # it opens a transaction that the coordinator aborts after the timeout
    "AddOffsetsToTxn": Moment.IDLE,  # the same
    "TxnOffsetCommit": Moment.BEFORE_END,  # it takes the group's offset back
    "EndTxn": Moment.BEFORE_OFFSETS,  # it ends the next transaction, which has its records and no offsets
    "InitProducerId": Moment.BEFORE_END,  # it fences the producer; earlier, other requests may still be under way
}


class Fault(NamedTuple):
    """A kind of fault, for one API."""

    api: str
    kind: Kind

    @property
    def is_late(self) -> bool:
        """Whether something is delivered at a moment."""
        return self.kind in {Kind.DOUBLED, Kind.LATE}

    @property
    def kills(self) -> bool:
        """Whether a broker is killed, under all cells that use it."""
        return self.kind in {Kind.KILLED_BEFORE, Kind.KILLED_AFTER}

    def __str__(self) -> str:
        return f"{self.api}, {self.kind.value}"


FAULTS: Final = tuple(Fault(api, kind) for api in APIS for kind in Kind)
