"""A real Redis for tests of the outbox's claims, its replicas, and owners of claims to put against each other."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from redis.asyncio import Redis

from deploy.drills.faults.redis import ReplicatedRedis, wait_synced
from deploy.local.redis.server import LocalRedis
from services.outbox.address import address_of
from services.outbox.claims import Claims
from services.outbox.connection import RedisAccess, connect
from services.outbox.limits import EFFECTS_PER_BUCKET, Capacity
from services.outbox.marks import Claim, Keys, Mark, Mode, Status, Wanted, decode_mark
from shared.events.effects import EFFECT_ID_BYTES, EffectState

INSTALLATION = "an-installation"
PARTITION = 3
PRODUCER_ID = 7
LEASE_MS = 30_000
RETENTION_MS = 3_600_000
TIMEOUT_S = 2.0
BUCKETS = 40
KEYS = Keys(INSTALLATION, PARTITION, BUCKETS)
TRUST_KEY, REBUILD_KEY = KEYS.trust, KEYS.rebuild


@contextmanager
def running_redis(directory: Path, replica_of: LocalRedis | None = None) -> Iterator[ReplicatedRedis]:
    """A Redis that answers; killed at the end. A replica is in sync."""
    redis = ReplicatedRedis(directory, replica_of)
    redis.start()
    try:
        redis.wait_ready()
        if replica_of is not None:
            wait_synced(replica_of, redis)
        yield redis
    finally:
        redis.kill()


def client_at(url: str, timeout_s: float = TIMEOUT_S) -> Redis:
    """The outbox's client for a Redis without authentication. Close it with `aclose()`."""
    return connect(RedisAccess(address_of(url)), timeout_s)


def effect_id(number: int) -> str:
    """An id unique to its number."""
    return f"{number:032x}"


def claim_key(number: int) -> str:
    """The Redis key of that effect's claim."""
    return KEYS.of(effect_id(number))[0]


def bucket_key(number: int) -> str:
    """The Redis key of the bucket of that effect's mark."""
    return KEYS.of(effect_id(number))[1]


async def entry_of(client: Redis, number: int, keys: Keys = KEYS) -> bytes | Mark | None:
    """An effect's entry in Redis: a claim as it is there, or a mark; None for neither."""
    claim, bucket = keys.of(effect_id(number))
    held, known = await client.get(claim), await client.hget(bucket, bytes.fromhex(effect_id(number)))
    assert held is None or known is None, "an effect has both a claim and a mark"
    assert not isinstance(held, str)
    return decode_mark(known) if isinstance(known, bytes) else held


def now_ms() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


def sent(revision: int = 1) -> Mark:
    """The mark of an effect that was sent just now."""
    return Mark(EffectState.SENT, now_ms(), 1, revision, 0)


def in_doubt(revision: int = 1) -> Mark:
    """The mark of an effect that came into doubt just now."""
    return Mark(EffectState.IN_DOUBT, now_ms(), 1, revision, 0)


def plan(buckets: int = BUCKETS, retention_ms: int = RETENTION_MS) -> Capacity:
    """A plan that gives each partition so many buckets."""
    effects = (buckets - 0.5) * EFFECTS_PER_BUCKET
    return Capacity(effects / retention_ms * 1000, retention_ms, 1)


def owner(
    client: Redis,
    epoch: int,
    *,
    producer_id: int = PRODUCER_ID,
    installation: str = INSTALLATION,
    buckets: int = BUCKETS,
    lease_ms: int = LEASE_MS,
    retention_ms: int = RETENTION_MS,
    timeout_s: float = TIMEOUT_S,
) -> Claims:
    """An owner of PARTITION before it has entered."""
    token = producer_id << 16 | epoch
    name = f"outbox-{epoch}"
    return Claims(
        client,
        PARTITION,
        token,
        name,
        installation=installation,
        capacity=plan(buckets, retention_ms),
        lease_ms=lease_ms,
        timeout_s=timeout_s,
    )


async def entered(claims: Claims) -> Claims:
    """The same owner, entered; Redis is rebuilt from nothing when it is not trusted or outdated."""
    if await claims.enter() is None or claims.outdated:
        await claims.rebuild([])
    return claims


async def claim_one(
    claims: Claims,
    number: int,
    mode: Mode = Mode.KEYLESS,
    reopen_revision: int = 0,
    resends: int = 0,
    *,
    new: bool = False,
    again: bool = False,
    begin: bool = True,
) -> Claim:
    """Claim one effect, and begin its call if needed; `new` and `again` are Wanted's resend_if_..."""
    (claim,) = await claims.claim([Wanted(effect_id(number), mode, reopen_revision, resends, new, again)])
    if begin and mode is Mode.KEYLESS and claim.status in {Status.NEW, Status.RETAKEN, Status.REOPENED}:
        await claims.begin(effect_id(number))
    return claim


async def mark_one(claims: Claims, number: int, mark: Mark | None) -> None:
    """Mark or release one effect."""
    await claims.mark([(effect_id(number), mark)])


async def keys_without_expiry(client: Redis) -> list[str]:
    """All keys without an expiry."""
    keys: Sequence[bytes] = sorted([key async for key in client.scan_iter(count=1000)])
    return [key.decode() for key in keys if await client.pttl(key) < 0]


async def measure_bytes_per_effect(client: Redis, count: int) -> float:
    """Bytes of Redis' memory for each effect that was sent, tables and expiries included, with buckets as planned.

    Args:
        client: of a Redis without other users; it is flushed first.
        count: how many effects to remember.
    """
    await client.flushall()
    claims = await entered(owner(client, 1, buckets=count // EFFECTS_PER_BUCKET))
    before = (await client.info("memory"))["used_memory"]
    await claims.rebuild((random_id(number), sent()) for number in range(count))
    after = (await client.info("memory"))["used_memory"]
    return float((after - before) / count)


def random_id(number: int) -> str:
    """An id as the ledger makes it, unique to its number: spread at random over the buckets."""
    return blake2b(str(number).encode(), digest_size=EFFECT_ID_BYTES).hexdigest()
