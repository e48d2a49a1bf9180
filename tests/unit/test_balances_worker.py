"""The view's worker without Kafka and without a database: missing pages and outdated positions."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from services.balances.projection.domain import Page, Plan, Position
from services.balances.projection.progress import PartitionFreshness
from services.balances.projection.store import OvertakenError
from services.balances.projection.transport import Member
from services.balances.projection.worker import ASSIGNMENT, View
from shared.eos.errors import FatalError, FencedError
from shared.events.catalogue import LEDGER_POSTINGS
from shared.events.postings import Decline
from shared.telemetry import metrics
from shared.telemetry.server import Health
from tests.harness import eventually
from tests.ledgers import DAY, DEBTOR, P, Q
from tests.view_tables import MemoryTables, made_from, page, record

OTHER = next(number for number in range(6) if number not in {P, Q})


class Tables(MemoryTables):
    """The part of a store that the worker needs."""

    def __init__(self) -> None:
        super().__init__()
        self.overtaken = 0
        self.writes: list[Plan] = []

    def read(self) -> dict[int, Position]:
        return dict(self.positions)

    def write(self, made: Plan) -> None:
        if self.overtaken:
            self.overtaken -= 1
            raise OvertakenError("the position moved")
        super().write(made)
        self.writes.append(made)


class Edge:
    """A stand-in for the store, the brokers and Faust's consumer."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.stable_offsets: dict[int, int] = {}
        self.begun: list[dict[int, int]] = []

    def write(self, made: Plan) -> None:
        self.tables.write(made)

    def positions(self) -> dict[int, Position]:
        return self.tables.read()

    def abort(self) -> None:
        pass

    async def stable(self) -> dict[int, int]:
        return self.stable_offsets

    async def check(self, positions: Mapping[int, Position]) -> None:
        pass

    async def begin(self, offsets: Mapping[int, int]) -> None:
        self.begun.append(dict(offsets))


@pytest.fixture
def edge() -> Edge:
    return Edge()


@pytest.fixture
def health() -> Health:
    return Health(**{ASSIGNMENT: "no partitions assigned yet"})


@pytest_asyncio.fixture
async def view(edge: Edge, health: Health) -> AsyncIterator[View]:
    stands_in: Any = edge
    made = View(Member("127.0.0.1:1", "0", 6000), stands_in, stands_in, "cluster", health, lambda _: None)
    made._app._consumer = stands_in
    yield made
    await made._writing.end()


@pytest_asyncio.fixture
async def writing(view: View, edge: Edge) -> AsyncIterator["asyncio.Task[None]"]:
    """The running worker with P and Q assigned."""
    task = asyncio.create_task(view._write_on())
    view.assigned(frozenset({P, Q}))
    await eventually(lambda: _true(len(edge.begun) == 1), "taken over")
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _true(value: bool) -> bool:
    return value


def taken(partition: int, start: int) -> Page:
    """A page of one decline and its marker."""
    return page(partition, start, start + 2, record(partition, start, Decline(f"p-{start}", DEBTOR, "x", DAY)))


@pytest.mark.usefixtures("writing")
async def test_the_worker_begins_at_the_positions_of_the_database_and_is_ready(edge: Edge, health: Health) -> None:
    assert edge.begun == [{P: 0, Q: 0}]
    await eventually(lambda: _true(health.ready), "ready")


@pytest.mark.usefixtures("writing")
async def test_waiting_pages_of_all_partitions_are_one_transaction(view: View, edge: Edge) -> None:
    for found in (taken(P, 0), taken(Q, 0), taken(P, 2)):
        view._pages.put_nowait(found)
    assert await view.reached(P, 2, 5)

    assert [len(made.reads) for made in edge.tables.writes] == [3]
    assert [view.next_offset(number) for number in (P, Q, OTHER)] == [4, 2, None]


@pytest.mark.usefixtures("writing")
async def test_a_repeat_is_counted_once_the_position_has_passed_it(view: View, edge: Edge) -> None:
    repeats = metrics.SOURCE_REPEATS.labels(LEDGER_POSTINGS)._value
    before = repeats.get()
    again = page(P, 2, 4, record(P, 2, Decline("p-0", DEBTOR, "x", DAY), made_from(P, 0)))
    edge.tables.overtaken = 1
    await view._pages.put(taken(P, 0))
    await eventually(lambda: _true(len(edge.begun) == 2), "begun again")
    for found in (taken(P, 0), again):
        await view._pages.put(found)
    assert await view.reached(P, 3, 5)
    await eventually(lambda: _true(repeats.get() == before + 1), "counted")

    assert [read.at.offset for made in edge.tables.writes for read in made.reads] == [0]


