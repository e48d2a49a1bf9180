"""Wait for conditions, and for a log without open transactions."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager

from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Target
from shared.kafka.client.reader import end_offsets, stable_offsets

_POLL_S = 0.02


async def until(reached: Callable[[], bool], what: str, within_s: float = 30.0) -> float:
    """Wait for a condition, and return the seconds waited.

    Raises:
        TimeoutError: it did not come true within `within_s` seconds.
    """

    async def holds() -> bool:
        return reached()

    return await eventually(holds, what, within_s)


async def eventually(
    reached: Callable[[], Awaitable[bool]], what: str, within_s: float = 30.0, *, every_s: float = _POLL_S
) -> float:
    """Wait for a condition that must itself be awaited, and return the seconds waited.

    Args:
        every_s: seconds between two looks; more for those that cost the brokers much.

    Raises:
        TimeoutError: it did not come true within `within_s` seconds.
    """
    begun_s = time.monotonic()
    with waiting_for(what):
        while not await reached():
            if time.monotonic() - begun_s >= within_s:
                raise TimeoutError(f"not within {within_s:.3g} s: {what}")
            await asyncio.sleep(every_s)
    return time.monotonic() - begun_s


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Add a note to a cancellation: the reason of a drill that timed out then says what it waited for."""
    try:
        yield
    except asyncio.CancelledError as error:
        error.add_note(what)
        raise


async def settled(access: Bootstrap, topics: Collection[str]) -> bool:
    """Whether no transaction is open in these topics. Markers are written after EndTxn was answered: wait for it."""
    return await stable_offsets(access, topics) == await end_offsets(access, topics)


async def settled_at(access: Bootstrap, target: Target) -> bool:
    """Whether no transaction is open in one partition."""
    topics = [target[0]]
    stable, ends = await stable_offsets(access, topics), await end_offsets(access, topics)
    return stable[target] == ends[target]
