"""The one thread that writes to the view's database, and its retries while the database is away.

Invariant: calls run one after the other, in order. A call that the database did not answer is repeated for a bounded
time; meanwhile the view is not ready. A call that takes too long is aborted: a frozen server does not end it.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from services.balances.projection.store import DatabaseAwayError
from shared.eos.errors import FatalError
from shared.telemetry import catalogue
from shared.telemetry.instruments import counter
from shared.telemetry.server import Health

DEADLINE_S: Final = 300.0
CALL_S: Final = 60.0  # longer than a server lets one statement run; a call has several
END_S: Final = 3.0
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0

DATABASE: Final = "database"  # the condition of readiness

DATABASE_RETRIES = counter(catalogue.VIEW_DATABASE_RETRIES)

T = TypeVar("T")

log = logging.getLogger(__name__)


class Writing:
    """Runs calls in the thread, and retries them for `deadline_s` while the database is away.

    Args:
        abort: makes the current call raise DatabaseAwayError soon.
    """

    def __init__(self, health: Health, abort: Callable[[], None], *, deadline_s: float = DEADLINE_S) -> None:
        self._health = health
        self._abort = abort
        self._deadline_s = deadline_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="view-writer")
        self._away = False

    async def call(self, call: Callable[[], T], *, timeout_s: float | None = CALL_S) -> T:
        """Run a call; FatalError if the database was away for too long.

        Each try is aborted after `timeout_s` seconds, None for a call that may take minutes.
        """
        loop = asyncio.get_running_loop()
        begun_s, pause_s = loop.time(), PAUSE_S
        while True:
            late = None if timeout_s is None else loop.call_later(timeout_s, self._late, timeout_s)
            try:
                result = await loop.run_in_executor(self._thread, call)
            except DatabaseAwayError as error:
                DATABASE_RETRIES.inc()
                self._missing(error)
                if loop.time() - begun_s > self._deadline_s:
                    raise FatalError(f"the database was away for {self._deadline_s:g} s: {error}") from error
            else:
                self._met()
                return result
            finally:
                if late is not None:
                    late.cancel()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def end(self) -> None:
        """Wait for the current call, abort it after END_S, and end the thread."""
        await end_threads(self._thread, self._abort)

    def _late(self, timeout_s: float) -> None:
        self._missing(DatabaseAwayError(f"no answer within {timeout_s:g} s"))
        self._abort()

    def _missing(self, error: DatabaseAwayError) -> None:
        self._health.missing(DATABASE, str(error))
        if not self._away:  # once for each outage, not for each try
            self._away = True
            log.warning("the database does not answer", extra={"reason": str(error)})

    def _met(self) -> None:
        self._health.met(DATABASE)
        if self._away:
            self._away = False
            log.info("the database answers again")


async def end_threads(threads: ThreadPoolExecutor, abort: Callable[[], None]) -> None:
    """End threads after their current calls, which are aborted after END_S."""
    ended = asyncio.ensure_future(asyncio.to_thread(threads.shutdown, cancel_futures=True))
    while not (await asyncio.wait([ended], timeout=END_S))[0]:
        abort()
