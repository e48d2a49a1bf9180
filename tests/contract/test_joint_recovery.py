"""A transaction over two input partitions that brokers have torn, and whose partitions pass to two other instances."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Final

import pytest
import pytest_asyncio

from shared.eos.records import Record
from shared.events import catalogue
from shared.events.headers import SOURCE, Coordinates, header
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Cluster, Target
from shared.kafka.client.reader import committed_at, read_topics
from tests.harness import eventually, settled
from tests.owners import INPUT, Owner
from tests.tiers import mostly_full

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]

GROUP: Final = "joint-owners"
COUNT: Final = 3
CHANGELOG: Final = catalogue.TRANSFORM_PROGRESS
ONE, OTHER = 1, 4
PARTS: Final[dict[str, Target]] = {
    "state": (CHANGELOG, ONE),
    "other-state": (CHANGELOG, OTHER),
    "postings": (catalogue.LEDGER_POSTINGS, ONE),
    "legs": (catalogue.EFFECTS_REQUESTS, 0),
}
"""Parts of the transaction. Both input partitions have records in the postings and in the legs."""
OUTPUTS: Final = (PARTS["postings"], PARTS["legs"])
OFFSETS: Final = "offsets"
"""Another part: a group's offsets are in one partition."""
ROWS: Final = [
    frozenset(chosen) for size in range(len(PARTS) + 2) for chosen in itertools.combinations([*PARTS, OFFSETS], size)
]


class Instances:
    """Instances of one service. Their states go on from test to test on the same cluster."""

    def __init__(self, servers: str, brokers: Brokers) -> None:
        self.servers = servers
        self.brokers = brokers
        self._stack = AsyncExitStack()

    def new(self, name: str, *partitions: int) -> Owner:
        """Make an instance that is going to have these partitions."""
        made = Owner(self.servers, GROUP, partitions, CHANGELOG, name=name)
        self._stack.push_async_callback(made.let_go)
        return made

    async def end(self) -> None:
        await self._stack.aclose()

    async def offset(self, partition: int) -> int:
        async with Cluster(self.servers) as asked:
            found = await committed_at(asked, GROUP, INPUT, partition)
        return 0 if found is None else found.offset

    async def sources(self, target: Target) -> dict[int, list[int]]:
        """The source offsets of the committed records in a target, by input partition."""
        await eventually(lambda: settled(self.servers, [target[0]]), f"the markers written to {target}")
        found: dict[int, list[int]] = {ONE: [], OTHER: []}

        def take(_: str, partition: int, records: list[Record]) -> None:
            for record in records:
                if partition == target[1] and record.key == GROUP.encode():
                    source = Coordinates.decode(header(record.headers, SOURCE) or b"")
                    found[source.partition].append(source.offset)

        await read_topics(self.servers, [target[0]], take)
        return found


@pytest_asyncio.fixture
async def instances(brokers: str) -> AsyncIterator[Instances]:
    async with Brokers(brokers) as asked:
        made = Instances(brokers, asked)
        try:
            yield made
        finally:
            await made.end()


@pytest.mark.parametrize(
    "committed",
    mostly_full(
        ROWS, [frozenset(), frozenset(["legs"]), frozenset(["state", "postings"]), frozenset(["other-state", OFFSETS])]
    ),
    ids=lambda committed: "+".join(sorted(committed)) or "nothing",
)
async def test_each_new_owner_completes_its_part_and_together_they_complete_all(
    instances: Instances, committed: frozenset[str]
) -> None:
    """The instance that had both partitions comes back, fences its transaction, and gets neither of them."""
    first = instances.new("a", ONE, OTHER)
    await first.take_over()
    await first.commit(
        OUTPUTS, COUNT
    )  # a group without an offset, as it may have expired, does not contradict a commit
    begun = {partition: task.next_offset for partition, task in first.tasks.items()}
    await first.prepare(OUTPUTS, COUNT)
    chosen = [target for part, target in PARTS.items() if part in committed]
    await first.commit_some(instances.brokers, *chosen, offsets=OFFSETS in committed)
    await first.let_go()
    await instances.new("a", ONE, OTHER).fence()

    second, third = instances.new("b", ONE), instances.new("c", OTHER)
    await asyncio.gather(second.take_over(), third.take_over())

    ends = {}
    for owner, partition, state in ((second, ONE, "state"), (third, OTHER, "other-state")):
        # A part of the other partition alone is none of this one's
        has_part = committed & {state, "postings", "legs", OFFSETS}
        ends[partition] = begun[partition] + (COUNT if has_part else 0)
        assert await instances.offset(partition) == ends[partition]
        assert owner.processed == ends[partition]
        # Nothing is left to be completed
        successor = instances.new(f"{partition}", partition)
        await successor.take_over()
        assert successor.processed == ends[partition]
    for target in OUTPUTS:
        assert await instances.sources(target) == {partition: list(range(end)) for partition, end in ends.items()}