@pytest.mark.usefixtures("writing")
async def test_after_a_lost_page_a_partition_begins_again_at_its_position(view: View, edge: Edge) -> None:
    await view._pages.put(taken(P, 0))
    await view._pages.put(taken(P, 4))
    await eventually(lambda: _true(len(edge.begun) == 2), "begun again")

    assert edge.begun[1] == {P: 2, Q: 0}
    for start in (2, 4):
        await view._pages.put(taken(P, start))
    assert await view.reached(P, 4, 5)
    assert [read.at.offset for made in edge.tables.writes for read in made.reads] == [0, 2, 4]


@pytest.mark.usefixtures("writing")
async def test_a_worker_that_was_overtaken_reads_the_positions_again(view: View, edge: Edge) -> None:
    edge.tables.overtaken = 1
    edge.tables.positions[P] = Position(8, 1)
    await view._pages.put(taken(P, 0))
    await eventually(lambda: _true(len(edge.begun) == 2), "begun again")

    assert edge.begun[1] == {P: 8, Q: 0}
    await view._pages.put(taken(P, 0))
    await view._pages.put(taken(P, 8))
    assert await view.reached(P, 8, 5)
    assert [read.at.offset for made in edge.tables.writes for read in made.reads] == [8]


@pytest.mark.usefixtures("writing")
async def test_pages_of_partitions_that_are_not_assigned_are_dropped(view: View, edge: Edge) -> None:
    await view._pages.put(taken(OTHER, 0))
    await view._pages.put(taken(P, 0))
    assert await view.reached(P, 0, 5)
    assert {read.at.partition for made in edge.tables.writes for read in made.reads} == {P}


async def test_an_undecodable_record_ends_the_worker(view: View, writing: "asyncio.Task[None]") -> None:
    await view._pages.put(page(P, 0, 1, record(P, 0, b"no event")))
    with pytest.raises(FatalError, match=f"ledger.postings:{P}:0"):
        await asyncio.wait_for(writing, 5)


@pytest.mark.usefixtures("writing")
async def test_tables_that_were_emptied_are_noticed_and_the_partitions_begin_again(view: View, edge: Edge) -> None:
    await view._pages.put(taken(P, 0))
    assert await view.reached(P, 0, 5)
    edge.tables = Tables()
    looking = asyncio.create_task(view._look_on())
    try:
        await eventually(lambda: _true(len(edge.begun) == 2), "begun again")
    finally:
        looking.cancel()
    assert edge.begun[1] == {P: 0, Q: 0}


@pytest.mark.usefixtures("writing")
async def test_the_worker_reports_the_position_of_every_partition(view: View, edge: Edge) -> None:
    edge.tables.positions[OTHER] = Position(7, 1)
    edge.stable_offsets = dict.fromkeys(range(6), 0) | {P: 2, OTHER: 7}
    await view._pages.put(taken(P, 0))
    assert await view.reached(P, 0, 5)
    looking = asyncio.create_task(view._look_on())
    try:
        assert await view.reached(OTHER, 6, 5)
    finally:
        looking.cancel()
    fresh = {at.partition: at for at in await view.freshness()}
    asked_s = fresh[P].asked_s
    assert asked_s is not None
    assert 0 <= asked_s < 5
    assert fresh[P] == PartitionFreshness(P, 2, 2, asked_s, asked_s)
    assert fresh[OTHER] == PartitionFreshness(OTHER, 7, 7, asked_s, asked_s)
    assert not await view.reached(P, 2, 0.05)


async def test_waiting_pages_are_dropped_at_a_new_assignment(view: View) -> None:
    view._pages.put_nowait(taken(P, 0))
    view.assigned(frozenset({Q}))
    assert await view._next_pages() is None


async def test_a_member_that_the_group_removed_is_fenced(view: View) -> None:
    view.removed()
    with pytest.raises(FencedError, match="removed this member"):
        await view._stay()
