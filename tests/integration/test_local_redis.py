"""A local Redis as a replica: in sync, promoted for good, turned round, and wiped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.redis.server import LocalRedis, RedisNotReadyError, RedisRunningError
from deploy.local.redis.wire import RedisCommandError
from tests.redis import running_redis


@pytest.fixture
def master(tmp_path: Path) -> Iterator[LocalRedis]:
    """A Redis without data."""
    with running_redis(tmp_path / "master") as redis:
        yield redis


@pytest.fixture
def replica(master: LocalRedis, tmp_path: Path) -> Iterator[LocalRedis]:
    """Its replica, in sync."""
    with running_redis(tmp_path / "replica", replica_of=master) as redis:
        yield redis


def test_a_replica_stays_one_until_it_is_promoted(master: LocalRedis, replica: LocalRedis) -> None:
    for expected in ("slave", "master"):
        replica.stop()
        replica.start()
        replica.wait_ready()
        assert replica.info("replication")["role"] == expected
        if expected == "slave":
            master.wait_synced(replica)
        replica.promote()


def test_a_master_that_follows_is_in_sync(master: LocalRedis, replica: LocalRedis) -> None:
    replica.promote()
    master.follow(replica)
    replica.wait_synced(master)
    assert master.info("replication")["role"] == "slave"
    assert replica.info("replication")["connected_slaves"] == "1"


def test_a_stranger_is_never_in_sync(master: LocalRedis, replica: LocalRedis) -> None:
    with pytest.raises(RedisNotReadyError, match=r"not in sync after 0\.2 s"):
        replica.wait_synced(master, 0.2)


def test_only_a_stopped_redis_is_wiped(master: LocalRedis) -> None:
    with pytest.raises(RedisRunningError, match="stop it before"):
        master.wipe()
    data = master.directory / "data"
    master.stop()
    assert any(data.iterdir())
    master.wipe()
    assert not data.exists()
    with pytest.raises(RedisCommandError, match="REPLICAOF"):
        master.promote()
    master.start()
    master.wait_ready()
