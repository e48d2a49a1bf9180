"""A local stack from its start to its end, for drills: whatever happens meanwhile, nothing is left running."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from deploy.local.supervisor.stack import Stack

READY_S: Final = 120.0


@asynccontextmanager
async def starting(stack: Stack) -> AsyncIterator[None]:
    """Start a stack and wait until it is ready; it is killed at the end.

    Raises:
        StackNotReadyError, KafkaNotReadyError, ...: it did not come up; each names the component.
    """
    # The stack waits by itself; in a thread, so that signals reach this loop
    start = asyncio.create_task(asyncio.to_thread(stack.start))
    try:
        await asyncio.shield(start)
        await asyncio.to_thread(stack.wait_ready, READY_S)
        yield
    finally:
        await asyncio.to_thread(stack.kill)
        await asyncio.wait([start])  # soon, for its brokers have ended; until then it writes to the directory
        start.exception()
