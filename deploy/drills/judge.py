"""Judges of a stage: the verdict of `once verify` as observations and anomalies, and the time to the next commit.

Commits are read from the logs: a transaction's marker carries the time at which its partition's leader wrote it.
"""

import time
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import aclosing
from typing import Final, NamedTuple

from deploy.checkers.audit import IDENTITY_WINDOW
from deploy.checkers.cover import REVERSAL_WINDOW
from deploy.checkers.verdict import PASS, Kind, Verdict, Violation
from deploy.drills.drill import Anomaly
from deploy.drills.stage import Stage
from deploy.drills.waiting import eventually
from deploy.verification import verify_cluster
from shared.kafka.client.batches import Batch, Marker, pages
from shared.kafka.client.cluster import LATEST, Cluster, Target

DRAINED_S: Final = 60.0
KEPT_MAX: Final = 10_000
"""Violations of which the anomalies are made."""
_POLL_S: Final = 0.2

ANOMALY_OF: Final = {
    Kind.LOST: Anomaly.LOSS,
    Kind.NO_OUTCOME: Anomaly.LOSS,
    Kind.RAW_MISSING: Anomaly.LOSS,
    Kind.CREDIT_MISSING: Anomaly.LOSS,
    Kind.EFFECT_MISSING: Anomaly.LOSS,
    Kind.EFFECT_NOT_AT_SINK: Anomaly.LOSS,
    Kind.SKIPPED: Anomaly.LOSS,
    Kind.DUPLICATE_TRANSFER: Anomaly.DUPLICATE,
    Kind.DUPLICATE_DEBIT: Anomaly.DUPLICATE,
    Kind.DUPLICATE_DECLINE: Anomaly.DUPLICATE,
    Kind.DUPLICATE_ACCOUNT_EVENT: Anomaly.DUPLICATE,
    Kind.DUPLICATE_CREDIT: Anomaly.DUPLICATE,
    Kind.DUPLICATE_CREDIT_LEG: Anomaly.DUPLICATE,
    Kind.ACCEPTED_TWICE: Anomaly.DUPLICATE,
    Kind.TWO_OUTCOMES: Anomaly.DUPLICATE,
    Kind.EFFECT_REQUESTED_TWICE: Anomaly.DUPLICATE,
    Kind.EFFECT_DUPLICATED: Anomaly.DUPLICATE,
    Kind.TORN_CREDIT_LEG: Anomaly.TORN,
    Kind.TORN_CHANGELOG: Anomaly.TORN,
    Kind.SOURCE_MISSING: Anomaly.ABORTED_READ,
}
"""Kinds of violations that are anomalies of delivery; the others show in the verdict alone."""


async def verified(
    stage: Stage,
    *,
    at_least: int = 1,
    expected: str = PASS,
    within_s: float = DRAINED_S,
    identity_window: int = IDENTITY_WINDOW,
    reversal_window: int = REVERSAL_WINDOW,
) -> Verdict:
    """Wait until the pipeline has drained, and judge all that the topics hold, as `once verify` does.

    Args:
        at_least: raw records that the verdict must be over.
        expected: the verdict; violations are noted as anomalies either way.
        identity_window, reversal_window: as for `verify_cluster`.
    """
    sinks = stage.target.effects_directory
    verdict = await verify_cluster(
        stage.access,
        deadline_s=within_s,
        identity_window=identity_window,
        reversal_window=reversal_window,
        file_sinks=sinks if sinks.is_dir() else None,
        violations_kept=KEPT_MAX,
        on_note=stage.step,
    )
    stage.expect("verdict of `once verify`", verdict.verdict, expected)
    stage.expect_that(
        "raw records verified", verdict.records_in, f"at least {at_least}", holds=verdict.records_in >= at_least
    )
    if expected == PASS:
        stage.expect("violations", verdict.kinds, {})
    else:
        stage.step(f"violations: {', '.join(f'{kind} {count}' for kind, count in verdict.kinds.items())}")
    for anomaly, where in anomalies_of(verdict.violations).items():
        stage.anomaly(anomaly, where)
    return verdict


