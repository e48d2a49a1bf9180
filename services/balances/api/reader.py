"""Answers from the view's database, off the event loop: each from one read-only snapshot, with the positions it shows.

What holds: threads, waiting questions and the time of each have a bound; a database that is away or being rebuilt is
one error, logged once for each outage. It must not know what is asked.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from services.balances.api import queries

READERS: Final = 4
"""Threads; a question takes about a millisecond."""
PENDING_MAX: Final = 256
"""Questions under way or waiting for a thread."""
READ_TIMEOUT_S: Final = 60.0
"""Seconds for one question; only the digest of many millions of balances takes so long."""
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
    """Asks the database.

    Args:
        engine: whose transactions are read-only snapshots, see `database.reading`; disposed of with the reader.
        pending_max: questions under way or waiting at once.
    """

    def __init__(self, engine: Engine, *, pending_max: int = PENDING_MAX) -> None:
        self._engine = engine
        self._executor = ThreadPoolExecutor(READERS, thread_name_prefix="view-reader")
        self._places = threading.BoundedSemaphore(pending_max)
        self._away = False

    async def read(self, question: Callable[[Connection], T]) -> Snapshot[T]:
        """Ask a question in a transaction of its own.

        Raises:
            DatabaseUnavailableError: it was not answered.
            ReaderBusyError: too many are being asked.
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
        """End the threads when what they do is done, within the database's own bounds, and close the connections."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)
        self._engine.dispose()
