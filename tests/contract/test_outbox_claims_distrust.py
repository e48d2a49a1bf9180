"""A Redis that may have lost data gives no claim and takes no mark, however it lost them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from deploy.drills.faults.redis import ReplicatedRedis, info, wait_synced, wipe
from deploy.local.ports import LOOPBACK
from deploy.local.prerequisites import require_faketime
from deploy.local.redis.server import LocalRedis
from services.outbox.address import address_of
from services.outbox.claims import Claims, DistrustedError
from services.outbox.connection import FileCredentials, RedisAccess, connect
from services.outbox.marks import Claim, Mode, Status
from services.outbox.scripts import CLOCK_JUMP_MS
from shared.eos.errors import UnsafeSettingsError
from tests.harness import wait_until
from tests.redis import (
    TIMEOUT_S,
    TRUST_KEY,
    bucket_key,
    claim_key,
    claim_one,
    client_at,
    entered,
    entry_of,
    mark_one,
    now_ms,
    owner,
    running_redis,
    sent,
)

PAUSED_TIMEOUT_S = 1.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReplicatedRedis]:
    """A Redis that the test may kill."""
    with running_redis(tmp_path / "first") as redis:
        yield redis


@pytest.fixture
def replica(server: ReplicatedRedis, tmp_path: Path) -> Iterator[ReplicatedRedis]:
    """Its replica, in sync."""
    with running_redis(tmp_path / "second", replica_of=server) as redis:
        yield redis


@asynccontextmanager
async def connected(server: LocalRedis) -> AsyncIterator[Redis]:
    client = client_at(server.url)
    try:
        yield client
    finally:
        await client.aclose()


async def assert_distrusted(claims: Claims, why: str) -> None:
    """Fail unless every call raises with this reason; effect 1 is claimed and effect 2 is not."""
    refused: list[Callable[[], Awaitable[object]]] = [
        lambda: mark_one(claims, 1, sent()),
        lambda: mark_one(claims, 1, None),
        lambda: claim_one(claims, 2),
        claims.check,
    ]
    for ask in refused:
        with pytest.raises(DistrustedError, match=why):
            await ask()


async def claimed_first(client: Redis) -> Claims:
    claims = await entered(owner(client, 1))
    assert await claim_one(claims, 1) == Claim(Status.NEW)
    return claims


async def assert_recovers(client: Redis) -> None:
    """Fail unless the next owner finds no trust, rebuilds and claims."""
    successor = owner(client, 2)
    assert await successor.enter() is None
    assert await successor.rebuild([])
    assert await claim_one(successor, 2) == Claim(Status.NEW)


async def scripts_executed(client: Redis) -> int:
    return int((await client.info("commandstats"))["cmdstat_evalsha"]["calls"])


async def assert_asked(client: Redis, calls: int) -> None:
    """Wait until Redis has executed its buffered requests, exactly this many scripts in all."""
    deadline_s = time.monotonic() + 5
    while await scripts_executed(client) < calls:
        assert time.monotonic() < deadline_s, "requests from the pause were never executed"
    assert await scripts_executed(client) == calls


def written(server: LocalRedis) -> bool:
    """Return whether all writes are in the append-only file: during a sync, Redis buffers for up to 2 s."""
    return info(server, "persistence")["aof_buffer_length"] == "0"


async def test_a_flush(server: LocalRedis) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        await client.flushall()
        await assert_distrusted(claims, "it was flushed")
        assert await client.dbsize() == 0
        await assert_recovers(client)


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_rebuild_by_another_owner(server: LocalRedis, epoch: int) -> None:
    # A zombie that resumes after a flush rebuilds without the last claims; the owner does not trust it
    async with connected(server) as client:
        claims = await entered(owner(client, 2))
        await claim_one(claims, 1)
        await client.flushall()
        await owner(client, epoch).rebuild([])
        await assert_distrusted(claims, "rebuilt by another owner")


async def test_a_kill_and_a_restart_with_all_data(server: LocalRedis) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        await asyncio.to_thread(wait_until, lambda: written(server), "all writes are in the append-only file")
        server.kill()
        with pytest.raises(DistrustedError, match="ConnectionError"):
            await claims.check()
        server.start()
        server.wait_ready()
        assert await client.exists(TRUST_KEY, claim_key(1)) == 2, "no data was kept, so this proves nothing"
        await assert_distrusted(claims, "it was restarted")
        await assert_recovers(client)


async def test_a_kill_and_an_empty_restart(server: LocalRedis) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        server.kill()
        wipe(server)
        server.start()
        server.wait_ready()
        await client.connection_pool.disconnect()
        await assert_distrusted(claims, "it was flushed")
        await assert_recovers(client)


async def test_a_failover_to_a_lagging_replica(server: ReplicatedRedis, replica: ReplicatedRedis) -> None:
    async with connected(server) as client:
        claims = await entered(owner(client, 1))
        await asyncio.to_thread(wait_synced, server, replica)
        replica.pause()
        await client.execute_command("CLIENT", "KILL", "TYPE", "replica")  # type: ignore[no-untyped-call]
        await claim_one(claims, 1)
        await claim_one(claims, 2)
        await mark_one(claims, 2, sent())
    server.kill()
    replica.resume()
    replica.wait_ready()
    replica.promote()
    async with connected(replica) as client:
        assert await client.exists(TRUST_KEY) == 1
        assert [await entry_of(client, number) for number in (1, 2)] == [None, None], (
            "it did not lag, so this proves nothing"
        )
        moved = owner(client, 1)
        moved._incarnation = claims._incarnation
        await assert_distrusted(moved, "failed over to another server")
        await assert_recovers(client)


async def test_a_failover_and_back(server: ReplicatedRedis, replica: ReplicatedRedis) -> None:
    # The master comes back with its old run_id and an incarnation that looks right, but without the last claims
    async with connected(server) as client:
        claims = await entered(owner(client, 1))
        await asyncio.to_thread(wait_synced, server, replica)
        replica.promote()
        await claim_one(claims, 1)
        server.follow(replica)
        await asyncio.to_thread(wait_synced, replica, server)
        await assert_distrusted(claims, "it is a replica")
        server.promote()
        assert await client.hget(TRUST_KEY, "run_id") == (await client.info("server"))["run_id"].encode()
        assert await entry_of(client, 1) is None, "it lost no data, so this proves nothing"
        await assert_distrusted(claims, "it followed another master")
        await assert_recovers(client)


async def test_a_replica(server: LocalRedis, replica: LocalRedis) -> None:
    async with connected(server) as client, connected(replica) as behind:
        claims = await claimed_first(client)
        await asyncio.to_thread(wait_synced, server, replica)
        assert await behind.exists(TRUST_KEY, claim_key(1)) == 2
        stale = owner(behind, 1)
        stale._incarnation = claims._incarnation
        await assert_distrusted(stale, "it is a replica")
        with pytest.raises(DistrustedError, match="it is a replica"):
            await stale.enter()
        with pytest.raises(DistrustedError, match="it is a replica"):
            await stale.rebuild([])


async def test_a_first_replica_costs_a_rebuild_at_most(server: LocalRedis, tmp_path: Path) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        with running_redis(tmp_path / "second", replica_of=server):
            await assert_distrusted(claims, "got its first replica")
            await assert_recovers(client)


async def test_a_silent_redis_executes_no_late_claim_when_it_resumes(server: LocalRedis) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        before = await scripts_executed(client)
        claims._timeout_s = PAUSED_TIMEOUT_S
        server.pause()
        begun_s = time.monotonic()
        with pytest.raises(DistrustedError, match="no answer within"):
            await claim_one(claims, 2)
        assert time.monotonic() - begun_s < 2 * PAUSED_TIMEOUT_S
        server.resume()
        # The claim is still in the socket's buffer, and Redis executes it now, once
        await assert_asked(client, before + 1)
        assert await entry_of(client, 2) is None
        successor = owner(client, 2)
        assert await successor.enter() == claims._incarnation, "a pause lost data"
        assert await claim_one(successor, 2) == Claim(Status.NEW)


class Losing:
    """A proxy of Redis that loses the next answer and its connection on request."""

    def __init__(self, server: LocalRedis) -> None:
        self._port = server.port
        self.lose_next = False

    @asynccontextmanager
    async def url(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._connected, LOOPBACK, 0) as listening:
            yield f"redis://{LOOPBACK}:{listening.sockets[0].getsockname()[1]}/0"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, questions = await asyncio.open_connection(LOOPBACK, self._port)
        asking = asyncio.create_task(self._questions(reader, questions))
        while data := await answers.read(65_536):
            if self.lose_next:
                self.lose_next = False
                break
            writer.write(data)
        writer.close()
        questions.close()
        await asking

    @staticmethod
    async def _questions(reader: asyncio.StreamReader, questions: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            questions.write(data)
        questions.close()


async def test_a_lost_answer_is_not_asked_for_again(server: LocalRedis) -> None:
    way = Losing(server)
    async with connected(server) as client, way.url() as url:
        losing = client_at(url)
        claims = await claimed_first(losing)
        await claim_one(claims, 2)  # each script has been loaded
        before = await scripts_executed(client)
        way.lose_next = True
        with pytest.raises(DistrustedError, match="ConnectionError"):
            await claim_one(claims, 3, Mode.KEYED)
        assert await scripts_executed(client) == before + 1
        await losing.aclose()
        successor = await entered(owner(client, 2))
        assert (await claim_one(successor, 3)).status is Status.HELD, "the lost claim is not held"


async def test_an_unreachable_redis(server: LocalRedis) -> None:
    server.kill()
    async with connected(server) as client:
        with pytest.raises(DistrustedError, match="ConnectionError"):
            await owner(client, 1).enter()


async def test_a_redis_that_may_evict_is_refused(server: LocalRedis) -> None:
    async with connected(server) as client:
        await client.config_set("maxmemory-policy", "volatile-lru")
        with pytest.raises(UnsafeSettingsError, match=r"volatile-lru.*set it to noeviction"):
            await owner(client, 1).enter()
        await client.config_set("maxmemory", "0")
        assert await owner(client, 1).enter() is None, "eviction was refused although memory has no limit"


async def test_a_full_redis(server: LocalRedis) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        await client.config_set("maxmemory", "1")
        with pytest.raises(DistrustedError, match="OutOfMemoryError"):
            await claim_one(claims, 2)
        await client.config_set("maxmemory", "0")
        assert await entry_of(client, 2) is None


async def test_a_refused_password_is_not_in_the_error(server: LocalRedis, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("the-wrong-one")
    password.chmod(0o600)
    async with connected(server) as client:
        await client.config_set("requirepass", "the-right-one")
        stranger = connect(RedisAccess(address_of(server.url), FileCredentials("default", str(password))), TIMEOUT_S)
        try:
            with pytest.raises(DistrustedError, match="AuthenticationError") as caught:
                await owner(stranger, 1).enter()
        finally:
            await stranger.aclose()
        assert "the-wrong-one" not in str(caught.value)


async def test_a_clock_that_jumps_forward_ends_the_trust(server: LocalRedis) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        # As if Redis' clock had shown a time before, by which it is too far ahead now
        claims._clock_ahead_ms -= CLOCK_JUMP_MS + 2 * TIMEOUT_S * 1000
        await assert_distrusted(claims, "its clock jumped")
        await assert_recovers(client)


async def test_a_clock_that_jumps_back_ends_the_trust(server: LocalRedis) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        await client.hset(TRUST_KEY, "seen", now_ms() + CLOCK_JUMP_MS + 5_000)
        await assert_distrusted(claims, "its clock jumped")
        await assert_recovers(client)


async def test_a_successor_finds_a_clock_that_went_back(server: LocalRedis) -> None:
    async with connected(server) as client:
        await claimed_first(client)
        await client.hset(TRUST_KEY, "seen", now_ms() + CLOCK_JUMP_MS + 5_000)
        await assert_recovers(client)


async def test_each_script_shows_the_next_owner_how_late_it_is(server: LocalRedis) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        await client.hset(TRUST_KEY, "seen", now_ms() - 5_000)
        before = now_ms()
        await claims.check()
        assert int(await client.hget(TRUST_KEY, "seen") or 0) >= before


async def test_small_steps_of_the_clock_are_no_jump(server: LocalRedis) -> None:
    async with connected(server) as client:
        claims = await claimed_first(client)
        for step_ms in (CLOCK_JUMP_MS // 2, -CLOCK_JUMP_MS // 2):
            claims._clock_ahead_ms += step_ms
            await claims.check()


@pytest.mark.parametrize(("off_s", "said"), [(-60, "60 s ahead of this machine's"), (60, "60 s behind this machine's")])
async def test_a_clock_unlike_this_machines_is_not_entered(
    server: LocalRedis, monkeypatch: pytest.MonkeyPatch, off_s: int, said: str
) -> None:
    async with connected(server) as client:
        await claimed_first(client)
        now_s = time.time
        monkeypatch.setattr(time, "time", lambda: now_s() + off_s)
        with pytest.raises(DistrustedError, match=said):
            await owner(client, 2).enter()
        monkeypatch.undo()
        # Keys may have expired meanwhile: that the clocks agree again proves nothing
        await assert_recovers(client)


@pytest.mark.parametrize("off_s", [9 * 86_400, -3_600])
async def test_a_server_whose_clock_is_set(tmp_path: Path, off_s: int) -> None:
    offset = tmp_path / "offset"
    offset.write_text("+0")
    server = ReplicatedRedis(tmp_path)
    server.process.env.update(
        # The C library's malloc as well: that of jemalloc reads the clock before libfaketime is ready
        LD_PRELOAD=f"{require_faketime()} libc.so.6",
        FAKETIME_TIMESTAMP_FILE=str(offset),
        FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
    )
    server.start()
    try:
        await asyncio.to_thread(server.wait_ready)
        async with connected(server) as client:
            claims = await claimed_first(client)
            await claim_one(claims, 3)
            await mark_one(claims, 3, sent())
            offset.write_text(f"{off_s:+d}")
            if off_s > 0:
                assert await client.exists(bucket_key(3)) == 0, "nothing expired, so this proves nothing"
            await assert_distrusted(claims, "its clock jumped")
            offset.write_text("+0")
            await assert_recovers(client)
    finally:
        server.kill()


async def test_a_redis_that_keeps_buckets_in_more_memory_is_refused(server: LocalRedis) -> None:
    async with connected(server) as client:
        await client.config_set("hash-max-listpack-entries", "64")
        with pytest.raises(UnsafeSettingsError, match=r"as a hashtable, .*set hash-max-listpack-entries to 128"):
            await owner(client, 1).enter()
        await client.config_set("hash-max-listpack-entries", "128")
        await client.config_set("hash-max-listpack-value", "32")
        with pytest.raises(UnsafeSettingsError, match="hash-max-listpack-value to 64"):
            await owner(client, 1).enter()
        assert await client.dbsize() == 0


async def test_a_redis_with_too_little_memory_is_refused(server: LocalRedis) -> None:
    async with connected(server) as client:
        await client.config_set("maxmemory", "2mb")
        with pytest.raises(UnsafeSettingsError, match=r"are \d+ MB, and Redis has 2 MB \(maxmemory\)"):
            await owner(client, 1, buckets=1000).enter()
