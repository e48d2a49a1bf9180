"""A new owner's recovery of the previous owner's last transaction, on real brokers."""

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from unittest import mock

import pytest
import pytest_asyncio

from deploy.drills.clients.tools import admin_tool
from deploy.drills.hanging import unverified
from deploy.local.kafka.cluster import LocalKafka
from shared.eos.audit import TornTransactionError
from shared.eos.progress import CommittedOffset
from shared.eos.records import Output, Record
from shared.events import catalogue
from shared.events.headers import SOURCE, header
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Cluster, Target
from shared.kafka.client.reader import committed_at, read_topics
from tests.contract.helpers import producing
from tests.harness import cluster, eventually, settled_at
from tests.owners import INPUT, Owner
from tests.partitions import PARTITIONS
from tests.tiers import full, mostly_full

pytestmark = pytest.mark.timeout(180)

COUNT = 5
CHANGELOGS = (catalogue.LEDGER_BALANCES, catalogue.PAYMENTS_IDENTITIES)
OUTPUTS = (catalogue.LEDGER_POSTINGS, catalogue.PAYMENTS_ACCEPTED)
_places = itertools.count()
"""Each test has its own input partition, changelog partition and group."""


class HeldError(Exception):
    """A roll-forward stopped before the end of its transaction."""


class HeldOwner(Owner):
    """An owner that stops before it ends the transaction that completes another."""

    async def recover(self) -> None:
        with mock.patch.object(self.scope.producer, "commit", side_effect=HeldError):
            await super().recover()


class Succession:
    """Successive owners of one input partition.

    Attributes:
        partition: of the input.
        postings, legs: partitions that each transaction writes to; `legs` has other writers.
    """

    def __init__(self, kafka: LocalKafka, brokers: Brokers, lane: int, partition: int) -> None:
        self.kafka = kafka
        self.servers = kafka.bootstrap_servers
        self.brokers = brokers
        self.group = f"owners-{lane}"
        self.partition = partition
        self.changelog: Target = (CHANGELOGS[lane], partition)
        self.postings: Target = (OUTPUTS[lane], partition)
        self.legs: Target = (catalogue.EFFECTS_REQUESTS, 0)
        self._stack = AsyncExitStack()

    @property
    def outputs(self) -> tuple[Target, Target]:
        return self.postings, self.legs

    async def owner(self, name: str = "") -> Owner:
        """Start the next owner and take over; under another name it does not fence its predecessor."""
        owner = Owner(self.servers, self.group, [self.partition], self.changelog[0], name=name)
        self._stack.push_async_callback(owner.let_go)
        await owner.take_over()
        return owner

    async def end(self) -> None:
        await self._stack.aclose()

    async def sources(self, target: Target) -> list[int]:
        """Return the source offsets of the committed records that this partition's owners wrote to the target."""
        await eventually(lambda: settled_at(self.servers, target), f"the markers written to {target}")
        found: list[int] = []
        prefix = f"{INPUT}:{self.partition}:".encode()

        def take(_: str, partition: int, records: list[Record]) -> None:
            own = [one for one in records if partition == target[1] and one.key == self.group.encode()]
            sources = [header(record.headers, SOURCE) or b"" for record in own]
            found.extend(int(source.removeprefix(prefix)) for source in sources if source.startswith(prefix))

        await read_topics(self.servers, [target[0]], take)
        return found

    async def assert_processed(self, owner: Owner, count: int) -> None:
        """Fail unless offset, state and outputs show `count` input records, each processed once."""
        for target in self.outputs:
            assert await self.sources(target) == list(range(count))
        async with Cluster(self.servers) as asked:
            committed = await committed_at(asked, self.group, INPUT, self.partition)
        assert committed is not None
        assert committed.offset == count
        assert owner.processed == count
        successor = await self.owner()
        assert successor.processed == count


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    with cluster(tmp_path_factory.mktemp("recovery")) as running:
        yield running


@pytest_asyncio.fixture
async def line(kafka: LocalKafka) -> AsyncIterator[Succession]:
    async with Brokers(kafka.bootstrap_servers) as brokers:
        made = Succession(kafka, brokers, *divmod(next(_places), PARTITIONS))
        try:
            yield made
        finally:
            await made.end()


async def test_a_torn_roll_forward_is_completed(line: Succession) -> None:
    first = await line.owner()
    await first.commit(line.outputs, COUNT)
    await first.prepare(line.outputs, COUNT)
    await first.tear(line.brokers, line.postings)

    second = HeldOwner(line.servers, line.group, [line.partition], line.changelog[0])
    with pytest.raises(HeldError):
        await second.take_over()
    await second.tear(line.brokers, line.legs)

    third = await line.owner()
    await line.assert_processed(third, 2 * COUNT)


@full
async def test_an_aborted_roll_forward_is_attempted_again(line: Succession) -> None:
    first = await line.owner()
    await first.commit(line.outputs, COUNT)
    await first.prepare(line.outputs, COUNT)
    await first.tear(line.brokers, line.changelog, line.legs)

    for _ in range(2):
        attempt = HeldOwner(line.servers, line.group, [line.partition], line.changelog[0])
        with pytest.raises(HeldError):
            await attempt.take_over()
        await attempt.let_go()

    last = await line.owner()
    await line.assert_processed(last, 2 * COUNT)


