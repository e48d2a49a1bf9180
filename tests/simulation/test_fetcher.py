"""The fetcher while leaders move, brokers die and answers are refused: the real client on the simulated cluster."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import pytest

from deploy.drills.clients.record_batches import record_batch
from shared.eos.records import Record
from shared.events import catalogue
from shared.kafka.client.batches import CorruptBatchError
from shared.kafka.client.buffer import PartitionBuffer
from shared.kafka.client.cluster import DEADLINE_S, REQUEST_TIMEOUT_S, Cluster, Target
from shared.kafka.client.errors import DeniedError, KafkaUnavailableError
from shared.kafka.client.fetcher import BACKOFF_MAX_S, Fetcher
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.protocol.codec import Values
from shared.kafka.protocol.headers import api_key
from tests.partitions import PARTITIONS
from tests.simulation.broker import Broker
from tests.simulation.errors import NOT_LEADER_OR_FOLLOWER
from tests.simulation.faults import NEVER_S, Delay, Lose, Troubles
from tests.simulation.world import ADDRESSES, SERVERS, Brokers, World, history

TOPIC = catalogue.PAYMENTS_RAW
ONE: Target = (TOPIC, 1)
TARGETS = [(TOPIC, partition) for partition in range(PARTITIONS)]
TOPIC_AUTHORIZATION_FAILED = 29
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, UNKNOWN_SERVER_ERROR = 74, 75, -1
ARRIVAL_S = 60.0


@asynccontextmanager
async def fetching(*targets: Target) -> AsyncIterator[Fetcher]:
    async with Cluster(SERVERS) as cluster:
        fetcher = Fetcher(cluster)
        await fetcher.start()
        for target in targets:
            fetcher.add(target, 0)
        yield fetcher
        await fetcher.stop()


async def taken(fetcher: Fetcher, count: int) -> list[Record]:
    """Take records of all partitions until there are so many, and for a while longer."""
    found: list[Record] = []
    async with asyncio.timeout(ARRIVAL_S):
        while len(found) < count:
            await fetcher.wait()
            for target in fetcher.waiting():
                found += fetcher.take(target, 3)
    await fetcher.wait(2.0)
    return found + [record for target in fetcher.waiting() for record in fetcher.take(target)]


def offsets(records: list[Record]) -> dict[int, list[int]]:
    """The offsets of records by partition, in the order in which they were taken."""
    found: dict[int, list[int]] = {}
    for record in records:
        found.setdefault(record.partition, []).append(record.offset)
    return found


async def write(count: int) -> None:
    async with IdempotentWriter(SERVERS) as writer:
        for number in range(count):
            await writer.write(TOPIC, number % len(TARGETS), b"key", b"%d" % number)


@pytest.mark.parametrize("seed", range(1, 6))
def test_each_record_is_taken_once_while_leaders_move(seed: int) -> None:
    async def main(world: World) -> None:
        async def disturb() -> None:
            for turn in range(30):
                await asyncio.sleep(0.2)
                partition = world.cluster.partitions[TARGETS[turn % len(TARGETS)]]
                able = sorted(partition.in_sync & world.cluster.alive - {partition.leader})
                world.cluster.move(partition, able[turn % len(able)])

        async def produce() -> None:
            for _ in range(20):
                await write(60)
                await asyncio.sleep(0.2)

        async with fetching(*TARGETS) as fetcher, asyncio.TaskGroup() as group:
            group.create_task(disturb())
            group.create_task(produce())
            records = await taken(fetcher, 1200)
        assert offsets(records) == {partition: list(range(200)) for _, partition in TARGETS}

    history(main, seed)


@pytest.mark.parametrize("seed", range(1, 4))
def test_each_record_is_taken_once_while_brokers_are_killed_and_answers_lost(seed: int) -> None:
    async def main(world: World) -> None:
        troubles = Troubles()
        world.network.trouble = troubles

        async def disturb() -> None:
            for node in (0, 1):
                world.kill(node)
                await asyncio.sleep(6)
                world.start(node)
                await asyncio.sleep(3)
            troubles.add(Lose(0, "-", "Fetch", "answer", 3))
            troubles.add(Delay(0, "-", "Fetch", "answer", 2, NEVER_S))

        async def produce() -> None:
            for _ in range(20):
                await write(60)
                await asyncio.sleep(1)

        async with fetching(*TARGETS) as fetcher, asyncio.TaskGroup() as group:
            group.create_task(disturb())
            group.create_task(produce())
            records = await taken(fetcher, 1200)
        assert offsets(records) == {partition: list(range(200)) for _, partition in TARGETS}

    history(main, seed)


def test_a_broker_that_does_not_answer_holds_up_no_other_ones_partitions() -> None:
    async def main(world: World) -> None:
        async with fetching(*TARGETS) as fetcher:
            await write(6)
            assert len(await taken(fetcher, 6)) == 6
            silent = world.cluster.partitions[ONE].leader
            world.network.cut.add(frozenset(("-", f"broker-{silent}")))
            others = [world.cluster.partitions[target] for target in TARGETS]
            others = [partition for partition in others if partition.leader != silent]
            for number in range(40):
                partition = others[number % len(others)]
                begun_s = time.monotonic()
                partition.log.append(record_batch([(b"k", b"v")]))
                world.cluster.appended(partition)
                await fetcher.wait()
                assert [(r.topic, r.partition) for t in fetcher.waiting() for r in fetcher.take(t)] == [
                    partition.target
                ]
                assert time.monotonic() - begun_s < 0.1
                await fetcher.wait(0.3)

    history(main)


def test_a_cluster_that_does_not_answer_is_an_error_after_the_deadline() -> None:
    async def main(world: World) -> None:
        async with fetching(ONE) as fetcher:
            await write(6)
            await taken(fetcher, 1)
            Brokers(world).pause()
            begun_s = time.monotonic()
            with pytest.raises(KafkaUnavailableError, match=rf"{TOPIC}:1 cannot be read.*once status"):
                await fetcher.wait()
            took_s = time.monotonic() - begun_s
            # A long poll was in flight: it fails from the time at which its answer was due
            assert DEADLINE_S <= took_s <= DEADLINE_S + 2 * REQUEST_TIMEOUT_S + BACKOFF_MAX_S
            with pytest.raises(KafkaUnavailableError):
                await fetcher.wait()

    history(main)


def test_an_outage_below_the_deadline_is_none() -> None:
    async def main(world: World) -> None:
        async with fetching(ONE) as fetcher:
            for _ in range(3):
                Brokers(world).pause()
                await fetcher.wait(DEADLINE_S - 2 * REQUEST_TIMEOUT_S)
                Brokers(world).resume()
                await write(6)
                assert len(await taken(fetcher, 1)) == 1

    history(main)


def test_a_topic_that_does_not_exist_is_an_error_after_the_deadline() -> None:
    async def main(_: World) -> None:
        async with fetching(("unknown", 0)) as fetcher:
            with pytest.raises(KafkaUnavailableError, match="topic unknown does not exist"):
                await fetcher.wait()

    history(main)


Answer = Callable[[Values], None]


def answering(world: World, change: Answer) -> None:
    """Have all brokers change the parts of their answers to fetches."""
    for address in ADDRESSES.values():
        broker = world.network.nodes[address]
        assert isinstance(broker, Broker)
        fetch = broker.handlers["Fetch"]

        async def changed(version: int, values: Values, client: str, fetch: Any = fetch) -> Values:
            answer: Values = await fetch(version, values, client)
            for topic in answer["Responses"]:
                for part in topic["Partitions"]:
                    change(part)
            return answer

        broker.handlers["Fetch"] = changed


def refusing(code: int, count: int = 10**9) -> Answer:
    left = [count]

    def change(part: Values) -> None:
        if left[0]:
            left[0] -= 1
            part |= {"ErrorCode": code, "Records": b"", "AbortedTransactions": None}

    return change


def corrupt(part: Values) -> None:
    data = part["Records"]
    part["Records"] = data[:-1] + bytes([data[-1] ^ 1]) if data else data


@pytest.mark.parametrize("code", [FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, 3, 5, 56, 78])
def test_errors_of_an_election_are_retried(code: int) -> None:
    async def main(world: World) -> None:
        answering(world, refusing(code, 5))
        async with fetching(*TARGETS) as fetcher:
            await write(6)
            assert len(await taken(fetcher, 6)) == 6

    history(main)


def test_retries_back_off() -> None:
    async def main(world: World) -> None:
        await write(6)  # so the broker does not wait before an answer
        answering(world, refusing(NOT_LEADER_OR_FOLLOWER))
        async with fetching(ONE) as fetcher:
            await fetcher.wait(20)
        frames = [frame for frame in world.network.frames if frame.answer is None]
        sent = sum(int.from_bytes(frame.request[:2]) == api_key("Fetch") for frame in frames)
        # The first four waits, 1.5 s in all, are shorter than the longest
        assert 15 < sent <= 20 / BACKOFF_MAX_S + 4

    history(main)


def test_a_denial_is_raised_at_once() -> None:
    async def main(world: World) -> None:
        await write(6)
        answering(world, refusing(TOPIC_AUTHORIZATION_FAILED))
        async with fetching(ONE) as fetcher:
            begun_s = time.monotonic()
            with pytest.raises(DeniedError, match=rf"TopicAuthorizationFailedError.*{TOPIC}:1.*docs/access"):
                await fetcher.wait()
            assert time.monotonic() - begun_s < 1

    history(main)


def test_an_unknown_error_is_not_retried() -> None:
    async def main(world: World) -> None:
        answering(world, refusing(UNKNOWN_SERVER_ERROR))
        async with fetching(ONE) as fetcher:
            with pytest.raises(Exception, match=rf"{TOPIC}:1") as raised:
                await fetcher.wait()
            assert type(raised.value).__name__ == "UnknownError"

    history(main)


def test_corrupt_records_are_not_taken() -> None:
    async def main(world: World) -> None:
        answering(world, corrupt)
        async with fetching(ONE) as fetcher:
            await write(6)
            await fetcher.wait()
            with pytest.raises(CorruptBatchError, match=rf"{TOPIC}:1:0 has a wrong checksum"):
                fetcher.take(ONE)
            assert fetcher.position(ONE) == 0

    history(main)


@pytest.mark.parametrize("method", ["append", "is_full"])
def test_a_defect_ends_the_wait(method: str) -> None:
    defect = mock.PropertyMock(side_effect=ZeroDivisionError)

    async def main(_: World) -> None:
        async with fetching(ONE) as fetcher:
            with mock.patch.object(PartitionBuffer, method, defect), pytest.raises(ZeroDivisionError):
                await fetcher.wait(ARRIVAL_S)
            with pytest.raises(ZeroDivisionError):
                await fetcher.wait()

    history(main)


def test_an_added_partition_arrives_within_milliseconds_and_the_cluster_rests_again() -> None:
    async def main(world: World) -> None:
        await write(6)
        async with fetching(*TARGETS[1:]) as fetcher:
            assert len(await taken(fetcher, 5)) == 5
            for _ in range(20):
                await fetcher.wait(0.13)  # at any time of a long poll
                begun_s = time.monotonic()
                fetcher.add(TARGETS[0], 0)
                await fetcher.wait()
                assert time.monotonic() - begun_s < 0.03
                assert len(fetcher.take(TARGETS[0])) == 1
            await fetcher.wait(1)
            seen = len(world.network.frames)
            await fetcher.wait(10)
            sent = [frame for frame in world.network.frames[seen:] if frame.answer is None]
            assert len(sent) <= 2 * 10 * len(ADDRESSES)

    history(main)
