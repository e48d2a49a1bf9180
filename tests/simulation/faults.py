"""The faults of a history: each has a time, a target and a length, and is healed by itself or at the history's healing.

A fault is plain data, so that a history can be printed, replayed, and shrunk to the faults that matter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from shared.kafka.protocol.headers import api_key, decode_request, decode_request_header
from tests.simulation.trouble import USUAL, Calm, Fate

NEVER_S: Final = 100_000.0
"""How late an answer is that never comes, seconds of virtual time."""

Way = Literal["request", "answer"]


class Fault(msgspec.Struct, frozen=True, tag=True):
    """What all faults have.

    Attributes:
        at_s: seconds of virtual time from the beginning of the history.
    """

    at_s: float


class Kill(Fault, frozen=True, tag=True):
    """SIGKILL to a process, when it has run `calls` more of the loop's; started again after `for_s`."""

    who: str
    calls: int
    for_s: float


class Pause(Fault, frozen=True, tag=True):
    """SIGSTOP to a process, and SIGCONT."""

    who: str
    for_s: float


class Leave(Fault, frozen=True, tag=True):
    """SIGTERM to a process, and a new start."""

    who: str
    for_s: float


class Join(Fault, frozen=True, tag=True):
    """One more instance of a service; it stays."""

    service: str


class Twin(Fault, frozen=True, tag=True):
    """A second process under the ONCE_INSTANCE of another one."""

    who: str
    for_s: float


class KillBroker(Fault, frozen=True, tag=True):
    """SIGKILL to a broker, and a new start with what is on its disk."""

    node: int
    for_s: float


class Move(Fault, frozen=True, tag=True):
    """Another in-sync replica leads a partition; `turn` chooses it."""

    topic: str
    partition: int
    turn: int


class Cut(Fault, frozen=True, tag=True):
    """Nothing passes between two parties."""

    one: str
    other: str
    for_s: float


class Lose(Fault, frozen=True, tag=True):
    """Requests or their answers are lost, each with its connection."""

    who: str
    api: str
    way: Way
    count: int


class Delay(Fault, frozen=True, tag=True):
    """Requests or their answers take longer, by `for_s`; NEVER_S for what never comes."""

    who: str
    api: str
    way: Way
    count: int
    for_s: float


class Orphan(Fault, frozen=True, tag=True):
    """Connections are lost as requests leave by them, and the requests arrive all the same.

    Attributes:
        for_s: how much later.
        until: or when a request of this API under the same transactional.id is answered; empty for a time.
        nth: which of them.
    """

    who: str
    api: str
    count: int
    for_s: float
    until: str = ""
    nth: int = 1


class Refuse(Fault, frozen=True, tag=True):
    """A partition, or each of the topic, refuses batches of records for good."""

    topic: str
    partition: int | None
    count: int


class HoldMarkers(Fault, frozen=True, tag=True):
    """The markers of transactions do not get to a partition."""

    topic: str
    partition: int
    for_s: float


class HoldReplication(Fault, frozen=True, tag=True):
    """A partition's followers fetch nothing, so its end is lost with its leader."""

    topic: str
    partition: int
    for_s: float


class Tear(Fault, frozen=True, tag=True):
    """A transaction coordinator acts on decisions that only it has, out of one broker's reach, and is succeeded.

    Attributes:
        partition: of the state topic.
        turn: chooses the broker that it does not reach, and that succeeds it.
    """

    partition: int
    turn: int


class Upon(Fault, frozen=True, tag=True):
    """Another fault, when a process sends the next request of an API."""

    who: str
    api: str
    then: Kill | Pause | Leave | Join | Tear


OfRequests = Lose | Delay | Orphan
AnyFault = (
    Kill
    | Pause
    | Leave
    | Join
    | Twin
    | KillBroker
    | Move
    | Cut
    | Lose
    | Delay
    | Orphan
    | Refuse
    | HoldMarkers
    | HoldReplication
    | Tear
    | Upon
)


@dataclass(slots=True)
class Held:
    """A request that leaves when so many requests of an API under its transactional.id are answered."""

    until: str
    left: int
    transactional_id: str
    leave: Callable[[], None]


class Troubles(Calm):
    """Requests and answers that are lost or late: the next `count` that a fault names."""

    def __init__(self) -> None:
        self._left: dict[OfRequests, int] = {}
        self._held: list[Held] = []
        self._awaited: dict[Upon, Callable[[], None]] = {}

    def add(self, fault: OfRequests) -> None:
        """Begin."""
        self._left[fault] = fault.count

    def wait(self, fault: Upon, then: Callable[[], None]) -> None:
        """Call `then` when its request leaves."""
        self._awaited[fault] = then

    def clear(self) -> None:
        """Nothing more is lost or late, and nothing waits for a request."""
        self._left.clear()
        self._awaited.clear()
        for one in self._held:
            one.leave()
        self._held = []

    def of_request(self, client: str, request: bytes) -> Fate:
        for fault in [one for one in self._awaited if _matches(one, client, request)]:
            self._awaited.pop(fault)()
        return self._fate(client, request, "request")

    def of_answer(self, client: str, request: bytes) -> Fate:
        for one in list(self._held):
            if api_key(one.until) == _key(request) and _transactional_id(one.until, request) == one.transactional_id:
                one.left -= 1
                if one.left == 0:
                    self._held.remove(one)
                    one.leave()
        return self._fate(client, request, "answer")

    def _fate(self, client: str, request: bytes, way: Way) -> Fate:
        for fault in self._left:
            of_way = way == ("request" if isinstance(fault, Orphan) else fault.way)
            if of_way and _matches(fault, client, request):
                self._left[fault] -= 1
                if self._left[fault] == 0:
                    del self._left[fault]
                return self._fate_of(fault, request)
        return USUAL

    def _fate_of(self, fault: OfRequests, request: bytes) -> Fate:
        if isinstance(fault, Lose):
            return Fate(arrives=False)
        if not isinstance(fault, Orphan):
            return Fate(fault.for_s)
        if not fault.until:
            return Fate(fault.for_s, resets=True)
        name = _transactional_id(fault.api, request)
        return Fate(resets=True, held=lambda leave: self._held.append(Held(fault.until, fault.nth, name, leave)))


def _matches(fault: OfRequests | Upon, client: str, request: bytes) -> bool:
    return client.startswith(fault.who) and _key(request) == api_key(fault.api)


def _key(request: bytes) -> int:
    return int.from_bytes(request[:2], "big")


def _transactional_id(api: str, request: bytes) -> str:
    values = decode_request(api, decode_request_header(request).version, request)
    return values["TransactionalId"] or ""