@full
async def test_the_first_transaction_of_a_partition_is_completed(line: Succession) -> None:
    first = await line.owner()
    await first.prepare(line.outputs, COUNT)
    await first.tear(line.brokers, line.legs)
    await line.assert_processed(await line.owner(), COUNT)


@full
async def test_an_earlier_aborted_transaction_is_not_taken_for_a_part(line: Succession) -> None:
    first = await line.owner()
    await first.prepare(line.outputs, COUNT + 2)
    await first.abort()
    await first.prepare(line.outputs, COUNT)
    await first.tear(line.brokers, line.postings)
    await line.assert_processed(await line.owner(), COUNT)


async def test_a_part_that_the_next_transaction_aborted_is_written_again(line: Succession) -> None:
    first = await line.owner()
    await first.prepare(line.outputs, COUNT)
    # As if EndTxn was acknowledged and one partition's marker skipped
    await first.commit_some(line.brokers, line.changelog, line.legs, offsets=True)
    await first.prepare_behind(line.outputs, COUNT)
    await first.let_go()
    await line.assert_processed(await line.owner(), COUNT)


@full
async def test_a_part_without_a_marker_is_ended_and_then_completed(line: Succession) -> None:
    first = await line.owner()
    await first.commit(line.outputs, COUNT)
    async with unverified(line.kafka):
        await first.prepare_unknown(line.outputs, COUNT, line.legs)
        await first.tear(line.brokers, line.postings)  # before the transaction times out during verification
    await line.assert_processed(await line.owner(), 2 * COUNT)


async def test_a_part_after_another_producers_open_transaction_is_not_written_twice(line: Succession) -> None:
    first = await line.owner()
    async with producing(line.servers) as other:
        await other.begin()
        other.append([Output(*line.legs, b"key", b"other", ())], 1_700_000_000_000)
        await other.flush()
        await first.prepare(line.outputs, COUNT)
        await first.tear(line.brokers, line.legs)

        second = await line.owner()
        assert second.processed == COUNT
        await other.commit()
    await line.assert_processed(second, COUNT)


@pytest.mark.parametrize("part", mostly_full(["postings", "changelog"], ["postings"]))
async def test_a_zombie_that_aborts_last_does_not_hide_a_torn_transaction(line: Succession, part: str) -> None:
    zombie = await line.owner("zombie")
    await zombie.scope.begin()
    first = await line.owner()
    await first.commit(line.outputs, COUNT)
    await first.prepare(line.outputs, COUNT)
    await first.tear(line.brokers, {"postings": line.postings, "changelog": line.changelog}[part])
    await zombie.prepare_begun(line.outputs, COUNT)
    await zombie.abort()
    await line.assert_processed(await line.owner(), 2 * COUNT)


async def test_an_offset_that_an_operator_set_is_kept(line: Succession) -> None:
    first = await line.owner()
    await first.commit(line.outputs, COUNT)
    await first.prepare(line.outputs, COUNT)
    await first.tear(line.brokers, line.changelog)
    await set_group_offsets(line.servers, line.group, INPUT, {line.partition: 1}, deadline_s=30)

    second = await line.owner()
    assert second.processed == 2 * COUNT
    assert await line.sources(line.postings) == list(range(COUNT))

    await second.prepare(line.outputs, COUNT)  # begins at the operator's offset, not at that of an earlier version
    await second.let_go()
    third = await line.owner()
    assert third.processed == 2 * COUNT
    assert await line.sources(line.postings) == list(range(COUNT))
    async with Cluster(line.servers) as asked:
        assert await committed_at(asked, line.group, INPUT, line.partition) == CommittedOffset(1, None)


async def test_a_torn_transaction_whose_records_were_deleted_is_refused_by_name(
    line: Succession, tmp_path: Path
) -> None:
    first = await line.owner()
    await first.prepare(line.outputs, COUNT)
    await first.tear(line.brokers, line.changelog)
    topic, partition = line.postings
    plan = tmp_path / "delete.json"
    end = COUNT  # its records are the first of the partition
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": partition, "offset": end}]}))
    await admin_tool(line.kafka, "org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(plan))

    for _ in range(2):
        with pytest.raises(TornTransactionError, match=rf"{topic}:{partition} has 0 of {COUNT} records.*once repair"):
            await line.owner()


async def test_a_state_without_its_changelog_is_refused_by_name(line: Succession) -> None:
    first = await line.owner()
    await first.commit(line.outputs, COUNT)
    await first.let_go()
    elsewhere = Owner(line.servers, line.group, [line.partition], catalogue.TRANSFORM_PROGRESS)
    with pytest.raises(TornTransactionError, match=f"does not reach offset {COUNT}.*--reset-offsets"):
        await elsewhere.take_over()
    await elsewhere.let_go()
