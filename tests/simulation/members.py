"""A member of a consumer group, and the answers that it waits for."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

_T = TypeVar("_T")

NO_GENERATION: Final = -1


class Joined(NamedTuple):
    """The answer to JoinGroup.

    Attributes:
        members: (member id, instance id, metadata) of all members for the leader, and none for the others.
    """

    code: int
    member_id: str
    generation: int = NO_GENERATION
    protocol: str = ""
    leader: str = ""
    members: Sequence[tuple[str, str | None, bytes]] = ()


class Synced(NamedTuple):
    """The answer to SyncGroup."""

    code: int
    assignment: bytes = b""


@dataclass(slots=True)
class Member:
    """A member of the group.

    Attributes:
        instance: its group.instance.id; None for a dynamic member.
        protocols: metadata by assignor, most preferred first.
        joining, syncing: the answer that it waits for.
        expiry: the end of its session.
    """

    member_id: str
    instance: str | None
    session_s: float
    rebalance_s: float
    protocols: dict[str, bytes]
    assignment: bytes = b""
    joining: "asyncio.Future[Joined] | None" = None
    syncing: "asyncio.Future[Synced] | None" = None
    expiry: asyncio.TimerHandle | None = None

    def dismiss(self, code: int) -> None:
        """Refuse what waits under its id."""
        answer(self.joining, Joined(code, self.member_id))
        answer(self.syncing, Synced(code))


def waits(answer: "asyncio.Future[Any] | None") -> bool:
    """Whether a member waits for this answer."""
    return answer is not None and not answer.done()


def answer(waiting: "asyncio.Future[_T] | None", given: _T) -> None:
    """Give it, if the member still waits for it."""
    if waiting is not None and not waiting.done():
        waiting.set_result(given)
