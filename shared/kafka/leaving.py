"""How a consumer is closed while the brokers may be away.

The client's own `stop` waits for coordination without a bound, and lets a cancellation of its own out where a fetch
was about to be tried again. What holds: closing ends in time, whatever the brokers do, and its caller's own
cancellation is never taken for the client's. Nothing depends on the group being told: a member that is gone is noticed
by its session, and a static one leaves no word anyway (KIP-345).
"""

import asyncio
import logging
from typing import Any

LEAVE_DEADLINE_S = 10.0
"""Seconds; a request that is under way may take so long before its connection is given up."""

log = logging.getLogger(__name__)


async def leave(consumer: Any, *, deadline_s: float = LEAVE_DEADLINE_S) -> bool:
    """Close a consumer and its connections.

    Args:
        consumer: aiokafka's.
        deadline_s: seconds that it may take to end its coordination.

    Returns:
        Whether it has ended; if not, parts of it go on, and would join its group again under the same name: then this
        process must not, and is to be started anew.

    Raises:
        Exception: what the client failed with.
    """
    stopping = asyncio.ensure_future(consumer.stop())
    try:
        await asyncio.wait({stopping}, timeout=deadline_s)
    finally:
        await consumer._client.close()  # noqa: SLF001 # what `stop` does last, if it comes to that
    if not stopping.done():
        stopping.cancel()
        log.warning("the client did not end in time", extra={"deadline_s": deadline_s})
        return False
    if not stopping.cancelled():
        stopping.result()
    return True
