"""Close a client while the brokers may be away, and give up what it held.

The client's own `stop` waits for coordination without a limit. It lets a cancellation of its own escape where a fetch
was about to be retried. Its connections wait for the peer to close, under TLS for half a minute.

Invariant: closing ends in time, whatever the brokers do, and a cancellation by the caller is never taken for the
client's.

The group need not be notified: its session timeout detects a missing member, and a static member sends no LeaveGroup
anyway (KIP-345).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka.errors import ProducerClosed

CLOSE_TIMEOUT_S: Final = 1.0
"""Seconds to wait for connections to close: a silent broker never closes its side."""
GIVE_UP_S = 2.0
"""Seconds to wait for the tasks of a discarded producer to end."""

_closing: Final[set["asyncio.Future[None]"]] = set()
"""Tasks in the background: the loop holds only weak references to its tasks."""

log = logging.getLogger(__name__)


async def close_connections(client: Any, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
    """Close a client's connections. No more requests are sent on them; TLS may close in the background.

    Args:
        client: aiokafka's, as consumers and producers hold one.
        timeout_s: seconds to wait.
    """
    await _close(client.close, timeout_s)


async def _close(close: Callable[[], Awaitable[None]], timeout_s: float) -> None:
    closing = asyncio.ensure_future(close())
    _closing.add(closing)
    closing.add_done_callback(_closed)
    # Not wait_for: it would cancel, and the client takes the cancellation for its own
    await asyncio.wait({closing}, timeout=timeout_s)


def _closed(closing: "asyncio.Future[None]") -> None:
    _closing.discard(closing)
    if not closing.cancelled() and (error := closing.exception()) is not None:
        # The connections are no longer needed, however they ended
        log.debug("connections ended with an error", extra={"reason": repr(error)})


async def give_up(producer: Any) -> None:
    """Drop a producer without another request. Its batches fail; their later fate is not known.

    Args:
        producer: aiokafka's.
    """
    task = producer._sender.sender_task  # noqa: SLF001 # no public access
    if task is not None:
        task.cancel()  # it then waits for its requests in flight, which fail with their connections
    await close_connections(producer.client)
    if task is not None and not await _ended(task, GIVE_UP_S / 4):
        # Callers that wait for batches which will not be sent any more
        _fail_batches(producer)
        task.cancel()
        await _ended(task, GIVE_UP_S)
    _fail_batches(producer)


def _fail_batches(producer: Any) -> None:
    """Fail all unacknowledged batches without logging: their writers get the error.

    The client would leave some: it fails the batches in flight, but not those to be retried. It also fails each
    batch's drain waiter, which no caller awaits.
    """
    accumulator = producer._message_accumulator  # noqa: SLF001 # no public access
    left = accumulator._pending_batches  # noqa: SLF001 # the same
    for batches in accumulator._batches.values():  # noqa: SLF001 # the same
        left.update(batches)
    for batch in left:
        batch._drain_waiter.add_done_callback(forget)  # noqa: SLF001 # the same
    accumulator.fail_all(ProducerClosed())


async def _ended(task: "asyncio.Task[Any]", timeout_s: float) -> bool:
    done, _ = await asyncio.wait([task], timeout=timeout_s)
    if done:
        forget(task)
    return bool(done)


def forget(future: "asyncio.Future[Any]") -> None:
    """Mark a failure as handled: its operation has reported it, or no caller waits any more."""
    if not future.cancelled():
        future.exception()


async def abandon(consumer: Any) -> None:
    """Close the connections only: the group's coordination waits in a callback and must not go on to rejoin.

    Args:
        consumer: aiokafka's, whose member the group has removed.
    """
    consumer._closed = True  # noqa: SLF001 # stop() would wait for the callback, which ends with the process
    await close_connections(consumer._client)  # noqa: SLF001 # no public access
