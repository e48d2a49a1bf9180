"""Answers with their age, for every path of the read side."""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from sqlalchemy import Connection

from services.balances.api import parameters, queries
from services.balances.api.parameters import Query, Refusal, RefusedError
from services.balances.api.reader import Reader, Waiting, read_dated
from services.balances.projection.progress import Position, Progress
from shared.events.fields import HOUSE_ACCOUNTS

FRESHNESS_TIMEOUT_S: Final = 2.0  # after it, an answer does not say how old it is

T = TypeVar("T")
Question = Callable[[Connection], T]


class Snapshots:
    """Asks the view's database, and says as of when it answered.

    Args:
        partitions: of ledger.postings.
        waiting: for the view, of requests that ask for it.
    """

    def __init__(self, reader: Reader, progress: Progress, partitions: int, waiting: Waiting) -> None:
        self.partitions = partitions
        self.all = range(partitions)
        self._reader = reader
        self._progress = progress
        self._waiting = waiting

    async def ask(self, question: Question[T], partitions: Iterable[int]) -> tuple[T, tuple[Position, ...]]:
        """Ask; return the answer, and how old it is."""
        return await read_dated(self._reader, self._progress, question, partitions, FRESHNESS_TIMEOUT_S)

    async def ask_until(
        self, question: Question[T], enough: Callable[[T], bool], timeout_s: float, client: str | None
    ) -> tuple[T, tuple[Position, ...]]:
        """Ask about all partitions until the answer is enough or the client's time is over; return the last one."""

        async def look() -> tuple[T, tuple[Position, ...]]:
            return await self.ask(question, self.all)

        return await self._waiting.until(look, lambda seen: enough(seen[0]), timeout_s, client)

    async def reach(self, query: Query, client: str | None) -> None:
        """Wait for the records that the client has to see; RefusedError if the view does not read them in time."""
        wanted = parameters.wanted(query.at_least, self.partitions)
        if wanted and not await self._waiting.reached(wanted, query.timeout, client):
            _, now = await self.ask(queries.positions, sorted(wanted))
            raise _not_reached(wanted, query.timeout, now)


def no_account(name: str, now: tuple[Position, ...]) -> RefusedError:
    read = "; ".join(f"partition {one.partition} is read up to offset {one.next_offset}" for one in now)
    hint = f" (a house account's has its partition, as {name}@0)" if name in HOUSE_ACCOUNTS else ""
    detail = (
        f"no account of this name was opened or posted to so far ({read}): check its name{hint}, or wait for what you "
        "wrote with ?at_least=partition:offset"
    )
    return RefusedError(Refusal.NOT_FOUND, detail, now)


def _not_reached(wanted: dict[int, int], timeout_s: float, now: tuple[Position, ...]) -> RefusedError:
    missing = ", ".join(
        f"{one.partition}:{wanted[one.partition]} (partition {one.partition} is read up to offset {one.next_offset})"
        for one in now
    )
    detail = (
        f"the view has not read all of these within {timeout_s:g} s: {missing}. Ask again, with a timeout of up to "
        f"{parameters.WAIT_S_MAX:g} s, or without at_least for an answer as it is now"
    )
    return RefusedError(Refusal.NOT_REACHED, detail, now)
