"""The fetcher of input partitions, against real brokers and the simulated cluster."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.kafka.cluster import LocalKafka
from shared.eos.errors import FatalError
from shared.eos.records import Output, Record
from shared.events import catalogue
from shared.kafka.client.buffer import FULL_BYTES
from shared.kafka.client.cluster import LATEST, Cluster, Target
from shared.kafka.client.fetcher import LONG_WAIT_MS, Fetcher
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.requests import Request
from tests.contract.helpers import here
from tests.contract.steps import Pipeline
from tests.harness import eventually
from tests.simulation.world import Brokers

pytestmark = [pytest.mark.timeout(180), pytest.mark.simulated]

LETTERS, ACCEPTED = catalogue.PAYMENTS_DEAD_LETTER, catalogue.PAYMENTS_ACCEPTED
ONE, OTHER = (ACCEPTED, 1), (ACCEPTED, 4)
ARRIVAL_S = 20.0
REST_S = 3.0


class Watched(Cluster):
    """A connection that counts fetches, and keeps their responses back on demand.

    Attributes:
        fetches: by broker.
        passes: cleared to keep responses back.
        kept: how many wait.
    """

    def __init__(self, brokers: str) -> None:
        super().__init__(brokers)
        self.fetches: Counter[int] = Counter()
        self.passes = asyncio.Event()
        self.passes.set()
        self.kept = 0

    async def send(self, node_id: int, request: Any, *, coordination: bool = False) -> Any:
        is_fetch = isinstance(request, Request) and request.api == "Fetch"
        self.fetches[node_id] += is_fetch
        response = await super().send(node_id, request, coordination=coordination)
        if is_fetch:
            self.kept += 1
            await self.passes.wait()
            self.kept -= 1
        return response

    async def arrived(self) -> bool:
        """Whether a response is kept back."""
        return self.kept > 0


@pytest_asyncio.fixture
async def connection(brokers: str) -> AsyncIterator[Watched]:
    async with Watched(brokers) as cluster:
        yield cluster


@pytest_asyncio.fixture
async def fetcher(connection: Watched) -> AsyncIterator[Fetcher]:
    made = Fetcher(connection)
    await made.start()
    yield made
    await made.stop()


async def taken(fetcher: Fetcher, target: Target, count: int, records_max: int | None = None) -> list[Record]:
    """Take records of one partition until there are so many."""
    found: list[Record] = []
    async with asyncio.timeout(ARRIVAL_S):
        while len(found) < count:
            await fetcher.wait()
            if target in fetcher.waiting():
                found += fetcher.take(target, records_max)
            else:
                await asyncio.sleep(0.005)  # another partition's records end every wait
    return found


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


async def write(brokers: str, target: Target, *contents: bytes) -> None:
    async with IdempotentWriter(brokers) as writer:
        for value in contents:
            await writer.write(*target, b"key", value)


async def transaction(pipeline: Pipeline, target: Target, *contents: bytes, commit: bool = True) -> None:
    await pipeline.begin([Output(*target, b"key", value, (("header", b"h"),)) for value in contents])
    await pipeline.end(target[0], commit=commit)


async def end_of(connection: Cluster, target: Target) -> int:
    return (await connection.offsets([target], LATEST))[target]


async def test_committed_records_are_taken_and_the_position_passes_what_is_not(
    brokers: str, fetcher: Fetcher, connection: Cluster, pipeline: Pipeline
) -> None:
    start = (await here(brokers, ACCEPTED))[ONE]
    fetcher.add(ONE, start)
    await transaction(pipeline, ONE, b"a", b"b")
    await transaction(pipeline, ONE, b"aborted", commit=False)
    await transaction(pipeline, ONE, b"c")
    records = await taken(fetcher, ONE, 3)
    assert values(records) == [b"a", b"b", b"c"]
    assert [record.offset - start for record in records] == [0, 1, 5], "two markers and an aborted record"
    assert all(record.headers == (("header", b"h"),) for record in records)
    await transaction(pipeline, ONE, b"aborted", commit=False)
    end = await end_of(connection, ONE)
    assert end == start + 9

    async def passed() -> bool:
        return fetcher.position(ONE) == end

    await eventually(passed, "a tail of aborted records and markers is passed")
    assert fetcher.state(ONE) == (end, end, end)
    assert (fetcher.waiting(), fetcher.take(ONE)) == ([], [])


async def test_records_of_an_open_transaction_arrive_when_it_is_committed(
    brokers: str, fetcher: Fetcher, pipeline: Pipeline
) -> None:
    start = (await here(brokers, ACCEPTED))[ONE]
    fetcher.add(ONE, start)
    await pipeline.begin([Output(*ONE, b"key", b"open", ())])
    await write(brokers, ONE, b"behind it")

    async def held() -> bool:
        state = fetcher.state(ONE)
        return state is not None and state.high_watermark == start + 2

    await eventually(held, "the high watermark is known")
    assert fetcher.state(ONE) == (start, start + 2, start)
    assert fetcher.waiting() == []
    await pipeline.end(ACCEPTED, commit=True)
    assert values(await taken(fetcher, ONE, 2)) == [b"open", b"behind it"]


async def test_a_limit_splits_a_batch(brokers: str, fetcher: Fetcher, pipeline: Pipeline) -> None:
    start = (await here(brokers, ACCEPTED))[ONE]
    fetcher.add(ONE, start)
    await transaction(pipeline, ONE, *(b"%d" % n for n in range(5)))
    await fetcher.wait(ARRIVAL_S)
    assert (values(fetcher.take(ONE, 2)), fetcher.position(ONE)) == ([b"0", b"1"], start + 2)
    assert fetcher.waiting() == [ONE]
    assert (values(fetcher.take(ONE, 3)), fetcher.waiting()) == ([b"2", b"3", b"4"], [])


async def test_a_partition_begins_again_where_it_is_added_again(
    brokers: str, fetcher: Fetcher, connection: Watched, pipeline: Pipeline
) -> None:
    start = (await here(brokers, ACCEPTED))[ONE]
    await transaction(pipeline, ONE, *(b"%d" % n for n in range(5)))
    connection.passes.clear()
    fetcher.add(ONE, start)
    await eventually(connection.arrived, "the response is kept back")
    fetcher.add(ONE, start + 3)  # within the batch
    connection.passes.set()
    await asyncio.sleep(0)
    assert (fetcher.waiting(), fetcher.position(ONE)) == ([], start + 3)
    assert values(await taken(fetcher, ONE, 2)) == [b"3", b"4"]
    fetcher.add(ONE, start)
    assert fetcher.position(ONE) == start
    await fetcher.wait(ARRIVAL_S)
    fetcher.add(ONE, start + 4)  # the buffer has five records
    assert fetcher.waiting() == []
    assert values(await taken(fetcher, ONE, 1)) == [b"4"]


async def test_nothing_of_a_removed_partition_arrives(brokers: str, fetcher: Fetcher, connection: Watched) -> None:
    start = await here(brokers, ACCEPTED)
    await write(brokers, ONE, b"removed")
    await write(brokers, OTHER, b"kept")
    connection.passes.clear()
    fetcher.add(ONE, start[ONE])
    fetcher.add(OTHER, start[OTHER])
    await eventually(connection.arrived, "a response is kept back")
    fetcher.remove(ONE)
    fetcher.remove(ONE)
    connection.passes.set()
    assert values(await taken(fetcher, OTHER, 1)) == [b"kept"]
    await write(brokers, OTHER, b"later")
    assert values(await taken(fetcher, OTHER, 1)) == [b"later"]
    with pytest.raises(KeyError):
        fetcher.take(ONE)


async def test_an_added_partition_does_not_wait_for_a_long_poll(
    brokers: str, fetcher: Fetcher, connection: Watched
) -> None:
    start = await here(brokers, LETTERS)
    await write(brokers, (LETTERS, 0), b"first")
    for target in start:
        if target[1]:
            fetcher.add(target, start[target])

    async def polling() -> bool:
        states = [fetcher.state(target) for target in start if target[1]]
        return all(state is not None and state.high_watermark is not None for state in states)

    await eventually(polling, "all other partitions are fetched")
    took_s: list[float] = []
    for _ in range(5):  # a busy machine may delay one of them
        begun_s = time.monotonic()
        fetcher.add((LETTERS, 0), start[LETTERS, 0])
        assert values(await taken(fetcher, (LETTERS, 0), 1)) == [b"first"]
        took_s.append(time.monotonic() - begun_s)
    assert min(took_s) < 0.05
    assert sorted(took_s)[2] < LONG_WAIT_MS / 8000


async def test_few_requests_are_sent_at_rest(brokers: str, fetcher: Fetcher, connection: Watched) -> None:
    start = await here(brokers, LETTERS)
    full = next(iter(start))
    await write(brokers, full, *[bytes(100_000)] * 12)
    for target, offset in start.items():
        fetcher.add(target, offset)

    async def filled() -> bool:
        return fetcher._partitions[full].buffer.is_full

    await eventually(filled, "a buffer is full, and nothing is taken")
    await asyncio.sleep(2 * LONG_WAIT_MS / 1000)  # short requests end with the long poll that was in flight
    connection.fetches.clear()
    await asyncio.sleep(REST_S)  # a rate
    assert connection.fetches
    assert max(connection.fetches.values()) <= REST_S * 1000 / LONG_WAIT_MS + 1


async def test_a_partition_that_is_not_taken_holds_up_no_other(brokers: str, fetcher: Fetcher) -> None:
    start = await here(brokers, LETTERS)
    held, live = (LETTERS, 2), (LETTERS, 5)
    contents = [b"%03d" % n + bytes(100_000) for n in range(40)]
    await write(brokers, held, *contents)
    fetcher.add(held, start[held])
    fetcher.add(live, start[live])
    for number in range(5):
        await write(brokers, live, b"%d" % number)
        assert values(await taken(fetcher, live, 1)) == [b"%d" % number]
    buffer = fetcher._partitions[held].buffer

    async def full() -> bool:
        return buffer.is_full

    await eventually(full, "what is not taken fills its buffer")
    assert FULL_BYTES <= buffer._bytes < 2 * FULL_BYTES + 200_000
    assert buffer.fetch_offset < start[held] + len(contents)
    fetcher.remove(live)

    async def quiet() -> bool:
        return not fetcher._in_flight

    await eventually(quiet, "no response makes the fetcher look again")
    assert values(await taken(fetcher, held, len(contents))) == contents


async def test_partitions_take_turns_when_a_response_has_no_room_for_all(
    brokers: str, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.kafka.client.fetch.FETCH_BYTES", 1000)
    start = await here(brokers, LETTERS)
    async with IdempotentWriter(brokers) as writer:
        for _ in range(10):  # batches of one record
            await asyncio.gather(*(writer.send(*target, b"key", bytes(1500)) for target in start))
    for target, offset in start.items():
        fetcher.add(target, offset)
    found: Counter[Target] = Counter()
    async with asyncio.timeout(ARRIVAL_S):
        while found.total() < 10 * len(start):
            await fetcher.wait()
            for target in fetcher.waiting():
                found[target] += len(fetcher.take(target))
            assert found.total() < 20 or len(found) == len(start)


async def test_a_record_larger_than_the_others_leave_room_for_arrives(brokers: str, fetcher: Fetcher) -> None:
    start = await here(brokers, LETTERS)
    for target in start:
        await write(brokers, target, bytes(1000 * 1024), bytes(1000 * 1024), b"end")
        fetcher.add(target, start[target])
    for target in start:
        assert values(await taken(fetcher, target, 3))[2] == b"end"


async def test_wake_ends_a_wait_and_a_timeout_does(brokers: str, fetcher: Fetcher) -> None:
    fetcher.add(ONE, (await here(brokers, ACCEPTED))[ONE])
    waiting = asyncio.create_task(fetcher.wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    fetcher.wake()
    async with asyncio.timeout(ARRIVAL_S):
        await waiting
        fetcher.wake()
        await fetcher.wait()
    begun_s = time.monotonic()
    await fetcher.wait(0.05)
    assert time.monotonic() - begun_s >= 0.04
    assert fetcher.waiting() == []


async def test_an_offset_behind_the_log_is_refused(brokers: str, fetcher: Fetcher) -> None:
    end = (await here(brokers, ACCEPTED))[ONE]
    fetcher.add(ONE, end + 1000)
    for _ in range(2):
        with pytest.raises(
            FatalError, match=rf"{ACCEPTED}:1 was read up to {end + 1000}.*to {end} with kafka-consumer"
        ):
            await fetcher.wait(ARRIVAL_S)


async def delete_records(cluster: LocalKafka | Brokers, connection: Cluster, target: Target, offset: int) -> None:
    """Delete the records below an offset."""
    if isinstance(cluster, Brokers):
        cluster.world.cluster.partitions[target].log.start = offset
        return
    await connection.partitions([target[0]])
    [node_id] = connection.by_leader([target])
    parts = [{"PartitionIndex": target[1], "Offset": offset}]
    values = {"Topics": [{"Name": target[0], "Partitions": parts}], "TimeoutMs": 10_000}
    answer = await connection.send(node_id, Request("DeleteRecords", 1, values))
    assert answer["Topics"][0]["Partitions"][0]["ErrorCode"] == 0


async def test_an_offset_whose_record_has_expired_is_refused(
    brokers: str, fetcher: Fetcher, connection: Watched, cluster_under_test: LocalKafka | Brokers
) -> None:
    target = (LETTERS, 3)
    await write(brokers, target, b"expired", b"kept")
    end = (await here(brokers, LETTERS))[target]
    await delete_records(cluster_under_test, connection, target, end - 1)
    fetcher.add(target, end - 2)
    remedy = rf"{LETTERS}:3 was read up to {end - 2}, and its log begins at {end - 1}.*to {end - 1} with kafka-consumer"
    with pytest.raises(FatalError, match=remedy):
        await fetcher.wait(ARRIVAL_S)


async def test_a_fetcher_that_does_not_run_refuses_to_wait(connection: Watched) -> None:
    fetcher = Fetcher(connection)
    with pytest.raises(RuntimeError, match="not started"):
        await fetcher.wait()
    await fetcher.start()
    waiting = asyncio.create_task(fetcher.wait())
    await asyncio.sleep(0)
    await fetcher.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        await waiting
    await fetcher.stop()
