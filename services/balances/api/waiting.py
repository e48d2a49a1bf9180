"""Waiting until the view has read what a client wrote, with a bound on how long and on how many wait.

What holds: the database decides whether something is there: another instance may have put it in, or the view may have
begun anew. The worker's word only makes it quicker. It must not know HTTP.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from services.balances.api import queries
from services.balances.api.reader import Reader
from services.balances.api.refusals import Refusal, RefusedError
from services.balances.projection.progress import Progress
from shared.http.serving import Places

WAITERS_MAX: Final = 64
LOOK_S: Final = 0.5
"""Seconds between two looks at the database, for what another instance wrote."""
_FIRST_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 0.25

T = TypeVar("T")


def busy() -> RefusedError:
    """What a client is told whose request finds no place."""
    return RefusedError(Refusal.BUSY, "too many requests are under way: ask again in a moment")


class Waiting:
    """Waits for clients.

    Args:
        reader: of the view's database.
        progress: the worker's word.
        waiters_max: requests that wait at once; one more is refused.
    """

    def __init__(self, reader: Reader, progress: Progress, *, waiters_max: int = WAITERS_MAX) -> None:
        self._reader = reader
        self._progress = progress
        self._places = Places(waiters_max, busy)

    async def reached(self, wanted: Mapping[int, int], timeout_s: float) -> bool:
        """Whether these records are in the tables, within the time.

        Args:
            wanted: offset by partition of ledger.postings.
            timeout_s: seconds.

        Raises:
            RefusedError: too many wait.
            DatabaseUnavailableError, ReaderBusyError: the database was not asked.
        """
        if await self._there(wanted, 0.0):
            return True
        if timeout_s == 0:
            return False
        deadline = asyncio.get_running_loop().time() + timeout_s
        with self._places.one():
            while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
                if await self._there(wanted, min(left_s, LOOK_S)):
                    return True
                await asyncio.sleep(_FIRST_PAUSE_S)  # where the worker was told more than the database has
        return False

    async def _there(self, wanted: Mapping[int, int], timeout_s: float) -> bool:
        await asyncio.gather(
            *(self._progress.reached(partition, offset, timeout_s) for partition, offset in wanted.items())
        )
        positions = (await self._reader.read(queries.positions)).found
        return all(positions.get(partition, 0) > offset for partition, offset in wanted.items())

    async def until(self, look: Callable[[], Awaitable[T]], enough: Callable[[T], bool], timeout_s: float) -> T:
        """Look until it is enough or the time is over.

        Args:
            look: gives what there is.
            enough: whether that is what is waited for.
            timeout_s: seconds; 0 looks once.

        Returns:
            what the last look gave.

        Raises:
            RefusedError: too many wait.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        found = await look()
        if timeout_s == 0 or enough(found):
            return found
        pause_s = _FIRST_PAUSE_S
        with self._places.one():
            while not enough(found) and (left_s := deadline - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
                found = await look()
        return found
