"""Redis Sentinel: the outbox finds the master, and after a failover the new one, which it does not trust at first."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from deploy.drills.faults.redis import ReplicatedRedis
from deploy.local.ports import free_ports
from deploy.local.redis.server import LocalRedis
from services.outbox.address import address_of
from services.outbox.claims import Claims, DistrustedError
from services.outbox.connection import RedisAccess
from services.outbox.marks import Claim, Status
from services.outbox.rights import check_access
from shared.eos.errors import FencedError, UnsafeSettingsError
from tests.harness import eventually, wait_until
from tests.redis import TIMEOUT_S, claim_one, client_at, entered, mark_one, owner, running_redis, sent
from tests.sentinels import MASTER, Sentinel, url_of, watched
from tests.tiers import full

pytestmark = pytest.mark.timeout(120)


class Watched(NamedTuple):
    """A master with a replica, and their sentinels."""

    master: ReplicatedRedis
    replica: ReplicatedRedis
    sentinels: list[Sentinel]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as stack:
        master = stack.enter_context(running_redis(tmp_path / "first"))
        replica = stack.enter_context(running_redis(tmp_path / "second", replica_of=master))
        yield Watched(master, replica, stack.enter_context(watched(tmp_path, master)))


@pytest_asyncio.fixture
async def client(servers: Watched) -> AsyncIterator[Redis]:
    """The outbox's client."""
    redis = client_at(url_of(servers.sentinels))
    yield redis
    await redis.aclose()


async def rebuilt(client: Redis, epoch: int, port: int) -> Claims:
    """Enter as a partition's worker does, until the server at this port was rebuilt."""
    found: list[Claims] = []

    async def relies() -> bool:
        try:
            claims = await entered(owner(client, epoch))
            at = (await client.info("server"))["tcp_port"]
            await claims.check()
        except (DistrustedError, RedisError):
            return False
        found[:] = [claims]
        return int(at) == port

    await eventually(relies, "the new master is found", 30)
    return found[0]


async def test_a_master_that_is_killed_is_followed_and_not_trusted(servers: Watched, client: Redis) -> None:
    await check_access(client, RedisAccess(address_of(url_of(servers.sentinels))), TIMEOUT_S)
    claims = await entered(owner(client, 1))
    assert await claim_one(claims, 1) == Claim(Status.NEW)
    await mark_one(claims, 1, sent())
    servers.master.kill()
    with pytest.raises(DistrustedError):
        await claim_one(claims, 2)
    successor = await rebuilt(client, 2, servers.replica.port)
    assert successor._incarnation != claims._incarnation, "a server that may lack the last claims was trusted"
    assert await claim_one(successor, 2) == Claim(Status.NEW)
    with pytest.raises(FencedError):
        await claims.check()


@full
async def test_a_demoted_master_is_left(servers: Watched, client: Redis) -> None:
    claims = await entered(owner(client, 1))
    await claim_one(claims, 1)
    await asyncio.to_thread(servers.master.pause)
    await asyncio.to_thread(
        wait_until, lambda: all(each.names(servers.replica.port) for each in servers.sentinels), "they agree", 30
    )
    servers.master.resume()  # it still takes itself for the master, until the sentinels reach it
    successor = await rebuilt(client, 2, servers.replica.port)
    assert successor._incarnation != claims._incarnation, "a server that may lack the last claims was trusted"


@full
async def test_sentinels_that_are_silent_or_gone_are_passed_over(servers: Watched, client: Redis) -> None:
    first, second, _ = servers.sentinels
    await asyncio.to_thread(first.pause)
    second.process.kill()
    try:
        claims = await entered(owner(client, 1))
        assert await claim_one(claims, 1) == Claim(Status.NEW)
    finally:
        first.resume()


@full
async def test_an_unknown_master_is_named(servers: Watched) -> None:
    redis = client_at(url_of(servers.sentinels).replace(MASTER, "unknown"))
    with pytest.raises(DistrustedError, match="No master found for 'unknown'"):
        await owner(redis, 1).enter()
    await redis.aclose()


@full
async def test_a_sentinel_itself_is_refused(servers: Watched) -> None:
    url = f"redis://127.0.0.1:{servers.sentinels[0].port}/0"
    redis = client_at(url)
    with pytest.raises(UnsafeSettingsError, match="is a sentinel; use redis"):
        await check_access(redis, RedisAccess(address_of(url)), TIMEOUT_S)
    await redis.aclose()


class ClusterRedis(LocalRedis):
    """A node of a Redis Cluster, with no slots."""

    def start(self) -> None:
        self.process.argv[2:] = ["--cluster-enabled", "yes", "--cluster-port", str(free_ports(1)[0])]
        super().start()


async def test_a_redis_cluster_is_refused_by_name(tmp_path: Path) -> None:
    node = ClusterRedis(tmp_path)
    node.start()
    try:
        await asyncio.to_thread(node.wait_ready)
        redis = client_at(node.url)
        with pytest.raises(UnsafeSettingsError, match=r"is a Redis Cluster, .*use a single Redis, or Redis Sentinel"):
            await check_access(redis, RedisAccess(address_of(node.url)), TIMEOUT_S)
        await redis.aclose()
    finally:
        node.kill()
