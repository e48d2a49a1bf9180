"""Wait for conditions that must be awaited, and for a log without open transactions."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection

from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import Target
from shared.kafka.client.reader import end_offsets, stable_offsets


async def eventually(reached: Callable[[], Awaitable[bool]], what: str, deadline_s: float = 30.0) -> None:
    """Wait for a condition that must itself be awaited.

    Raises:
        TimeoutError: it did not come true within `deadline_s` seconds.
    """
    end_s = time.monotonic() + deadline_s
    while not await reached():
        if time.monotonic() >= end_s:
            raise TimeoutError(f"not within {deadline_s} s: {what}")
        await asyncio.sleep(0.02)


async def settled(access: Bootstrap, topics: Collection[str]) -> bool:
    """Whether no transaction is open in these topics. Markers are written after EndTxn was answered: wait for it."""
    return await stable_offsets(access, topics) == await end_offsets(access, topics)


async def settled_at(access: Bootstrap, target: Target) -> bool:
    """Whether no transaction is open in one partition."""
    topics = [target[0]]
    stable, ends = await stable_offsets(access, topics), await end_offsets(access, topics)
    return stable[target] == ends[target]
