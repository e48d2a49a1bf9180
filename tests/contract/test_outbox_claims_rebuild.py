"""Rebuilds of Redis from effects.results: the entries they write and keep, and their interruptions."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from deploy.local.redis.server import LocalRedis
from services.outbox.claims import KEYS_PER_CALL_MAX, Claims, DistrustedError
from services.outbox.limits import BYTES_PER_EFFECT
from services.outbox.marks import Claim, Keys, Mark, Mode, Status
from services.outbox.rebuild import FIND_KEYS, REBUILD_REST_MS
from shared.eos.errors import FencedError
from tests.harness import eventually
from tests.redis import (
    BUCKETS,
    INSTALLATION,
    LEASE_MS,
    PARTITION,
    PRODUCER_ID,
    REBUILD_KEY,
    RETENTION_MS,
    TRUST_KEY,
    bucket_key,
    claim_key,
    claim_one,
    client_at,
    effect_id,
    entered,
    entry_of,
    in_doubt,
    keys_without_expiry,
    mark_one,
    measure_bytes_per_effect,
    now_ms,
    owner,
    running_redis,
    sent,
)
from tests.tiers import full

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
    assert await client.dbsize() == BUCKETS + 1
    assert await client.hget(TRUST_KEY, "incarnation") == incarnation.encode()
    assert await keys_without_expiry(client) == [TRUST_KEY]
    assert await owner(client, 2).enter() == incarnation


async def test_a_rebuilt_mark_keeps_its_expiry(client: Redis) -> None:
    claims = owner(client, 1)
    old = sent()._replace(at_ms=now_ms() - HALF_HOUR_MS)
    expired = sent()._replace(at_ms=now_ms() - RETENTION_MS - 1)
    await claims.rebuild([(effect_id(1), old), (effect_id(2), expired)])
    left_ms = RETENTION_MS - HALF_HOUR_MS
    assert left_ms - 60_000 < await client.pttl(bucket_key(1)) <= left_ms
    assert await entry_of(client, 2) is None


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
            if number == KEYS_PER_CALL_MAX:  # a step is under way
                await eventually(refreshed, "the step keeps the rebuild alive")
            if number in {0, KEYS_PER_CALL_MAX}:
                left_ms.append(await client.pttl(REBUILD_KEY))
                await client.pexpire(REBUILD_KEY, 5_000)
            yield effect_id(number), sent()

    async def refreshed() -> bool:
        return int(await client.pttl(REBUILD_KEY)) > 5_000

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

    async def written() -> bool:
        return request.param < KEYS_PER_CALL_MAX or await entry_of(client, KEYS_PER_CALL_MAX - 1) is not None

    await eventually(written, "no step is under way")
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
    assert await entry_of(client, 2 * KEYS_PER_CALL_MAX - 1) is None, "the fenced rebuild wrote its last step"


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


@full
@pytest.mark.parametrize("count", [100_000, 1_000_000])
async def test_memory_per_effect(client: Redis, count: int) -> None:
    measured = await measure_bytes_per_effect(client, count)
    print(f"{measured:.1f} bytes of Redis for each of {count} effects", file=sys.stderr)
    assert 27 < measured < BYTES_PER_EFFECT


async def test_an_interrupted_rebuild_writes_nothing_more(client: Redis) -> None:
    claims = owner(client, 1)

    async def marks() -> AsyncIterator[tuple[str, Mark]]:
        for number in range(KEYS_PER_CALL_MAX):
            yield effect_id(number), sent()
        raise OSError("no answer from Kafka")

    with pytest.raises(OSError, match="no answer from Kafka"):
        await claims.rebuild(marks())
    assert await client.exists(TRUST_KEY) == 0
    assert await owner(client, 2).enter() is None


@pytest.mark.parametrize("buckets", [BUCKETS * 3, BUCKETS // 8])
async def test_another_number_of_buckets_loses_nothing(client: Redis, buckets: int) -> None:
    first = await entered(owner(client, 1))
    decided = {number: sent() for number in range(3 * KEYS_PER_CALL_MAX)}
    await first.rebuild((effect_id(number), mark) for number, mark in decided.items())
    await claim_one(first, 5000)  # under way
    await claim_one(first, 5001)
    await mark_one(first, 5001, in_doubt())  # its owner dies before it can commit this

    successor = owner(client, 2, buckets=buckets, lease_ms=0)
    assert await successor.enter() == first._incarnation
    assert successor.outdated
    with pytest.raises(DistrustedError, match="rebuilt"):
        await claim_one(successor, 1)
    await successor.rebuild([])
    await successor.check()
    keys = Keys(INSTALLATION, PARTITION, buckets)
    for number, mark in {**decided, 5001: in_doubt()}.items():
        entry = await entry_of(client, number, keys)
        assert isinstance(entry, Mark)
        assert (entry.state, entry.revision) == (mark.state, mark.revision)
    assert (await claim_one(successor, 5000)).status is Status.HELD
    assert await client.dbsize() == buckets + 2, "former buckets are left"


async def test_a_longer_retention_is_rebuilt(client: Redis) -> None:
    first = await entered(owner(client, 1))
    mark = sent()
    await first.rebuild([(effect_id(1), mark)])
    longer = owner(client, 2, retention_ms=2 * RETENTION_MS)
    assert await longer.enter() == first._incarnation
    assert longer.outdated
    await longer.rebuild([(effect_id(1), mark)])
    assert await client.pttl(bucket_key(1)) > RETENTION_MS
    shorter = owner(client, 3)
    assert await shorter.enter() is not None
    assert not shorter.outdated, "entries that live longer do no harm"


FORMER = f"once:{{{PARTITION}}}:"
"""The prefix of keys in the layout before buckets and installations."""


async def write_former(client: Redis, entries: dict[int, str], incarnation: str = "former") -> None:
    """Write what an owner of that layout left, and that this Redis was trusted."""
    server, replication = await client.info("server"), await client.info("replication")
    await client.hset(
        FORMER + "trust",
        mapping={
            "run_id": server["run_id"],
            "replication_id": replication["master_replid"],
            "incarnation": incarnation,
            "token": f"{PRODUCER_ID}.1",
        },
    )
    for number, entry in entries.items():
        await client.set(FORMER + effect_id(number), entry, px=RETENTION_MS)


def former_claim(kind: str, base: int = 0, resends: int = 0) -> str:
    return f"{kind}|{PRODUCER_ID}.1|{now_ms() + LEASE_MS}|{base}|{resends}|outbox-0"


async def test_entries_of_the_former_layout_are_honoured(client: Redis) -> None:
    at_ms = now_ms()
    former = {
        1: former_claim("b", resends=2),
        2: former_claim("c"),
        3: f"s|{at_ms}|1|1|0",
        4: f"f|{at_ms}|4|2|1|refused|410 Gone",
        5: f"d|{at_ms}|1|1|0||the answer was lost",
        6: former_claim("b", base=1),  # reopened, and not in Kafka
    }
    await write_former(client, former)
    claims = owner(client, 2)
    assert await claims.enter() == "former", "its claims are there, so none of them is lost"
    assert claims.outdated
    await claims.rebuild([(effect_id(6), in_doubt(1))])
    assert (await claim_one(claims, 1)).status is Status.HELD
    assert await claim_one(claims, 1, Mode.KEYED) == Claim(Status.RETAKEN, resends=2)
    assert await claim_one(claims, 2) == Claim(Status.NEW), "its call was never begun"
    assert await claim_one(claims, 3) == Claim(Status.KNOWN, mark=Mark("sent", at_ms, 1, 1, 0))
    assert await claim_one(claims, 4) == Claim(Status.KNOWN, mark=Mark("failed", at_ms, 4, 2, 1, "refused"))
    assert await claim_one(claims, 5) == Claim(Status.KNOWN, mark=Mark("in_doubt", at_ms, 1, 1, 0))
    assert await claim_one(claims, 6, Mode.KEYED, 1) == Claim(Status.RETAKEN)
    assert [key async for key in client.scan_iter(FORMER + "*")] == []
    assert await keys_without_expiry(client) == [TRUST_KEY]


async def test_a_former_lease_that_has_ended_leaves_a_doubt(client: Redis) -> None:
    await write_former(client, {1: f"b|{PRODUCER_ID}.1|{now_ms() - 1}|0|0|outbox-0"})
    claims = await entered(owner(client, 2))
    assert await claim_one(claims, 1) == Claim(Status.RETAKEN)


async def test_many_former_entries_are_moved(client: Redis) -> None:
    count = 3 * FIND_KEYS
    await write_former(client, {number: f"s|{now_ms()}|1|1|0" for number in range(count)})
    claims = await entered(owner(client, 2))
    assert await client.dbsize() == BUCKETS + 1
    assert (await claim_one(claims, count - 1)).status is Status.KNOWN


@pytest.mark.parametrize(
    ("kept", "former", "status"),
    [
        ("b", "c", Status.RETAKEN),  # a call that may have been made is not forgotten, in whichever layout
        ("c", "b", Status.RETAKEN),
        ("c", "c", Status.NEW),
    ],
)
async def test_a_claim_in_both_layouts_counts_as_begun_if_one_was(
    client: Redis, kept: str, former: str, status: Status
) -> None:
    """As after an upgrade, a way back and another upgrade."""
    claims = await entered(owner(client, 1, lease_ms=0))
    await claim_one(claims, 1, begin=kept == "b")
    await write_former(client, {1: f"{former}|{PRODUCER_ID}.1|{now_ms() - 1}|0|0|outbox-0"})
    successor = owner(client, 2)
    await successor.enter()
    await successor.rebuild([])
    assert (await claim_one(successor, 1, begin=False)).status is status


async def test_a_decided_effect_is_not_reopened_by_a_former_claim(client: Redis) -> None:
    claims = await entered(owner(client, 1))
    await claim_one(claims, 1)
    await mark_one(claims, 1, sent(1))
    await write_former(client, {1: former_claim("b")})
    await claims.rebuild([])
    assert (await claim_one(claims, 1)).status is Status.KNOWN
    assert await client.exists(claim_key(1)) == 0


async def test_an_owner_of_the_former_layout_is_stopped_before_its_next_call(client: Redis) -> None:
    await write_former(client, {1: former_claim("c")})
    claims = owner(client, 2)
    await claims.enter()
    assert await client.exists(FORMER + "trust") == 0, "its next script would still find its trust"


async def test_the_version_that_entered_last_is_the_one_that_is_trusted(client: Redis) -> None:
    """After a way back and another upgrade, both layouts are there, and Kafka names the former one's incarnation."""
    before = await entered(owner(client, 1))
    await claim_one(before, 1)
    await write_former(client, {2: former_claim("b")})
    claims = owner(client, 2)
    assert await claims.enter() == "former"
    assert claims.outdated
    with pytest.raises(FencedError):
        await before.check()
    await claims.rebuild([])
    assert (await claim_one(claims, 1)).status is Status.HELD
    assert (await claim_one(claims, 2)).status is Status.HELD


async def test_a_former_trust_is_none_where_the_clock_jumped(client: Redis) -> None:
    await entered(owner(client, 1))
    await client.hset(TRUST_KEY, "jumped", "1")
    await write_former(client, {})
    assert await owner(client, 2).enter() is None


async def test_a_former_trust_of_another_server_is_none(client: Redis) -> None:
    await write_former(client, {1: former_claim("b")})
    await client.hset(FORMER + "trust", "run_id", "0" * 40)
    claims = owner(client, 2)
    assert await claims.enter() is None
    await claims.rebuild([])
    assert (await claim_one(claims, 1)).status is Status.HELD


async def test_a_newer_owner_of_the_former_layout_fences(client: Redis) -> None:
    await write_former(client, {})
    with pytest.raises(FencedError):
        await owner(client, 0).enter()


async def test_former_entries_of_other_partitions_stay(client: Redis) -> None:
    other = f"once:{{{PARTITION + 1}}}:{effect_id(1)}"
    await client.set(other, former_claim("b"))
    await entered(owner(client, 1))
    assert await client.exists(other) == 1
