"""Pinning a cut: the offsets that a night's run covers, asked of the cluster.

Invariant: the committed offsets of all groups are read before any end offset. The end offsets are read topic by topic,
from the last of the flow to the first, and the high watermarks after all of them; `spark.manifest` says what follows
from that order. A cut ends at the deadline at the latest: an open transaction makes it unsettled, never late.
"""

import asyncio
import time
from typing import NamedTuple

from shared.kafka.client.access import Bootstrap
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.client.reader import committed_offsets
from spark.manifest import INPUTS, LANDED_TOPICS, VERSION, Manifest, ManifestError, Range, check_follows, seal

SETTLE_DEADLINE_S = 5.0
"""Seconds that a cut waits for the flow to settle."""

_Offsets = dict[Target, int]


class _Look(NamedTuple):
    """Offsets of the cluster, read once.

    Attributes:
        groups: committed offsets by group and partition, every partition of the group's input.
        ends: last stable offsets.
        beginnings: first offsets that are still there.
        highs: high watermarks.
    """

    groups: dict[str, dict[int, int]]
    ends: _Offsets
    beginnings: _Offsets
    highs: _Offsets

    def nothing_moved(self, earlier: "_Look") -> bool:
        """Whether nothing was written since an earlier look, and no transaction is open.

        A committed offset alone may move meanwhile. A service that consumes a record for the first time writes to one
        of these topics, so the offset passed markers, or records that were consumed before.
        """
        return self.ends == self.highs == earlier.ends == earlier.highs


async def take_cut(
    bootstrap_servers: Bootstrap,
    previous: Manifest | None,
    *,
    now_ms: int,
    settle_s: float = 1.0,
    deadline_s: float = SETTLE_DEADLINE_S,
) -> Manifest:
    """Pin the cut that follows `previous`.

    Args:
        previous: None for the first, which begins where the logs begin.
        now_ms: milliseconds since 1970 UTC.
        settle_s: seconds between two looks that must agree for a settled cut.
        deadline_s: seconds after which no further look is begun; the last one counts then, unsettled.

    Raises:
        KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
        ManifestError: this is another cluster than that of `previous`, or it has lost records since.
    """
    deadline = time.monotonic() + deadline_s
    async with Cluster(bootstrap_servers) as cluster:
        cluster_id = await cluster.cluster_id()
        targets = {topic: await cluster.partitions([topic]) for topic in LANDED_TOPICS}
        look, settled = await _look(cluster, targets), False
        while not settled and time.monotonic() + settle_s <= deadline:
            await asyncio.sleep(settle_s)
            earlier, look = look, await _look(cluster, targets)
            settled = look.nothing_moved(earlier)
    return _manifest(look, previous, cluster_id=cluster_id, now_ms=now_ms, settled=settled)


async def _look(cluster: Cluster, targets: dict[str, list[Target]]) -> _Look:
    groups = {}
    for group, topic in INPUTS.items():
        committed = await committed_offsets(cluster, group, topic)
        groups[group] = {partition: committed.get(partition, 0) for _, partition in targets[topic]}
    ends: _Offsets = {}
    for topic in reversed(LANDED_TOPICS):
        ends |= await cluster.offsets(targets[topic], LATEST, committed=True)
    every = [target for topic in LANDED_TOPICS for target in targets[topic]]
    beginnings = await cluster.offsets(every, EARLIEST)
    return _Look(groups, ends, beginnings, await cluster.offsets(every, LATEST))


def _manifest(look: _Look, previous: Manifest | None, *, cluster_id: str, now_ms: int, settled: bool) -> Manifest:
    topics: dict[str, dict[int, Range]] = {topic: {} for topic in LANDED_TOPICS}
    for (topic, partition), end in sorted(look.ends.items()):
        beginning = look.beginnings[topic, partition]
        before = previous.topics[topic].get(partition) if previous is not None else None
        # Records may expire between the looks at the end and at the beginning: then nothing is left to read
        start = min(beginning, end) if before is None else before.end
        if start > end:
            raise ManifestError(
                f"{topic}:{partition} ends at {end}, and the cut before ended at {start}: the cluster has lost records"
            )
        topics[topic][partition] = Range(start, end, look.highs[topic, partition], beginning)
    manifest = Manifest(
        version=VERSION,
        sequence=1 if previous is None else previous.sequence + 1,
        taken_at_ms=now_ms,
        cluster_id=cluster_id,
        topics=topics,
        groups=look.groups,
        settled=settled,
        previous="" if previous is None else previous.digest,
    )
    if previous is not None:
        check_follows(manifest, previous)
    return seal(manifest)
