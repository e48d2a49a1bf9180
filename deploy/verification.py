"""Read a cluster, and the logs of `file:` destinations, into an audit.

The pipeline must be idle: an audit compares each topic with those before it, so records in flight would look missing.
A committed offset alone may move meanwhile: once every record is consumed, all that it can pass are markers.

Invariant: no code is shared with the outbox, which is to be judged. Of a log, only whole lines that are JSON objects
with an effect_id count as deliveries. A crash may leave half of a line, which is then ended by a newline.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from itertools import count
from pathlib import Path

import msgspec

from deploy.checkers.audit import IDENTITY_WINDOW, INPUTS, TOPICS, VIOLATIONS_KEPT, Audit
from deploy.checkers.cover import REVERSAL_WINDOW
from deploy.checkers.effects import FILE_SCHEME
from deploy.checkers.verdict import FAIL, PASS, Verdict
from shared.events.catalogue import (
    EFFECTS_REQUESTS,
    PAYMENTS_RAW,
    REFERENCE_TOPICS,
)
from shared.events.codec import decoder
from shared.kafka.admin.configs import compaction_lag_ms
from shared.kafka.admin.groups import wait_drained
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import pages
from shared.kafka.client.cluster import EARLIEST, Cluster
from shared.kafka.client.errors import DrainTimeoutError
from shared.kafka.client.reader import beginning_offsets, common_count, group_offsets, read_topics, stable_offsets

Progress = Callable[[int, int], None]

_ATTEMPTS_MIN = 3
_LOG_SUFFIX = ".jsonl"


async def verify_cluster(
    bootstrap_servers: Bootstrap,
    *,
    wait: bool = True,
    deadline_s: float = 120.0,
    identity_window: int = IDENTITY_WINDOW,
    reversal_window: int = REVERSAL_WINDOW,
    file_sinks: Path | None = None,
    violations_kept: int = VIOLATIONS_KEPT,
    on_progress: Progress | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Verdict:
    """Wait until the pipeline has drained, read all topics from offset 0 and judge them.

    Args:
        wait: False judges what is there now; records in flight count as missing.
        deadline_s: seconds to wait for the pipeline to drain. After them it is judged as it is, and fails. Where
            records arrive while the topics are read, they are read again until these seconds have passed as well.
        identity_window: identities that ingest remembers for each partition.
        reversal_window: booked payments that the ledger remembers for each partition.
        file_sinks: the directory of the `file:` destinations' logs, to compare the effects with.
        violations_kept: how many violations the verdict names; all are counted.
        on_progress: called with offsets passed and offsets to pass in all.

    Raises:
        KafkaUnavailableError: the cluster does not answer, or a topic does not exist.
        TopicMismatchError: the topics differ in their partition counts.
        OSError: a log cannot be read.
    """
    note = on_note or (lambda _: None)
    begun_s = time.monotonic()
    for attempt in count(1):
        drained = not wait or await _drained(bootstrap_servers, deadline_s, note)
        before = await stable_offsets(bootstrap_servers, TOPICS)
        audit = Audit(
            before,
            partitions=common_count(before),
            identity_window=identity_window,
            reversal_window=reversal_window,
            compacted_before_ms=await _compacted_before_ms(bootstrap_servers),
            file_sinks=file_sinks is not None,
            violations_kept=violations_kept,
        )
        await _read(bootstrap_servers, audit, sum(before.values()), on_progress)
        beginnings = await beginning_offsets(bootstrap_servers, [EFFECTS_REQUESTS])  # what ended before must show
        await _account_for_gaps(bootstrap_servers, audit)
        if file_sinks is not None:
            for destination, path in sink_logs(file_sinks):
                audit.feed_sink(destination, effect_ids(path))
        committed = {group: await group_offsets(bootstrap_servers, group, topic) for group, topic in INPUTS.items()}
        still = before == await stable_offsets(bootstrap_servers, TOPICS)
        late = attempt >= _ATTEMPTS_MIN and time.monotonic() - begun_s >= deadline_s
        if still or late or not wait or not drained:
            break
        note(f"records arrived while the topics were read (attempt {attempt}); reading them again")
    verdict = audit.finish(committed, beginnings)
    if drained and still:
        return verdict
    return msgspec.structs.replace(verdict, at_rest=False, verdict=FAIL if verdict.verdict == PASS else verdict.verdict)


async def _drained(bootstrap_servers: Bootstrap, deadline_s: float, note: Callable[[str], None]) -> bool:
    try:
        await wait_drained(bootstrap_servers, deadline_s=deadline_s)
    except DrainTimeoutError as error:
        note(f"{error}. Judged as it is.")
        return False
    return True


async def _read(bootstrap_servers: Bootstrap, audit: Audit, total: int, on_progress: Progress | None) -> None:
    """Feed the audit, one topic after the other in its order."""
    passed = 0
    for topic in TOPICS:

        def report(done: int, _: int, passed: int = passed) -> None:
            if on_progress is not None:
                on_progress(passed + done, total)

        ends = await read_topics(bootstrap_servers, [topic], audit.feed, progress=report)
        passed += sum(ends.values())


async def _compacted_before_ms(bootstrap_servers: Bootstrap) -> int:
    """Return the time before which superseded reference records may have been removed from the logs."""
    return time.time_ns() // 1_000_000 - await compaction_lag_ms(bootstrap_servers, REFERENCE_TOPICS)


async def _account_for_gaps(bootstrap_servers: Bootstrap, audit: Audit) -> None:
    """Find the markers and aborted records among the offsets of payments.raw that have no committed record.

    This project's producers of payments.raw have no transactions, so there are none. A bank's own producer may.
    """
    gaps = audit.raw_gaps()
    if not gaps:
        return
    positions = {(PAYMENTS_RAW, partition): found[0].start for partition, found in gaps.items()}
    ends = {(PAYMENTS_RAW, partition): found[-1].stop for partition, found in gaps.items()}
    async with Cluster(bootstrap_servers) as cluster:
        await cluster.partitions([PAYMENTS_RAW])
        beginnings = await cluster.offsets(list(positions), EARLIEST)
        there = {target: max(at, beginnings[target]) for target, at in positions.items()}
        async with aclosing(pages(cluster, there, ends=ends, committed=False)) as read:
            async for page in read:
                for batch in page.batches:
                    if batch.is_control or batch.is_transactional:
                        audit.account_for(page.target[1], range(batch.base_offset, batch.last_offset + 1))


class _Line(msgspec.Struct):
    effect_id: str


_decode_line = decoder(_Line)


def sink_logs(directory: Path) -> Iterator[tuple[str, Path]]:
    """The logs in a directory, each with the destination that it is of: `receipts.jsonl` is of `file:receipts`."""
    for path in sorted(directory.glob(f"*{_LOG_SUFFIX}")):
        yield FILE_SCHEME + path.name.removesuffix(_LOG_SUFFIX), path


def effect_ids(path: Path) -> Iterator[str]:
    """The effect_id of each whole line, in order, repeats included."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                found = _decode_line(line)
            except msgspec.DecodeError:
                continue
            yield found.effect_id
