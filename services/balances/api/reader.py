"""Answers from the view's database, off the event loop: each from one read-only snapshot, with its positions.

Invariant: threads, waiting questions and the time of each have a bound. A database that is away or being rebuilt is one
error, logged once for each outage. Clients may wait until the view has read what they wrote; how long and how many is
bounded too. The database decides whether it is there: another instance may have written it, or the view may have
started over. The worker's progress only makes the wait shorter.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from services.balances.api import queries
from services.balances.api.parameters import Refusal, RefusedError
from services.balances.projection.database import abort
from services.balances.projection.progress import PartitionFreshness, Position, Progress, as_of
from services.balances.projection.writing import end_threads
from shared.http.serving import ClientPlaces

READERS: Final = 4  # threads; a question takes about a millisecond
PENDING_MAX: Final = 256  # questions under way or waiting for a thread
READ_TIMEOUT_S: Final = 60.0  # only the digest of many millions of balances takes so long
WAITERS_MAX: Final = 256
WAITERS_OF_CLIENT_MAX: Final = 64
LOOKS_PER_S: Final = 256  # at the database, by all who wait; with more of them, each looks less often
LOOK_S: Final = 0.5  # between two looks, for what another instance wrote
_FIRST_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.25
_UNDEFINED_TABLE: Final = "42P01"

T = TypeVar("T")

log = logging.getLogger(__name__)


class DatabaseUnavailableError(Exception):
    """The view's database does not answer, or has no tables at the moment."""


class ReaderBusyError(Exception):
    """Too many questions are under way."""


class Snapshot(NamedTuple, Generic[T]):
    """An answer, and the next offset by partition that it was made from."""

    found: T
    positions: Mapping[int, int]


class Reader:
    """Asks the database through an engine of read-only snapshots, see `database.reading`. `close` disposes of it."""

    def __init__(self, engine: Engine, *, pending_max: int = PENDING_MAX) -> None:
        self._engine = engine
        self._executor = ThreadPoolExecutor(READERS, thread_name_prefix="view-reader")
        self._places = threading.BoundedSemaphore(pending_max)
        self._away = False

    async def read(self, question: Callable[[Connection], T]) -> Snapshot[T]:
        """Ask a question in a transaction of its own.

        Raises DatabaseUnavailableError if it was not answered, ReaderBusyError if too many are pending.
        """
        if not self._places.acquire(blocking=False):
            raise ReaderBusyError
        asked = self._executor.submit(self._ask, question)
        asked.add_done_callback(lambda _: self._places.release())  # a thread that hangs keeps its place
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                answer = await asyncio.wrap_future(asked)
        except TimeoutError as error:
            raise self._unavailable(f"no answer within {READ_TIMEOUT_S:g} s") from error
        except (OperationalError, InterfaceError, PoolTimeoutError) as error:
            raise self._unavailable(str(error).partition("\n")[0]) from error
        except ProgrammingError as error:
            if getattr(error.orig, "sqlstate", None) != _UNDEFINED_TABLE:
                raise
            raise self._unavailable("it has no tables: the view is being built") from error
        if self._away:
            self._away = False
            log.info("the database answers again")
        return answer

    def _ask(self, question: Callable[[Connection], T]) -> Snapshot[T]:
        with self._engine.connect() as connection, connection.begin():
            return Snapshot(question(connection), queries.positions(connection))

    def _unavailable(self, reason: str) -> DatabaseUnavailableError:
        if not self._away:  # once for each outage, not for each question
            self._away = True
            log.warning("the database does not answer", extra={"reason": reason})
        return DatabaseUnavailableError(reason)

    async def close(self) -> None:
        """End the threads after their current questions, which are aborted soon, and close the connections."""
        await end_threads(self._executor, partial(abort, self._engine))
        self._engine.dispose()


async def read_dated(
    reader: Reader, progress: Progress, question: Callable[[Connection], T], partitions: Iterable[int], timeout_s: float
) -> tuple[T, tuple[Position, ...]]:
    """Ask a question; return the answer, and how old it is if the worker reports its progress in time."""
    # Before the snapshot, so that the answer is not older than it says
    freshness = await _freshness(progress, timeout_s)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    found, positions = await reader.read(question)
    return found, as_of(positions, freshness, partitions, loop.time() - begun_s)


async def _freshness(progress: Progress, timeout_s: float) -> dict[int, PartitionFreshness]:
    """The worker's progress by partition; empty if it does not come in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return {one.partition: one for one in await progress.freshness()}
    except TimeoutError:
        return {}


def busy() -> RefusedError:
    """The refusal of a request that finds no place."""
    return RefusedError(Refusal.BUSY, "too many requests are under way: ask again in a moment")


class Waiting:
    """Waits for clients, for `waiters_max` requests at once, and so many of one client; one more is refused.

    A client is a name, or None where keys do not tell clients apart.
    """

    def __init__(
        self,
        reader: Reader,
        progress: Progress,
        *,
        waiters_max: int = WAITERS_MAX,
        of_client_max: int = WAITERS_OF_CLIENT_MAX,
    ) -> None:
        self._reader = reader
        self._progress = progress
        self._places = ClientPlaces(waiters_max, of_client_max, busy)

    def _pause_s(self, least_s: float) -> float:
        return max(least_s, self._places.taken / LOOKS_PER_S)

    async def reached(self, wanted: Mapping[int, int], timeout_s: float, client: str | None) -> bool:
        """Whether these records, offset by partition of ledger.postings, are in the tables within the time.

        Raises RefusedError if too many wait, and as `Reader.read`.
        """
        if await self._there(wanted, 0.0):
            return True
        if timeout_s == 0:
            return False
        deadline = asyncio.get_running_loop().time() + timeout_s
        with self._places.one(client):
            while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
                if await self._there(wanted, min(left_s, self._pause_s(LOOK_S))):
                    return True
                # The worker may report more than the database has: it is being rebuilt
                left_s = deadline - asyncio.get_running_loop().time()
                await asyncio.sleep(min(left_s, self._pause_s(_FIRST_PAUSE_S)))
        return False

    async def _there(self, wanted: Mapping[int, int], timeout_s: float) -> bool:
        await asyncio.gather(
            *(self._progress.reached(partition, offset, timeout_s) for partition, offset in wanted.items())
        )
        positions = (await self._reader.read(queries.positions)).found
        return all(positions.get(partition, 0) > offset for partition, offset in wanted.items())

    async def until(
        self, look: Callable[[], Awaitable[T]], enough: Callable[[T], bool], timeout_s: float, client: str | None
    ) -> T:
        """Look until it is enough or the time is over, and return what the last look gave; 0 seconds look once.

        Raises RefusedError if too many wait.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        found = await look()
        if timeout_s == 0 or enough(found):
            return found
        with self._places.one(client):
            pause_s = self._pause_s(_FIRST_PAUSE_S)
            while not enough(found) and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, self._pause_s(_PAUSE_MAX_S))
                found = await look()
        return found
