"""A real transaction, step by step: a new one with the wire tapped, or the newest of an existing producer.

Invariant: the services' own producer makes the transaction, on a topic and a group that are deleted afterwards. An
existing producer's transaction is only read. The trace comes from the bytes on the wire and from the logs, never from
the client's intentions.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing

import msgspec

from shared.eos.crash import CrashPoints
from shared.eos.records import Output
from shared.kafka.admin.scratch import existing_topics, scratch
from shared.kafka.admin.transaction_state import (
    COMPLETED,
    OFFSETS_TOPIC,
    PREPARED,
    StateRecord,
    Status,
    find_coordinator,
    last_states,
    newest_transaction,
    state_partition,
)
from shared.kafka.client.access import Bootstrap
from shared.kafka.client.batches import Batch, Page, pages
from shared.kafka.client.cluster import EARLIEST, LATEST, Cluster, Target
from shared.kafka.lineage.outcome import earliest_ms
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.transaction_requests import GroupMember
from shared.kafka.txntrace.transaction_lines import begun, from_batch, from_frames, from_states
from shared.kafka.txntrace.transaction_steps import Line, clock_difference_ms, faults, in_order, unmarked
from shared.kafka.txntrace.wire import Tap, tapped

PARTITIONS = 2
"""Partitions of the scratch topic: enough to show a marker on each."""

_TIMEOUT_MS = 10_000  # transaction.timeout.ms, as in the services
_INIT_S = 30.0
_MARKERS_S = 10.0  # markers follow EndTxn within milliseconds, unless a broker is down
_POLL_S = 0.02


class Trace(msgspec.Struct, frozen=True):
    """The trace of one transaction.

    Attributes:
        state_partition: the transactional.id's partition of __transaction_state, `topic:partition`.
        coordinator: the id of the broker that coordinates it.
        status: the transaction's status in the coordinator's log; None when that has no state of it.
        lines: in order of time.
        faults: missing or contradicting evidence; empty when the trace is complete.
        clock_difference_ms: minimum difference between a broker's clock and ours.
    """

    transactional_id: str
    state_partition: str
    coordinator: int
    status: Status | None
    lines: tuple[Line, ...]
    faults: tuple[str, ...]
    clock_difference_ms: float = 0.0


async def trace_own(bootstrap_servers: Bootstrap, *, commit: bool) -> Trace:
    """Make one transaction and show each of its ten steps.

    Args:
        commit: whether to commit; else the transaction is aborted.

    Raises:
        KafkaUnavailableError: the cluster does not answer.
        EosError: the transaction failed; as classified.
        TapInUseError: another trace is under way in this process.
    """
    async with Cluster(bootstrap_servers) as cluster, scratch(cluster, PARTITIONS) as name:
        with tapped(name) as tap:
            begin = await _transact(bootstrap_servers, name, tap, commit=commit)
        coordinator = await find_coordinator(cluster, name)
        target = await state_partition(cluster, name)
        states = await _completed(cluster, target, name)
        batches = await _batches(cluster, name, states)
        lines = in_order(
            [
                begin,
                *from_frames(tap.frames),
                *from_states(states, target),
                *(from_batch(batch, found) for found, batch in batches),
            ]
        )
        return Trace(
            name,
            f"{target[0]}:{target[1]}",
            coordinator,
            _status(states),
            tuple(lines),
            tuple(faults(lines, commit=commit)),
            clock_difference_ms(lines),
        )


async def trace_newest(bootstrap_servers: Bootstrap, transactional_id: str) -> Trace | None:
    """Show the newest transaction of a transactional.id from the logs: its states and its markers.

    Args:
        transactional_id: of an existing or former producer.

    Returns:
        None when the coordinator's log has no such transactional.id; it may have expired.

    Raises:
        KafkaUnavailableError: the cluster does not answer.
        ProtocolDecodeError: the log has an unknown version.
    """
    async with Cluster(bootstrap_servers) as cluster:
        coordinator = await find_coordinator(cluster, transactional_id)
        target = await state_partition(cluster, transactional_id)
        states = newest_transaction(await last_states(cluster, target, transactional_id))
        if not states:
            return None
        markers = await _markers(cluster, states)
        lines = in_order([*from_states(states, target), *(from_batch(batch, found) for found, batch in markers)])
        return Trace(
            transactional_id,
            f"{target[0]}:{target[1]}",
            coordinator,
            _status(states),
            tuple(lines),
            tuple(unmarked(lines)),
        )


async def _transact(bootstrap_servers: Bootstrap, name: str, tap: Tap, *, commit: bool) -> Line:
    """Make the transaction: a record to each partition, and an offset for the group, 0 as no record was consumed."""
    producer = TransactionalProducer(bootstrap_servers, name, _TIMEOUT_MS, CrashPoints("", lambda _: None))
    try:
        await producer.init(_INIT_S)
        await producer.begin()
        line = begun(tap.now_ms())
        producer.append((Output(name, number, None, b"", ()) for number in range(PARTITIONS)), int(line.at_ms))
        await producer.flush()
        await producer.send_offsets(GroupMember(name), {(name, 0): 0})
        await (producer.commit() if commit else producer.abort())
    finally:
        await producer.discard()
    return line


async def _completed(cluster: Cluster, target: Target, transactional_id: str) -> list[StateRecord]:
    """Return all states once the markers are written: EndTxn is answered before they are."""
    deadline = time.monotonic() + _MARKERS_S
    while True:
        states = await last_states(cluster, target, transactional_id)
        if _status(states) in COMPLETED or time.monotonic() > deadline:
            return states
        await asyncio.sleep(_POLL_S)


def _status(states: Iterable[StateRecord]) -> Status | None:
    """Return the transaction's status; a later InitProducerId writes Empty, which belongs to no transaction."""
    found = [record.state.status for record in states]
    return next((status for status in reversed(found) if status is not Status.EMPTY), found[-1] if found else None)


