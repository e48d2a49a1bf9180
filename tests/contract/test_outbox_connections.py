"""The outbox keeps no connection to Redis that it does not use."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deploy.drills.faults.redis import ReplicatedRedis
from services.outbox import connection
from services.outbox.scripts import UNDER_WAY
from shared.events.partitions import PARTITIONS_MAX
from tests.harness import eventually
from tests.redis import client_at, running_redis

BURST = 6
IDLE_MS = 1_000
"""More than a burst takes on a busy machine: none of its connections may be closed before it ends."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplicatedRedis]:
    monkeypatch.setattr(connection, "CONNECTION_IDLE_MS", IDLE_MS)
    with running_redis(tmp_path) as redis:
        yield redis


@pytest_asyncio.fixture
async def client(server: ReplicatedRedis) -> AsyncIterator[Redis]:
    redis = client_at(server.url)
    yield redis
    await redis.aclose()


async def burst(client: Redis, count: int = BURST) -> list[AbstractConnection]:
    """Use so many connections at the same time, and return them."""
    pool = client.connection_pool
    made: list[AbstractConnection] = [
        await pool.get_connection()  # type: ignore[no-untyped-call] # the client types none of this
        for _ in range(count)
    ]
    for each in made:
        await pool.release(each)
    return made


async def test_connections_of_a_burst_are_closed_once_idle(client: Redis) -> None:
    await burst(client)
    assert len(await client.client_list()) == BURST

    async def one_is_left() -> bool:
        return len(await client.client_list()) == 1

    await eventually(one_is_left, "one connection is left")
    await burst(client)
    assert len(await client.client_list()) == BURST, "a closed connection is made again when it is needed"


async def test_an_instance_may_use_connections_for_all_partitions(client: Redis) -> None:
    await burst(client, PARTITIONS_MAX * UNDER_WAY)


async def test_all_connections_are_closed_though_some_cannot_be_ended(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = await burst(client)

    async def without_an_answer(*_: object, **__: object) -> None:
        raise RedisTimeoutError("Timed out closing connection")

    monkeypatch.setattr(first, "disconnect", without_an_answer)
    await client.connection_pool.disconnect()
    assert not any(each.is_connected for each in others)


async def test_connections_to_a_server_that_is_gone_are_closed(server: ReplicatedRedis, client: Redis) -> None:
    made = await burst(client)
    server.kill()
    server.start()
    server.wait_ready()

    async def one_is_left() -> bool:
        try:
            await client.ping()
        except RedisError:
            return False
        return [each.is_connected for each in made].count(True) == 1

    await eventually(one_is_left, "one connection is left")
