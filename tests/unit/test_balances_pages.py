"""Pages of committed records, read by a client that rebalances at the worst moments."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from shared.kafka.client.cluster import Target
from shared.kafka.runtime import committed
from shared.kafka.runtime.committed import Pages

TOPIC = "ledger.postings"
A, B = (TOPIC, 0), (TOPIC, 1)
NO_OFFSET, NOT_COMMITTED = (vars(committed)[name] for name in ("NoOffsetForPartitionError", "KafkaError"))


class Client:
    """The part of the client that pages need: offsets of each partition, and the assignment."""

    def __init__(self) -> None:
        self._coordinator = SimpleNamespace(member_id="")
        self.assigned: set[Target] = set()
        self.paused: set[Target] = set()
        self.positions: dict[Target, int] = {}
        self.offsets: dict[Target, list[int]] = {A: [], B: []}
        self.ends: dict[Target, int] = {A: 0, B: 0}
        self.unknown: set[Target] = set()
        self.during_poll: Callable[[], None] = lambda: None
        self.committed: dict[Target, int] = {}
        self.refuses = False

    def assign(self, *targets: Target, at: int | None = 0) -> None:
        """Rebalance: replace the assignment and resume at the group's offset if there is one."""
        self.assigned, self.paused = set(targets), set()
        self.positions = {} if at is None else dict.fromkeys(targets, at)

    def assignment(self) -> frozenset[Target]:
        return frozenset(self.assigned)

    def pause(self, *targets: Target) -> None:
        self.paused |= set(targets)

    def resume(self, *targets: Target) -> None:
        self.paused -= set(targets)

    def seek(self, target: Target, offset: int) -> None:
        self.positions[target] = offset

    async def position(self, target: Target) -> int:
        if target not in self.positions:
            await asyncio.Event().wait()  # for an offset that is never committed
        return self.positions[target]

    async def getmany(self, *targets: Target, timeout_ms: int) -> dict[Target, list[Any]]:
        del timeout_ms
        during, self.during_poll = self.during_poll, lambda: None
        during()
        for target in self.unknown & (set(targets) or self.assigned):
            self.unknown.discard(target)
            raise NO_OFFSET(target)
        polled = {}
        for target in (set(targets) or self.assigned) - self.paused:
            polled[target] = [
                SimpleNamespace(
                    topic=TOPIC, partition=target[1], offset=o, timestamp=o, key=None, value=b"", headers=()
                )
                for o in self.offsets[target]
                if o >= self.positions[target]
            ]
            self.positions[target] = max(self.ends[target], self.positions[target])
        return polled

    async def commit(self, offsets: dict[Target, int]) -> None:
        if self.refuses:
            raise NOT_COMMITTED
        self.committed = offsets


@pytest.fixture
def client() -> Client:
    client = Client()
    client.offsets, client.ends = {A: [0, 1, 4], B: [0]}, {A: 6, B: 2}
    return client


@pytest.fixture
def pages(client: Client) -> Pages:
    client.assign(A, B)
    made = Pages(client)
    made.hold([A, B])
    return made


async def polled(pages: Pages) -> list[tuple[int, int, int, list[int]]]:
    """Return partition, start, next offset and offsets of each page."""
    return [
        (page.target[1], page.start, page.next_offset, [record.offset for record in page.records])
        for page in await pages.poll(10)
    ]


async def test_nothing_is_read_before_it_begins(pages: Pages) -> None:
    assert await polled(pages) == []


async def test_a_page_has_its_start_and_the_start_of_the_next(pages: Pages, client: Client) -> None:
    await pages.begin({A: 1, B: 0})

    assert sorted(await polled(pages)) == [(0, 1, 6, [1, 4]), (1, 0, 2, [0])]
    assert await polled(pages) == []
    client.ends[A] = 8
    assert await polled(pages) == [(0, 6, 8, [])]


async def test_a_partition_may_begin_again_while_it_is_read(pages: Pages) -> None:
    await pages.begin({A: 0})
    await polled(pages)
    await pages.begin({A: 1})

    assert await polled(pages) == [(0, 1, 6, [1, 4])]


async def test_a_group_without_an_offset_is_not_an_error(pages: Pages, client: Client) -> None:
    client.unknown = {A}
    await pages.begin({A: 0})

    assert await polled(pages) == [(0, 0, 6, [0, 1, 4])]


async def test_a_poll_before_the_beginning_without_an_offset_is_not_an_error(pages: Pages, client: Client) -> None:
    client.unknown = {A}
    assert await polled(pages) == []
    await pages.begin({A: 0})

    assert await polled(pages) == [(0, 0, 6, [0, 1, 4])]


async def test_a_revoked_partition_does_not_begin(pages: Pages, client: Client) -> None:
    client.assign(B)
    await pages.begin({A: 0, B: 0})

    assert await polled(pages) == [(1, 0, 2, [0])]


@pytest.mark.parametrize("group_offset", [1, None])
async def test_a_rebalance_while_partitions_begin_leaves_none_at_the_group_s_offset(
    pages: Pages, client: Client, group_offset: int | None
) -> None:
    def rebalance() -> None:
        pages.release()
        client.assign(A, B, at=group_offset)
        pages.hold([A, B])

    client.during_poll = rebalance
    async with asyncio.timeout(5):
        await pages.begin({A: 0, B: 0})

    assert await polled(pages) == []
    await pages.begin({A: 0, B: 0})
    assert sorted(await polled(pages)) == [(0, 0, 6, [0, 1, 4]), (1, 0, 2, [0])]


async def test_nothing_begins_between_a_revocation_and_the_next_assignment(pages: Pages, client: Client) -> None:
    pages.release()
    client.during_poll = lambda: client.assign(A, B, at=None)  # the client knows of it before it calls back
    async with asyncio.timeout(5):
        await pages.begin({A: 0, B: 0})

    client.during_poll = lambda: None
    client.assign(A, B, at=None)
    pages.hold([A, B])
    assert await polled(pages) == []
    await pages.begin({A: 0, B: 0})
    assert sorted(await polled(pages)) == [(0, 0, 6, [0, 1, 4]), (1, 0, 2, [0])]


async def test_records_of_a_poll_that_a_rebalance_overtook_are_dropped(pages: Pages, client: Client) -> None:
    await pages.begin({A: 0, B: 0})

    def rebalance() -> None:
        pages.release()
        client.assign(B, at=0)
        pages.hold([B])

    client.during_poll = rebalance
    assert await polled(pages) == []


async def test_offsets_that_cannot_be_committed_are_not_an_error(pages: Pages, client: Client) -> None:
    assert await pages.tell({A: 3})
    assert client.committed == {A: 3}
    client.refuses = True
    assert not await pages.tell({A: 4})


def test_a_removed_member_differs_from_a_member_that_has_not_joined_yet() -> None:
    client = Client()
    pages = Pages(client)
    assert not pages.removed
    client._coordinator.member_id = "first"
    assert not pages.removed
    pages.hold([A])
    assert not pages.removed
    for other in ("", "second"):  # removed; and joined again before the check
        client._coordinator.member_id = other
        assert pages.removed
