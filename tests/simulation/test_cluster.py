"""The model of a cluster: replication, elections, and what is lost with a leader."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from deploy.drills.clients.record_batches import record_batch
from tests.simulation.cluster import CAUGHT_UP_S, SESSION_S, Cluster, Partition
from tests.simulation.loop import virtual_time

BATCH = record_batch([(b"k", b"v")])


def history(main: Callable[[Cluster, Partition], Coroutine[Any, Any, None]], brokers: int = 3) -> None:
    """Run a history of one partition, led by broker 0."""
    with virtual_time() as loop:
        cluster = Cluster(random.Random(1), brokers, max(1, brokers - 1))
        cluster.create("payments.raw", 1, {})
        loop.run_until_complete(main(cluster, cluster.partitions["payments.raw", 0]))


async def appended(cluster: Cluster, partition: Partition, timeout_s: float = 1.0) -> bool:
    """Append as a producer with acks=all does; returns whether it is replicated in time."""
    partition.log.append(BATCH)
    cluster.appended(partition)
    return await partition.replicated(partition.log.end, timeout_s)


def test_leaders_are_spread() -> None:
    cluster = Cluster(random.Random(1), 3, 2)
    cluster.create("payments.raw", 6, {})
    assert [partition.leader for partition in cluster.topic("payments.raw")] == [0, 1, 2, 0, 1, 2]
    assert cluster.topic("payments.rwa") == []


def test_an_append_is_replicated_a_little_later() -> None:
    async def main(cluster: Cluster, partition: Partition) -> None:
        assert await appended(cluster, partition)
        assert 0 < asyncio.get_running_loop().time() < 0.01
        assert partition.log.high_watermark == 1

    history(main)
    history(main, brokers=1)


def test_a_dead_follower_holds_appends_until_it_is_fenced() -> None:
    async def main(cluster: Cluster, partition: Partition) -> None:
        cluster.kill(2)
        assert not await appended(cluster, partition)
        await asyncio.sleep(SESSION_S)
        assert (partition.log.high_watermark, partition.in_sync) == (1, {0, 1})
        assert cluster.takes_appends(partition)
        cluster.kill(1)
        await asyncio.sleep(SESSION_S + 0.1)
        assert not cluster.takes_appends(partition)

    history(main)


def test_a_new_leader_has_what_was_replicated() -> None:
    async def main(cluster: Cluster, partition: Partition) -> None:
        moved: list[int] = []
        cluster.on_leader.append(lambda moving: moved.append(moving.leader))
        assert await appended(cluster, partition)
        partition.held = True
        assert not await appended(cluster, partition)
        cluster.kill(0)
        assert cluster.led(partition.target, 0) is None
        await asyncio.sleep(SESSION_S + 0.1)
        assert (partition.leader, partition.epoch, partition.log.end, moved) == (1, 1, 1, [1])
        partition.held = False
        cluster.start(0)
        await asyncio.sleep(CAUGHT_UP_S + 0.1)
        assert (partition.leader, partition.in_sync) == (1, {0, 1, 2})

    history(main)


def test_a_leader_that_restarts_before_an_election_has_its_unreplicated_end() -> None:
    async def main(cluster: Cluster, partition: Partition) -> None:
        partition.held = True
        assert not await appended(cluster, partition)
        cluster.kill(0)
        await asyncio.sleep(SESSION_S / 2)
        cluster.start(0)
        assert (partition.leader, partition.epoch, partition.log.end, partition.log.high_watermark) == (0, 1, 1, 0)
        cluster.move(partition, 1)
        assert partition.log.end == 0

    history(main)


def test_the_last_in_sync_replica_alone_may_lead_again() -> None:
    async def main(cluster: Cluster, partition: Partition) -> None:
        for node in (1, 2, 0):
            cluster.kill(node)
            await asyncio.sleep(SESSION_S + 0.1)
        assert partition.in_sync == {0}
        cluster.start(1)
        assert cluster.led(partition.target, 1) is None
        cluster.start(0)
        assert cluster.led(partition.target, 0) is partition

    history(main)


def test_an_append_that_waits_ends_when_another_broker_leads() -> None:
    async def main(cluster: Cluster, partition: Partition) -> None:
        partition.held = True
        waiting = asyncio.create_task(appended(cluster, partition, 60))
        await asyncio.sleep(1)
        cluster.move(partition, 1)
        assert not await waiting
        assert asyncio.get_running_loop().time() < 2

    history(main)
