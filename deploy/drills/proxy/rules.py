"""Rules: the requests that they select, what happens to those, and the evidence that it happened. Pure.

A connection is a stream, and brokers answer in the order of the requests. So what follows a lost request or answer on a
connection is lost with it, and what follows a late one waits for it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from deploy.drills.proxy.requests import GROUP, TOPIC, TRANSACTIONAL_ID, Request, apis
from shared.kafka.protocol.codec import Values


class Part(Enum):
    """The half of an exchange that a fault affects."""

    REQUEST = "request"
    ANSWER = "answer"


@dataclass(frozen=True)
class Count:
    """Count the matches, and change nothing."""


@dataclass(frozen=True)
class Drop:
    """Lose the request or its answer. The connection stays open, without answers, or is closed."""

    part: Part
    closes: bool = False


@dataclass(frozen=True)
class Delay:
    """Deliver the request or its answer so many seconds later, even to or from a client that has given up."""

    part: Part
    seconds: float


@dataclass(frozen=True)
class Hold:
    """Deliver the request or its answer when the rule is released."""

    part: Part


@dataclass(frozen=True)
class Repeat:
    """Deliver the request twice on its connection. The client gets the first answer."""


@dataclass(frozen=True)
class RepeatLate:
    """Deliver the request, and a copy later by another connection; its answer is kept as evidence.

    Attributes:
        seconds: from the request to its copy; None: until the rule is released.
    """

    seconds: float | None = None


@dataclass(frozen=True)
class Close:
    """Close the client's connection before or after the request is forwarded."""

    forwards: bool


@dataclass(frozen=True)
class Acknowledge:
    """Acknowledge a Produce request in the broker's place: to its client, the records are written, and then lost."""


Action = Count | Drop | Delay | Hold | Repeat | RepeatLate | Close | Acknowledge


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Requests, and what happens to them.

    Attributes:
        api: Kafka's name of the API, such as EndTxn.
        client_id: its beginning.
        topic, transactional_id, group: a name that the request must have; None selects any request.
        first: the match with which the rule begins to act, from 1.
        times_max: how often it acts; None means at every match.

    Raises:
        ValueError: the API is unknown, or a number is less than 1.
    """

    api: str
    action: Action
    client_id: str = ""
    topic: str | None = None
    transactional_id: str | None = None
    group: str | None = None
    first: int = 1
    times_max: int | None = 1

    def __post_init__(self) -> None:
        if self.api not in apis().values():
            raise ValueError(f"no API has the name {self.api!r}: use one of {', '.join(sorted(apis().values()))}")
        if self.first < 1 or (self.times_max is not None and self.times_max < 1):
            raise ValueError(f"first and times_max of {self} count from 1")

    def selects(self, request: Request, topic_ids: Mapping[bytes, str]) -> bool:
        """Whether the request is one of the rule's; `topic_ids` as for `Request.names`."""
        if request.api != self.api or not request.client_id.startswith(self.client_id):
            return False
        wanted = {TOPIC: self.topic, TRANSACTIONAL_ID: self.transactional_id, GROUP: self.group}
        if all(name is None for name in wanted.values()):
            return True
        names = request.names(topic_ids)
        return all(name is None or name in names.get(kind, ()) for kind, name in wanted.items())


@dataclass
class Act:
    """One request on which a rule acted.

    Attributes:
        at_s: when it was read from the client, in seconds since 1970 UTC.
        is_done: whether all that belongs to it was delivered, lost or closed. It stays False where the broker closes
            the connection, or an earlier rule has lost the request.
        answer: the broker's answer: the one that was lost or late, or that of the copy; None before, or without one.
        followers: later requests and answers of the connection that were lost with it.
    """

    at_s: float
    client_id: str
    correlation_id: int
    is_done: bool = False
    answer: Values | None = None
    followers: int = 0


@dataclass
class Evidence:
    """How often a rule matched, and each time that it acted."""

    matches: int = 0
    acts: list[Act] = field(default_factory=list)

    @property
    def done(self) -> int:
        """How many acts are done."""
        return sum(act.is_done for act in self.acts)

    def note(self, rule: Rule, request: Request, at_s: float, *, may_act: bool = True) -> Act | None:
        """Count a match, and begin an act if it is the rule's turn.

        Args:
            at_s: now, in seconds since 1970 UTC.
            may_act: whether no earlier rule acts on the request.
        """
        self.matches += 1
        is_due = self.matches >= rule.first and (rule.times_max is None or len(self.acts) < rule.times_max)
        if not is_due or not may_act or isinstance(rule.action, Count):
            return None
        act = Act(at_s, request.client_id, request.correlation_id)
        self.acts.append(act)
        return act


ERROR_FIELDS: Final = ("ErrorCode", "PartitionErrorCode")


def error_codes(answer: Values) -> set[int]:
    """Return all error codes in an answer; 0 is success."""
    return set(_codes(answer))


def _codes(value: object) -> Iterable[int]:
    if isinstance(value, list):
        for item in value:
            yield from _codes(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in ERROR_FIELDS:
                yield item
            else:
                yield from _codes(item)
