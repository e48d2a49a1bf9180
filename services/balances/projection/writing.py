"""The one thread that writes to the view's database, and its retries while the database is away.

Invariant: calls run one after the other, in order. A call that the database did not answer is repeated for a bounded
time; meanwhile the view is not ready.
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
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0

DATABASE: Final = "database"  # the condition of readiness

DATABASE_RETRIES = counter(catalogue.VIEW_DATABASE_RETRIES)

T = TypeVar("T")

log = logging.getLogger(__name__)


class Writing:
    """Runs calls in the thread, and retries them for `deadline_s` while the database is away."""

    def __init__(self, health: Health, *, deadline_s: float = DEADLINE_S) -> None:
        self._health = health
        self._deadline_s = deadline_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="view-writer")
        self._away = False

    async def call(self, call: Callable[[], T]) -> T:
        """Run a call; FatalError if the database was away for too long."""
        loop = asyncio.get_running_loop()
        begun_s, pause_s = loop.time(), PAUSE_S
        while True:
            try:
                result = await loop.run_in_executor(self._thread, call)
            except DatabaseAwayError as error:
                self._missing(error)
                if loop.time() - begun_s > self._deadline_s:
                    raise FatalError(f"the database was away for {self._deadline_s:g} s: {error}") from error
            else:
                self._met()
                return result
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def end(self) -> None:
        """Wait for the current call, which has bounds of its own, and end the thread."""
        await asyncio.to_thread(self._thread.shutdown)

    def _missing(self, error: DatabaseAwayError) -> None:
        DATABASE_RETRIES.inc()
        self._health.missing(DATABASE, str(error))
        if not self._away:  # once for each outage, not for each try
            self._away = True
            log.warning("the database does not answer", extra={"reason": str(error)})

    def _met(self) -> None:
        self._health.met(DATABASE)
        if self._away:
            self._away = False
            log.info("the database answers again")
