"""Waits until the pipeline has drained: every committed input record was processed and no transaction is open.

Invariant: it looks at committed offsets and the logs only, never at a service. An offset below the log's end alone
proves nothing, because markers and aborted records take offsets too. What counts is whether a committed data record
follows.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from shared.events.catalogue import EFFECTS_REQUESTS, LEDGER_TRANSFERS, PAYMENTS_ACCEPTED, PAYMENTS_RAW
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.client.errors import DrainTimeoutError
from shared.kafka.client.reader import committed_offsets

PIPELINE = (
    ("ingest", PAYMENTS_RAW),
    ("transform", PAYMENTS_ACCEPTED),
    ("ledger", LEDGER_TRANSFERS),
    ("outbox", EFFECTS_REQUESTS),
)
"""Consumer groups and their inputs, in the order in which records pass."""

TAIL_BYTES = 64 * 1024  # one batch is enough to detect records
LISTED_MAX = 12  # partitions named in an error


class Lag(NamedTuple):
    """A partition that is not drained.

    Attributes:
        committed: the group's committed offset, the log's start where there is none.
        stable, end: last stable offset and high watermark. Where they differ, a transaction is open.
    """

    group: str
    topic: str
    partition: int
    committed: int
    stable: int
    end: int

    def __str__(self) -> str:
        state = "an open transaction, " if self.stable < self.end else ""
        return f"{self.group} on {self.topic}:{self.partition} ({state}committed {self.committed} of {self.end})"


Committed = dict[tuple[str, Target], int]


async def wait_drained(
    bootstrap_servers: Bootstrap,
    *,
    deadline_s: float,
    pipeline: Sequence[tuple[str, str]] = PIPELINE,
    on_progress: Callable[[list[Lag]], None] | None = None,
    poll_s: float = 0.2,
) -> None:
    """Wait until two looks in a row find no lag and the same committed offsets.

    Two looks are needed because the ledger writes to its own input. A record may arrive between the look at a group's
    offset and the one at its topic's end.

    Args:
        deadline_s: seconds until it fails; an unreachable cluster has a deadline of its own.
        pipeline: the consumer groups to wait for, each with its input topic.
        on_progress: called after each look with the partitions that lag.
        poll_s: seconds between looks.

    Raises:
        DrainTimeoutError: naming what lags.
        KafkaUnavailableError: the cluster does not answer.
    """
    deadline = time.monotonic() + deadline_s
    async with Cluster(bootstrap_servers) as cluster:
        beginnings = await cluster.offsets(await cluster.partitions(topic for _, topic in pipeline), EARLIEST)
        settled: Committed | None = None
        while True:
            committed: Committed = {}
            lags = [
                lag for group, topic in pipeline for lag in await _look(cluster, group, topic, beginnings, committed)
            ]
            if on_progress is not None:
                on_progress(lags)
            if not lags and committed == settled:
                return
            # A first look without lag gets its second one, whatever the time
            if time.monotonic() > deadline and (lags or settled is not None):
                raise DrainTimeoutError(f"not drained after {deadline_s} s: {_listed(lags)}")
            settled = None if lags else committed
            await asyncio.sleep(poll_s)


def _listed(lags: list[Lag]) -> str:
    if not lags:
        return "nothing lags, but the committed offsets still move"
    listed = "; ".join(str(lag) for lag in lags[:LISTED_MAX])
    more = f"; and {len(lags) - LISTED_MAX} more" if len(lags) > LISTED_MAX else ""
    return f"{listed}{more}. See `once status` and the services' logs"


async def _look(
    cluster: Cluster, group: str, topic: str, beginnings: dict[Target, int], committed: Committed
) -> list[Lag]:
    """Return the lag of one group. Add its offsets to `committed`."""
    offsets = await committed_offsets(cluster, group, topic)
    targets = [target for target in beginnings if target[0] == topic]
    at = {target: max(offsets.get(target[1], 0), beginnings[target]) for target in targets}
    committed.update({(group, target): offset for target, offset in at.items()})
    # The stable offsets first: one that moves in between shows as lag, not as drained
    stable = await cluster.offsets(targets, LATEST, committed=True)
    ends = await cluster.offsets(targets, LATEST)
    unread = await _with_records(
        cluster, {target: at[target] for target in targets if at[target] < stable[target]}, stable
    )
    return [
        Lag(group, topic, target[1], at[target], stable[target], ends[target])
        for target in targets
        if target in unread or stable[target] < ends[target]
    ]


async def _with_records(cluster: Cluster, positions: dict[Target, int], ends: dict[Target, int]) -> set[Target]:
    """Return the partitions with a committed data record from the position on."""
    found: set[Target] = set()
    read = pages(cluster, positions, ends=ends, committed=True, partition_bytes=TAIL_BYTES)
    async with aclosing(read):
        async for page in read:
            if any(batch.last_offset >= positions[page.target] for batch in page.batches):
                found.add(page.target)
            if len(found) == len(positions):
                break
    return found
