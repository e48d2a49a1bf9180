"""Requests with symbols for what brokers assign, so that several brokers can be asked the same.

A symbol is a field of an earlier answer, an offset from the sequence's beginning, or a batch of a producer. Each
broker's caller puts in what its broker gave.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from shared.events import catalogue
from shared.kafka.protocol.codec import Values
from tests.partitions import PARTITIONS

Target = tuple[str, int]

VERSIONS: Final[Mapping[str, range]] = {
    "AddOffsetsToTxn": range(4),
    "AddPartitionsToTxn": range(4),
    "ConsumerGroupDescribe": range(2),
    "ConsumerGroupHeartbeat": range(2),
    "DescribeProducers": range(1),
    "DescribeTransactions": range(1),
    "EndTxn": range(6),
    "Fetch": range(4, 12),
    "FindCoordinator": range(4),
    "Heartbeat": range(2),
    "InitProducerId": range(6),
    "JoinGroup": range(4, 6),
    "LeaveGroup": range(2),
    "ListOffsets": range(1, 6),
    "OffsetCommit": range(2, 10),
    "OffsetFetch": range(1, 8),
    "Produce": range(3, 13),
    "SyncGroup": range(1, 4),
    "TxnOffsetCommit": range(6),
}
"""The versions that the project's clients send, or those that the model is made for where these are more."""
_TOPICS: Final = (
    (catalogue.PAYMENTS_DEDUPLICATED, catalogue.PAYMENTS_ACCEPTED),
    (catalogue.PAYMENTS_RAW, catalogue.PAYMENTS_DEAD_LETTER),
    (catalogue.LEDGER_TRANSFERS, catalogue.LEDGER_POSTINGS),
)
"""Without compaction."""


class Places(NamedTuple):
    """The partitions of a sequence: brokers describe all producers of a partition, those of other sequences as well."""

    topics: tuple[str, str]
    numbers: tuple[int, int]

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple((topic, number) for topic in self.topics for number in self.numbers)


def places_of(seed: int) -> Places:
    """Two partitions each of two topics."""
    first = 2 * (seed // len(_TOPICS) % (PARTITIONS // 2))
    return Places(_TOPICS[seed % len(_TOPICS)], (first, first + 1))


class Fault(Enum):
    """An accident of one request."""

    TWICE = "a second copy arrives by another connection, after the first was answered"
    LOST = "the connection is closed before the answer is read"


class Given(NamedTuple):
    """A field of the answer to an earlier step.

    Attributes:
        copy: 1 for the second answer to a request that was sent twice.
        more: added to a number.
    """

    step: int
    name: str
    copy: int = 0
    more: int = 0


class At(NamedTuple):
    """An offset, counted from the beginning of the sequence."""

    target: Target
    more: int


class TopicId(NamedTuple):
    """The id that the broker has given to a topic."""

    topic: str


class Data(NamedTuple):
    """A record batch."""

    producer_id: Given | int
    epoch: Given | int
    sequence: int
    values: tuple[bytes, ...]
    is_transactional: bool


@dataclass(frozen=True, slots=True)
class Step:
    """One request, its values with symbols."""

    api: str
    version: int
    values: Values
    fault: Fault | None = None


class Session(NamedTuple):
    """A producer id and epoch, by the answer that gave them."""

    step: int
    copy: int = 0

    def given(self, more: int = 0) -> tuple[Given, Given]:
        """The producer id, and the epoch or one near it."""
        return Given(self.step, "ProducerId", self.copy), Given(self.step, "ProducerEpoch", self.copy, more)


@dataclass(slots=True)
class Producer:
    """What a client would know of its transactional.id, or of none, if all requests succeeded.

    Attributes:
        surpassed: whether an answer with a newer session was lost.
        opened: whether a transaction has been opened by the newest session.
    """

    name: str | None
    surpassed: bool = False
    opened: bool = False
    sessions: list[Session] = field(default_factory=list)
    added: set[Target] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    written: dict[tuple[Session, Target], list[tuple[int, tuple[bytes, ...]]]] = field(default_factory=dict)


@dataclass(slots=True)
class Member:
    """The member of a group: the steps of the answers that gave its id and its generation."""

    group: str
    given: int | None = None
    joined: Session | None = None


@dataclass(slots=True)
class Consumer:
    """The member of a group of the newer protocol.

    Attributes:
        topics: its subscription.
        beats: the answers that gave it an epoch, since it has joined.
    """

    group: str
    member_id: str
    topics: tuple[str, ...] = ()
    beats: list[Session] = field(default_factory=list)