async def _batches(cluster: Cluster, name: str, states: Sequence[StateRecord]) -> list[tuple[Target, Batch]]:
    """Return the transaction's batches on the scratch topic and on its partition of __consumer_offsets."""
    producers = {record.state.producer_id for record in states}
    own = await cluster.partitions([name])
    positions = await cluster.offsets(own, EARLIEST)
    others = {target for record in states for target in record.state.partitions} - set(own)
    if others:
        await cluster.partitions([OFFSETS_TOPIC])
        found = await cluster.offsets(others, earliest_ms(states[0].timestamp_ms))
        positions |= {target: start for target, start in found.items() if start >= 0}
    ends = await cluster.offsets(positions, LATEST)
    batches: list[tuple[Target, Batch]] = []
    async with aclosing(pages(cluster, positions, ends=ends, committed=False)) as read:
        async for page in read:
            batches += [(page.target, batch) for batch in page.batches if batch.producer_id in producers]
    return batches


async def _markers(cluster: Cluster, states: Iterable[StateRecord]) -> list[tuple[Target, Batch]]:
    """Return the marker of a transaction on each of its partitions, where there is one."""
    prepared = next((record for record in states if record.state.status in PREPARED), None)
    if prepared is None:
        return []
    # The previous transaction's marker is older than this one's start: midway allows for the largest clock difference
    since_ms = (prepared.state.start_ms + prepared.timestamp_ms) // 2
    topics = await existing_topics(cluster)
    targets = [target for target in prepared.state.partitions if target[0] in topics]
    await cluster.partitions({topic for topic, _ in targets})
    starts = await cluster.offsets(targets, since_ms)
    ends = await cluster.offsets(targets, LATEST)
    found: list[tuple[Target, Batch]] = []
    for target in targets:
        if starts[target] < 0:
            continue
        async with aclosing(pages(cluster, {target: starts[target]}, ends=ends, committed=False)) as read:
            marker = await _first_marker(read, prepared.state.producer_id, since_ms)
        if marker is not None:
            found.append((target, marker))
    return found


async def _first_marker(read: AsyncIterator[Page], producer_id: int, since_ms: int) -> Batch | None:
    async for page in read:
        for batch in page.batches:
            if batch.is_control and batch.producer_id == producer_id and batch.timestamp_ms >= since_ms:
                return batch
    return None
