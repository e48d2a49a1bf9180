"""Rebuilds of Redis from effects.results: the entries they write and keep, and their interruptions."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from deploy.local.redis.server import LocalRedis
from services.outbox.claims import KEYS_PER_CALL_MAX, REBUILD_REST_MS, Claims, DistrustedError
from services.outbox.marks import Claim, Mark, Mode, Status
from shared.eos.errors import FencedError
from tests.redis import (
    REBUILD_KEY,
    RETENTION_MS,
    TRUST_KEY,
    claim_one,
    client_at,
    effect_id,
    effect_key,
    entered,
    in_doubt,
    keys_without_expiry,
    mark_one,
    measure_bytes_per_effect,
    now_ms,
    owner,
    running_redis,
    sent,
)

BYTES_PER_EFFECT_MAX = 200
HALF_HOUR_MS = 1_800_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LocalRedis]:
    """An empty Redis."""
    with running_redis(tmp_path) as redis:
        yield redis


@pytest_asyncio.fixture
async def client(server: LocalRedis) -> AsyncIterator[Redis]:
    """A client of that Redis."""
    redis = client_at(server.url)
    yield redis
    await redis.aclose()


async def test_every_effect_is_known_again(client: Redis) -> None:
    claims = owner(client, 1)
    assert await claims.enter() is None
    count = 2 * KEYS_PER_CALL_MAX + 7
    marks = {effect_id(number): sent(1 + number % 3) for number in range(count)}
    incarnation = await claims.rebuild(marks.items())
    assert await claim_one(claims, count - 1) == Claim(Status.KNOWN, mark=marks[effect_id(count - 1)])
    assert await client.dbsize() == count + 1
    assert await client.hget(TRUST_KEY, "incarnation") == incarnation.encode()
    assert await keys_without_expiry(client) == [TRUST_KEY]
    assert await owner(client, 2).enter() == incarnation


async def test_a_rebuilt_mark_keeps_its_expiry(client: Redis) -> None:
    claims = owner(client, 1)
    old = sent()._replace(at_ms=now_ms() - HALF_HOUR_MS)
    expired = sent()._replace(at_ms=now_ms() - RETENTION_MS - 1)
    await claims.rebuild([(effect_id(1), old), (effect_id(2), expired)])
    left_ms = RETENTION_MS - HALF_HOUR_MS
    assert left_ms - 60_000 < await client.pttl(effect_key(1)) <= left_ms
    assert await client.exists(effect_key(2)) == 0


async def test_a_rebuild_keeps_entries_that_kafka_lacks(client: Redis) -> None:
    claims = await entered(owner(client, 1))
    later = sent(2)
    for number in (1, 2, 3, 4):
        await claim_one(claims, number)
    await mark_one(claims, 2, later)
    await mark_one(claims, 3, in_doubt(1))
    await claim_one(claims, 3, reopen_revision=1)
    successor = owner(client, 2, lease_ms=0)
    await successor.enter()
    first = sent(1)
    # 1: called, not in Kafka; 2: decided later than in Kafka; 3: called again; 4: decided in Kafka
    await successor.rebuild([(effect_id(2), in_doubt(1)), (effect_id(3), in_doubt(1)), (effect_id(4), first)])
    assert await claim_one(successor, 1, Mode.KEYED) == Claim(Status.RETAKEN)
    assert await claim_one(successor, 2, reopen_revision=1) == Claim(Status.KNOWN, mark=later)
    assert (await claim_one(successor, 3, reopen_revision=1)).status is Status.HELD
    assert await claim_one(successor, 4) == Claim(Status.KNOWN, mark=first)


async def test_a_retaken_claim_keeps_the_revision_that_it_was_reopened_from(client: Redis) -> None:
    claims = await entered(owner(client, 1, lease_ms=0))
    await claim_one(claims, 1)
    await mark_one(claims, 1, in_doubt(1))
    await claim_one(claims, 1, reopen_revision=1)
    successor = await entered(owner(client, 2))
    assert await claim_one(successor, 1) == Claim(Status.RETAKEN)
    await successor.rebuild([(effect_id(1), in_doubt(1))])
    assert await claim_one(successor, 1, reopen_revision=1) == Claim(Status.RETAKEN)


async def test_the_first_mark_is_asked_for_when_the_rebuild_has_begun(client: Redis) -> None:
    # The caller checks its ownership in Kafka before the first mark; a successor must be able to end the rebuild then
    claims = await entered(owner(client, 1))
    seen: list[int] = []

    async def marks() -> AsyncIterator[tuple[str, Mark]]:
        seen.append(await client.exists(REBUILD_KEY))
        seen.append(await client.exists(TRUST_KEY))
        yield effect_id(1), sent()

    await claims.rebuild(marks())
    assert seen == [1, 0]
    assert await client.exists(REBUILD_KEY) == 0


async def test_an_abandoned_rebuild_expires(client: Redis) -> None:
    claims = owner(client, 1)
    await claims.enter()
    left_ms = [await client.pttl(REBUILD_KEY)]

    async def marks() -> AsyncIterator[tuple[str, Mark]]:
        for number in range(KEYS_PER_CALL_MAX + 1):
            if number in {0, KEYS_PER_CALL_MAX}:  # after the first step, and after the second
                left_ms.append(await client.pttl(REBUILD_KEY))
                await client.pexpire(REBUILD_KEY, 5_000)
            yield effect_id(number), sent()

    await claims.rebuild(marks())
    assert [REBUILD_REST_MS - 60_000 < left <= REBUILD_REST_MS for left in left_ms] == [True] * 3


class Begun:
    """A rebuild that waits after a given number of marks."""

    def __init__(self, claims: Claims, count: int, at: int) -> None:
        self._reached = asyncio.Event()
        self._go_on = asyncio.Event()
        self._count, self._at = count, at
        self._task = asyncio.create_task(claims.rebuild(self._marks()))

    async def reached(self) -> None:
        await asyncio.wait_for(self._reached.wait(), 10)

    async def end(self) -> str:
        self._go_on.set()
        return await self._task

    async def _marks(self) -> AsyncIterator[tuple[str, Mark]]:
        for number in range(self._count):
            if number == self._at:
                self._reached.set()
                await self._go_on.wait()
            yield effect_id(number), sent()


@pytest_asyncio.fixture(params=[0, KEYS_PER_CALL_MAX, 2 * KEYS_PER_CALL_MAX - 1])
async def begun(request: pytest.FixtureRequest, client: Redis) -> Begun:
    """A rebuild that waits before its first step, in the middle, or before its last step."""
    rebuild = Begun(owner(client, 1), 2 * KEYS_PER_CALL_MAX, request.param)
    await rebuild.reached()
    return rebuild


async def test_a_flush_ends_a_rebuild(begun: Begun, client: Redis) -> None:
    await client.flushall()
    with pytest.raises(DistrustedError, match="it was flushed"):
        await begun.end()
    assert await client.dbsize() == 0


async def test_a_restart_ends_a_rebuild(begun: Begun, client: Redis, server: LocalRedis) -> None:
    server.stop()
    server.start()
    server.wait_ready()
    await client.connection_pool.disconnect()
    assert await client.exists(REBUILD_KEY) == 1, "nothing was kept, so this shows nothing"
    with pytest.raises(DistrustedError, match="it was restarted"):
        await begun.end()
    assert await client.exists(TRUST_KEY) == 0


async def test_a_successor_that_enters_ends_a_rebuild(begun: Begun, client: Redis) -> None:
    assert await owner(client, 2).enter() is None
    with pytest.raises(FencedError):
        await begun.end()
    assert await client.exists(TRUST_KEY) == 0


async def test_a_successors_rebuild_is_not_disturbed(begun: Begun, client: Redis) -> None:
    other = Begun(owner(client, 2), 1, 0)
    await other.reached()
    with pytest.raises(FencedError):
        await begun.end()
    assert await other.end() == await owner(client, 2).enter()
    assert await client.exists(effect_key(2 * KEYS_PER_CALL_MAX - 1)) == 0, "the fenced rebuild wrote its last step"


async def test_a_rebuild_fences_the_previous_owner_before_it_ends(client: Redis) -> None:
    claims = await entered(owner(client, 1))
    other = Begun(owner(client, 2), 1, 0)
    await other.reached()
    with pytest.raises(FencedError):
        await claims.check()
    await other.end()


async def test_a_rebuild_that_a_successor_overtook_is_fenced(begun: Begun, client: Redis) -> None:
    successor = owner(client, 2)
    incarnation = await successor.rebuild([])
    with pytest.raises(FencedError):
        await begun.end()
    assert await owner(client, 2).enter() == incarnation


async def test_the_later_of_two_rebuilds_of_one_owner_counts(begun: Begun, client: Redis) -> None:
    later = Begun(owner(client, 1), 1, 0)
    await later.reached()
    with pytest.raises(DistrustedError, match="rebuilt by another"):
        await begun.end()
    assert await later.end() == await owner(client, 1).enter()


async def test_a_zombie_cannot_begin_a_rebuild(client: Redis) -> None:
    successor = await entered(owner(client, 2))
    with pytest.raises(FencedError):
        await owner(client, 1).rebuild([])
    await successor.check()


async def test_memory_per_effect(client: Redis) -> None:
    measured = await measure_bytes_per_effect(client, 100_000)
    print(f"{measured:.0f} bytes of Redis for each effect", file=sys.stderr)
    assert 50 < measured < BYTES_PER_EFFECT_MAX
