"""How a client is closed while the brokers may be away, and what it held is given up.

The client's own `stop` waits for coordination without a bound, and lets a cancellation of its own out where a fetch
was about to be tried again; its connections wait for the other side's farewell, under TLS for half a minute. What
holds: closing ends in time, whatever the brokers do, and its caller's own cancellation is never taken for the client's.
Nothing depends on the group being told: a member that is gone is noticed by its session, and a static one leaves no
word anyway (KIP-345).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from aiokafka.errors import ProducerClosed

CLOSE_S: Final = 1.0
"""Seconds that brokers have to take their leave: one that is silent never does."""
LEAVE_DEADLINE_S = 10.0
"""Seconds; a request that is under way may take so long before its connection is given up."""
GIVE_UP_S = 2.0
"""Seconds that the tasks of a producer that is given up may take to end."""

_closing: Final[set["asyncio.Future[None]"]] = set()
"""Those that go on by themselves: the loop holds its tasks but weakly."""

log = logging.getLogger(__name__)


async def close_connections(client: Any, *, timeout_s: float = CLOSE_S) -> None:
    """Close a client's connections. Nothing is sent on them any more; TLS's farewell may go on by itself.

    Args:
        client: aiokafka's, as consumers and producers hold one.
        timeout_s: seconds that it is waited for.
    """
    await _close(client.close, timeout_s)


async def _close(close: Callable[[], Awaitable[None]], timeout_s: float) -> None:
    closing = asyncio.ensure_future(close())
    _closing.add(closing)
    closing.add_done_callback(_closed)
    # Not wait_for: it would cancel, and the client takes that for its own
    await asyncio.wait({closing}, timeout=timeout_s)


def _closed(closing: "asyncio.Future[None]") -> None:
    _closing.discard(closing)
    if not closing.cancelled() and (error := closing.exception()) is not None:
        # Nobody needs the connections any more, however they ended
        log.debug("connections ended with an error", extra={"reason": repr(error)})


async def give_up(producer: Any) -> None:
    """Drop a producer without another request. Its batches fail; their later fate is not known.

    Args:
        producer: aiokafka's.
    """
    task = producer._sender.sender_task  # noqa: SLF001 # no public access
    if task is not None:
        task.cancel()  # it then waits for its requests under way, which fail with their connections
    await close_connections(producer.client)
    if task is not None and not await _ended(task, GIVE_UP_S / 4):
        # What waits for batches that nobody will send any more
        _fail_batches(producer)
        task.cancel()
        await _ended(task, GIVE_UP_S)
    _fail_batches(producer)


def _fail_batches(producer: Any) -> None:
    """Fail all that is not acknowledged, without a word in the log: whoever wrote it is told.

    The client would leave some. It takes each batch out of those that left, where one that is to be sent again is not;
    and it fails who waits until a batch leaves, which is nobody.
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
    """Mark a failure as noted: the operation that it belonged to has told it, or nobody waits any more."""
    if not future.cancelled():
        future.exception()


async def abandon(consumer: Any) -> None:
    """Close the connections only: the group's coordination waits in a callback and must not come to rejoin.

    Args:
        consumer: aiokafka's, whose member the group has removed.
    """
    consumer._closed = True  # noqa: SLF001 # stop() would wait for the callback, which ends with the process
    await close_connections(consumer._client)  # noqa: SLF001 # no public access


async def leave(consumer: Any, *, deadline_s: float = LEAVE_DEADLINE_S, close_s: float = CLOSE_S) -> bool:
    """Close a consumer and its connections.

    Args:
        consumer: aiokafka's.
        deadline_s: seconds that it may take to end its coordination.
        close_s: seconds that its brokers have to take their leave.

    Returns:
        Whether it has ended, be it with an error; if not, parts of it go on, and would join its group again under the
        same name: then this process must not, and is to be started anew.
    """
    client = consumer._client  # noqa: SLF001 # no public access
    client.close = partial(_close, client.close, close_s)  # `stop` waits for it last
    stopping = asyncio.ensure_future(consumer.stop())
    try:
        await asyncio.wait({stopping}, timeout=deadline_s)
    finally:
        await client.close()  # if `stop` did not come to that
    if not stopping.done():
        stopping.cancel()
        log.warning("the client did not end in time", extra={"deadline_s": deadline_s})
        return False
    if not stopping.cancelled() and (error := stopping.exception()) is not None:
        log.warning("the client ended with an error", extra={"reason": repr(error)})
    return True
