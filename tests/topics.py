"""A `tests.world.World` on the topics of a real cluster: every record at the world's coordinates.

Invariant: each record is in a transaction whose marker takes the offset after it. Where the world has no record, one
was written and aborted: the removed record, if there is one. The installation's records came with the topics: the world
takes them. No other record is decoded here.
"""

import time
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from shared.eos.crash import CrashPoints
from shared.eos.records import Output, Record
from shared.events.catalogue import BY_NAME, INSTALLATION
from shared.events.headers import Coordinates
from shared.events.installation import OWNERSHIP_KEY, PARTITION, decode_ownership
from shared.kafka.client.reader import end_offsets, read_partition
from shared.kafka.runtime.producer import TransactionalProducer
from shared.kafka.runtime.transaction_requests import GroupMember
from spark.manifest import INPUTS
from tests.harness import eventually, settled
from tests.world import World
from tests.world_effects import AT_MS

TIMEOUT_MS = 30_000
_FILLER = b"never committed"  # key and value: a compacted topic takes no record without a key


class _Step(NamedTuple):
    """One transaction's records in one partition; its marker follows them."""

    outputs: list[Output]
    timestamp_ms: int
    commit: bool


class Topics:
    """A world and its topics, which were empty before, but for the installation's.

    Args:
        bootstrap_servers: brokers, comma separated.
        world: it may grow between two calls of `write`; written records must not change. The first call replaces its
            records of the installation.
    """

    def __init__(self, bootstrap_servers: str, world: World) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._world = world
        self._written: dict[tuple[str, int], int] = {}

    async def write(self) -> None:
        """Write new records, commit the groups' offsets, and wait until all are stable.

        Raises:
            AssertionError: a record would not be at the world's coordinates, or the brokers enforce ownership from
                other offsets than the world.
        """
        if not self._written:
            await self._take_installation()
        steps = {at: self._steps(*at, end) for at, end in ends(self._world).items()}
        producer = await producing(self._bootstrap_servers)
        try:
            for number in range(max(map(len, steps.values()), default=0)):
                due = [plan[number] for plan in steps.values() if number < len(plan)]
                # One producer for both: its next transaction begins after the markers of its last one
                for commit in (True, False):
                    await _transact(producer, [step for step in due if step.commit is commit], commit=commit)
            await _send_offsets(producer, self._world.committed)
        finally:
            await producer.discard()
        self._written = ends(self._world)
        await self._wait_stable()

    async def _take_installation(self) -> None:
        """Replace the world's records of the installation by those of the brokers."""
        at, found = (INSTALLATION, PARTITION), list[Record]()
        end = await read_partition(self._bootstrap_servers, *at, found.extend)
        [ownership] = [decode_ownership(record.value or b"") for record in found if record.key == OWNERSHIP_KEY]
        assert ownership.raw_from == (self._world.raw_from,) * self._world.partitions
        self._world.logs[at], self._world._next[at], self._written[at] = found, end, end

    def _steps(self, topic: str, partition: int, end: int) -> list[_Step]:
        at = self._written.get((topic, partition), 0)
        steps: list[_Step] = []
        for record in self._world.logs[topic, partition]:
            if record.offset >= at:
                steps += self._aborted(topic, partition, at, record.offset)
                steps.append(_Step([_output(record)], record.timestamp_ms, commit=True))
                at = record.offset + 2
        return [*steps, *self._aborted(topic, partition, at, end)]

    def _aborted(self, topic: str, partition: int, start: int, end: int) -> list[_Step]:
        """Fill a gap with an aborted transaction, whose marker is the last offset before `end`."""
        if start == end:
            return []
        removed = self._world.removed
        outputs = []
        for offset in range(start, end - 1):
            record = removed.get(Coordinates(topic, partition, offset))
            outputs.append(Output(topic, partition, _FILLER, _FILLER, ()) if record is None else _output(record))
        return [_Step(outputs, AT_MS, commit=False)]

    async def _wait_stable(self) -> None:
        due = ends(self._world)
        topics = {topic for topic, _ in due}
        await eventually(lambda: settled(self._bootstrap_servers, topics), "markers written")
        found = await end_offsets(self._bootstrap_servers, topics)
        assert {at: found[at] for at in due} == due


def ends(world: World) -> dict[tuple[str, int], int]:
    """The end offset of each partition."""
    return dict(world._next)


async def producing(bootstrap_servers: str, timeout_ms: int = TIMEOUT_MS) -> TransactionalProducer:
    """A transactional producer, initialised; the caller discards it.

    Args:
        bootstrap_servers: brokers, comma separated.
        timeout_ms: until the brokers abort a transaction that it leaves open.
    """
    producer = TransactionalProducer(
        bootstrap_servers, f"tests-{uuid.uuid4()}", timeout_ms, CrashPoints("", lambda _: None)
    )
    await producer.init(30)
    return producer


async def commit_offsets(bootstrap_servers: str, groups: Mapping[str, Mapping[int, int]]) -> None:
    """Commit consumer groups' offsets in a transaction, as the services do."""
    producer = await producing(bootstrap_servers)
    try:
        await _send_offsets(producer, groups)
    finally:
        await producer.discard()


async def _send_offsets(producer: TransactionalProducer, groups: Mapping[str, Mapping[int, int]]) -> None:
    for group, offsets in groups.items():
        if offsets:
            await producer.begin()
            consumed = {(INPUTS[group], number): offset for number, offset in offsets.items()}
            await producer.send_offsets(GroupMember(group), consumed)
            await producer.commit()


async def _transact(producer: TransactionalProducer, steps: list[_Step], *, commit: bool) -> None:
    if not steps:
        return
    await producer.begin()
    now_ms = time.time_ns() // 1_000_000
    for step in steps:
        expires = BY_NAME[step.outputs[0].topic].settings()["retention.ms"] != "-1"
        # Brokers expire records by timestamp: use present ones, not the world's
        producer.append(step.outputs, now_ms if expires else step.timestamp_ms)
    await producer.flush()
    await (producer.commit() if commit else producer.abort())


def _output(record: Record) -> Output:
    return Output(record.topic, record.partition, record.key, record.value, record.headers)
