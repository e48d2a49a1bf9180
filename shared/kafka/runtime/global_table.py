"""A compacted topic as a dictionary that follows it: reference data for a partitioned input.

Invariant: after `start` the dictionary has everything that was committed when it was called, and afterwards it follows.
If following ends for any reason but `stop`, `failed` raises that reason: a table is never stale unnoticed. A further
`start` reads all of it again. Kafka Streams calls this a GlobalKTable.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Generic, TypeVar

from shared.eos.records import Record
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.client.fetcher import Fetcher

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)


class GlobalTable(Generic[K, V]):
    """A topic's latest value for each key, over all partitions, read_committed and without a group.

    An error of a decoder ends the table. `values` and `places` change in place and together; a tombstone removes its
    key from both.

    Attributes:
        values: by key.
        places: by key, the coordinates of the value's record, `partition:offset`.
    """

    def __init__(
        self,
        bootstrap_servers: Bootstrap,
        topic: str,
        decode_key: Callable[[bytes], K],
        decode_value: Callable[[bytes], V],
    ) -> None:
        self.values: dict[K, V] = {}
        self.places: dict[K, str] = {}
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._decode_key = decode_key
        self._decode_value = decode_value
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what is committed now, forgetting what was read before, then follow.

        Raises KafkaUnavailableError if the cluster does not answer, or the topic does not exist.
        """
        cluster = await self._stack.enter_async_context(
            Cluster(self._bootstrap_servers, client_id=f"once-{self._topic}")
        )
        targets = await cluster.partitions([self._topic])
        beginnings = await cluster.offsets(targets, EARLIEST)
        ends = await cluster.offsets(targets, LATEST, committed=True)
        # All of it, not what is new: compaction may have taken the tombstones of what an earlier start read
        self.values.clear()
        self.places.clear()
        async with aclosing(pages(cluster, beginnings, ends=ends, committed=True)) as read:
            async for page in read:
                for batch in page.batches:
                    self._apply(batch.records(page.target))
        self._task = asyncio.create_task(self._follow(cluster, ends), name=f"table-{self._topic}")
        self._task.add_done_callback(self._ended)

    async def failed(self) -> None:
        """Wait until the table is no longer followed, and raise why: an error of `Fetcher.wait`, or a decoder's."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        """Stop following and close the connection. The values stay as they are until the next `start`."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([self._task])
            self._task = None
        await self._stack.aclose()

    async def _follow(self, cluster: Cluster, positions: Mapping[Target, int]) -> None:
        fetcher = Fetcher(cluster)
        for target, offset in positions.items():
            fetcher.add(target, offset)
        await fetcher.start()
        try:
            while True:
                await fetcher.wait()
                for target in fetcher.waiting():
                    self._apply(fetcher.take(target))
        finally:
            await fetcher.stop()

    def _apply(self, records: Iterable[Record]) -> None:
        for record in records:
            key = self._decode_key(record.key or b"")
            if record.value is None:
                self.values.pop(key, None)
                self.places.pop(key, None)
            else:
                self.values[key] = self._decode_value(record.value)
                self.places[key] = f"{record.partition}:{record.offset}"

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("table is no longer up to date", extra={"topic": self._topic, "reason": repr(task.exception())})
