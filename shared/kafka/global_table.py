"""A compacted topic as a dictionary that is kept up to date: reference data beside a partitioned input.

What holds: after `start` the dictionary has everything that was committed when it was called; afterwards it follows.
When following ends for any reason but `stop`, `failed` says so: a table is never stale in silence. Kafka Streams
calls the like a GlobalKTable. It must not know what the values mean.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Generic, NoReturn, TypeVar

from shared.kafka.access import Bootstrap
from shared.kafka.batches import pages
from shared.kafka.cluster import EARLIEST, LATEST, Cluster, Target

FOLLOW_WAIT_MS = 500  # an idle table asks each broker twice a second; a change comes at once

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)


class GlobalTable(Generic[K, V]):
    """A topic's latest value for each key, over all partitions, read_committed and without a group.

    Args:
        bootstrap_servers: brokers, comma separated, or an `Access`.
        topic: compacted.
        decode_key: of a record's key.
        decode_value: of a record's value. What either raises ends the table.

    Attributes:
        values: changed in place; a tombstone removes its key.
    """

    def __init__(
        self,
        bootstrap_servers: Bootstrap,
        topic: str,
        decode_key: Callable[[bytes], K],
        decode_value: Callable[[bytes], V],
    ) -> None:
        self.values: dict[K, V] = {}
        self._topic = topic
        self._decode_key = decode_key
        self._decode_value = decode_value
        self._cluster = Cluster(bootstrap_servers, client_id=f"once-{topic}")
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None

    @property
    def failed(self) -> BaseException | None:
        """Why the table follows no more; None while it does."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()

    async def start(self) -> None:
        """Read what is committed now, then follow.

        Raises:
            KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
        """
        await self._stack.enter_async_context(self._cluster)
        targets = await self._cluster.partitions([self._topic])
        beginnings = await self._cluster.offsets(targets, EARLIEST)
        ends = await self._cluster.offsets(targets, LATEST, committed=True)
        await self._apply(beginnings, ends)
        self._task = asyncio.create_task(self._apply(ends, None), name=f"table-{self._topic}")
        self._task.add_done_callback(self._ended)

    async def supervise(self) -> NoReturn:
        """Wait for as long as the table follows.

        Raises:
            Exception: what ended it: `KafkaUnavailableError`, or what the decoders raised.
        """
        assert self._task is not None, "start it first"  # noqa: S101 # a defect of the caller
        await asyncio.shield(self._task)
        raise AssertionError("a table follows until it is stopped")

    async def stop(self) -> None:
        """Stop following and close the connection. The values stay as they are."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])
        await self._stack.aclose()

    async def _apply(self, positions: Mapping[Target, int], ends: Mapping[Target, int] | None) -> None:
        wait_ms = FOLLOW_WAIT_MS if ends is None else 100
        async with aclosing(pages(self._cluster, positions, ends=ends, committed=True, wait_ms=wait_ms)) as read:
            async for page in read:
                for batch in page.batches:
                    for record in batch.records(page.target):
                        key = self._decode_key(record.key or b"")
                        if record.value is None:
                            self.values.pop(key, None)
                        else:
                            self.values[key] = self._decode_value(record.value)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("table is no longer up to date", extra={"topic": self._topic, "reason": repr(task.exception())})