def anomalies_of(violations: Iterable[Violation]) -> dict[Anomaly, list[str]]:
    """Return violations that are anomalies of delivery, as texts by anomaly. Pure."""
    found: dict[Anomaly, list[str]] = {}
    for violation in violations:
        anomaly = ANOMALY_OF.get(Kind(violation.kind))
        if anomaly is not None:
            found.setdefault(anomaly, []).append(f"{violation.kind} {violation.where}")
    return found


class Mark(NamedTuple):
    """A moment in the logs: when it was, in milliseconds since 1970 UTC, and where each partition ended before."""

    at_ms: int
    ends: dict[Target, int]


async def mark(stage: Stage, topics: Collection[str]) -> Mark:
    """Note the ends of topics, from which `next_commits` reads."""
    async with Cluster(stage.access) as cluster:
        ends = await cluster.offsets(await cluster.partitions(topics), LATEST)
    return Mark(now_ms(), ends)


def now_ms() -> int:
    """Return milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


async def progress(
    stage: Stage, since: Mark, at_ms: int, topic: str, partition: int | None = None, within_s: float = 60.0
) -> float:
    """Wait for a commit of records made after a time, and return the seconds from that time to the commit.

    Args:
        since, at_ms: as for `next_commits`.
        partition: None for any of the topic.

    Raises:
        TimeoutError: none came within `within_s` seconds.
    """
    seconds: list[float] = []

    async def committed() -> bool:
        found = await next_commits(stage, since, at_ms)
        seconds.extend(after_s for at, after_s in found.items() if at[0] == topic and partition in {None, at[1]})
        return bool(seconds)

    await eventually(committed, f"a commit in {topic}", within_s, every_s=_POLL_S)
    return min(seconds)


async def next_commits(stage: Stage, since: Mark, at_ms: int) -> dict[Target, float]:
    """Return the seconds from a time to the first commit of records that were made later, by partition.

    A transaction that was being committed at that time is thus no sign of progress. Partitions without such a commit
    are absent.

    Args:
        since: made before that time.
        at_ms: milliseconds since 1970 UTC.
    """
    found: dict[Target, float] = {}
    later: dict[Target, set[int]] = {target: set() for target in since.ends}
    async for target, batch in _batches(stage, since):
        if target not in found and is_commit(batch, at_ms, later[target]):
            found[target] = (batch.timestamp_ms - at_ms) / 1000
    return found


async def commit_times(stage: Stage, since: Mark) -> list[int]:
    """Return the times of all COMMIT markers since then, ascending, in milliseconds since 1970 UTC."""
    return sorted([batch.timestamp_ms async for _, batch in _batches(stage, since) if batch.marker is Marker.COMMIT])


async def _batches(stage: Stage, since: Mark) -> AsyncIterator[tuple[Target, Batch]]:
    """Read all batches since then, markers included."""
    async with Cluster(stage.access) as cluster:
        targets = await cluster.partitions({topic for topic, _ in since.ends})
        now = await cluster.offsets(targets, LATEST)
        async with aclosing(pages(cluster, since.ends, ends=now, committed=False)) as read:
            async for page in read:
                for batch in page.batches:
                    yield page.target, batch


def is_commit(batch: Batch, at_ms: int, later: set[int]) -> bool:
    """Whether a batch is the commit of records made after a time. Pure.

    Args:
        later: the producers of such records in open transactions; it is brought up to date.
    """
    if not batch.is_control:
        if batch.is_transactional and batch.timestamp_ms > at_ms:
            later.add(batch.producer_id)
        return False
    if batch.producer_id not in later:
        return False
    later.discard(batch.producer_id)
    return batch.marker is Marker.COMMIT
