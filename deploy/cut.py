"""Pinning a cut: the offsets that a night's run covers, asked of the cluster.

Invariant: the committed offsets of all groups are read before any end offset. The end offsets are read topic by topic,
from the last of the flow to the first, and the high watermarks after all of them; `spark.manifest` says what follows
from that order. A cut ends at the deadline at the latest: an open transaction makes it unsettled, never late.
"""

import asyncio
import time
from contextlib import aclosing
from typing import Final, NamedTuple

from msgspec import structs

from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.client.identities import LogEnd, stable_ends, topic_ids
from shared.kafka.client.reader import committed_offsets
from spark.manifest import (
    INPUTS,
    LANDED_TOPICS,
    VERSION,
    Evidence,
    Manifest,
    Range,
    Settings,
    check_bounds,
    check_follows,
    seal,
)

SETTLE_DEADLINE_S = 5.0
DEFAULTS: Final = Settings()
NO_EVIDENCE: Final = Evidence()

_Offsets = dict[Target, int]


class _Look(NamedTuple):
    """Offsets of the cluster, read once."""

    groups: dict[str, dict[int, int | None]]  # committed, by group; every partition of the group's input
    ends: dict[Target, LogEnd]  # last stable offsets
    beginnings: _Offsets  # first offsets that are still there
    highs: _Offsets  # high watermarks

    def nothing_moved(self, earlier: "_Look") -> bool:
        """Whether nothing was written since an earlier look, and no transaction is open.

        A committed offset alone may move meanwhile. A service that consumes a record for the first time writes to one
        of these topics, so the offset passed markers, or records that were consumed before.
        """
        ends = {target: end.offset for target, end in self.ends.items()}
        return ends == self.highs == earlier.highs and self.ends == earlier.ends


async def take_cut(
    bootstrap_servers: Bootstrap,
    previous: Manifest | None,
    *,
    now_ms: int,
    settle_s: float = 1.0,
    deadline_s: float = SETTLE_DEADLINE_S,
    settings: Settings = DEFAULTS,
    evidence: Evidence = NO_EVIDENCE,
    explanations: str = "",
) -> Manifest:
    """Pin the cut that follows `previous`; the first one begins where the logs begin.

    Args:
        settings, evidence, explanations: for the manifest, which holds them as they are.
        settle_s: seconds between two looks that must agree for a settled cut.
        deadline_s: seconds after which no further look is begun; the last one counts then, unsettled.

    Raises:
        KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
        ManifestError: this is another cluster than that of `previous`, it has lost records since, or a topic was
            created again or has other partitions.
    """
    deadline = time.monotonic() + deadline_s
    async with Cluster(bootstrap_servers) as cluster:
        cluster_id = await cluster.cluster_id()
        targets = {topic: await cluster.partitions([topic]) for topic in LANDED_TOPICS}
        ids = await topic_ids(cluster, LANDED_TOPICS)
        look, settled = await _look(cluster, targets), False
        while not settled and time.monotonic() + settle_s <= deadline:
            await asyncio.sleep(settle_s)
            earlier, look = look, await _look(cluster, targets)
            settled = look.nothing_moved(earlier)
    blank = Manifest(
        version=VERSION,
        sequence=1 if previous is None else previous.sequence + 1,
        taken_at_ms=now_ms,
        cluster_id=cluster_id,
        topics={},
        groups=look.groups,
        settled=settled,
        previous="" if previous is None else previous.digest,
        topic_ids=ids,
        settings=settings,
        evidence=evidence,
        explanations=explanations,
    )
    return _with_ranges(blank, look, previous)


async def offsets_uncovered(bootstrap_servers: Bootstrap, topic: str, partition: int, first: int, end: int) -> int:
    """Return how many offsets of a topic partition, from `first` to before `end`, no batch of the log covers.

    Markers and aborted records are in batches as well. Only a log that lost records, or is compacted, has such offsets.

    Raises KafkaUnavailableError: the cluster does not answer, or the topic does not exist.
    """
    target, left = (topic, partition), end - first
    async with Cluster(bootstrap_servers) as cluster:
        await cluster.partitions([topic])
        async with aclosing(pages(cluster, {target: first}, ends={target: end}, committed=False)) as read:
            async for page in read:
                for batch in page.batches:
                    left -= max(0, min(batch.last_offset + 1, end) - max(batch.base_offset, first))
    return left


async def gone(bootstrap_servers: Bootstrap, cut: Manifest) -> list[str]:
    """Return the partitions, `topic:partition`, of which records of a cut cannot be read any more.

    They have expired, or the topic was deleted and created again.

    Raises KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
    """
    async with Cluster(bootstrap_servers) as cluster:
        targets = set(await cluster.partitions(cut.topics))
        ids = await topic_ids(cluster, cut.topics)
        beginnings = await cluster.offsets(targets, EARLIEST)
    return [
        f"{topic}:{number}"
        for topic, ranges in cut.topics.items()
        for number, pinned in ranges.items()
        if pinned.first < pinned.end
        and (
            beginnings.get((topic, number), pinned.end) > pinned.first
            or cut.topic_ids.get(topic, ids[topic]) != ids[topic]
        )
    ]


async def _look(cluster: Cluster, targets: dict[str, list[Target]]) -> _Look:
    groups = {}
    for group, topic in INPUTS.items():
        committed = await committed_offsets(cluster, group, topic)
        groups[group] = {partition: committed.get(partition) for _, partition in targets[topic]}
    ends: dict[Target, LogEnd] = {}
    for topic in reversed(LANDED_TOPICS):
        ends |= await stable_ends(cluster, targets[topic])
    every = [target for topic in LANDED_TOPICS for target in targets[topic]]
    beginnings = await cluster.offsets(every, EARLIEST)
    return _Look(groups, ends, beginnings, await cluster.offsets(every, LATEST))


def _with_ranges(blank: Manifest, look: _Look, previous: Manifest | None) -> Manifest:
    topics: dict[str, dict[int, Range]] = {topic: {} for topic in LANDED_TOPICS}
    for (topic, partition), (end, leader_epoch) in sorted(look.ends.items()):
        beginning = look.beginnings[topic, partition]
        before = previous.topics.get(topic, {}).get(partition) if previous is not None else None
        # Records may expire between the looks at the end and at the beginning: then nothing is left to read
        start = min(beginning, end) if before is None else before.end
        topics[topic][partition] = Range(start, end, look.highs[topic, partition], beginning, leader_epoch)
    manifest = structs.replace(blank, topics=topics)
    check_bounds(manifest)
    if previous is not None:
        check_follows(manifest, previous)
    return seal(manifest)
