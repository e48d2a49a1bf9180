"""A local Redis as a replica: in sync, promoted, reversed and wiped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.drills.faults.redis import ReplicatedRedis, info, wait_synced, wipe
from deploy.local.redis.server import RedisCommandError, RedisNotReadyError
from tests.redis import running_redis


@pytest.fixture
def master(tmp_path: Path) -> Iterator[ReplicatedRedis]:
    """A Redis without data."""
    with running_redis(tmp_path / "master") as redis:
        yield redis


@pytest.fixture
def replica(master: ReplicatedRedis, tmp_path: Path) -> Iterator[ReplicatedRedis]:
    """A replica of that Redis, in sync."""
    with running_redis(tmp_path / "replica", replica_of=master) as redis:
        yield redis


def test_a_replica_stays_one_until_it_is_promoted(master: ReplicatedRedis, replica: ReplicatedRedis) -> None:
    for expected in ("slave", "master"):
        replica.stop()
        replica.start()
        replica.wait_ready()
        assert info(replica, "replication")["role"] == expected
        if expected == "slave":
            wait_synced(master, replica)
        replica.promote()


def test_a_master_that_follows_is_in_sync(master: ReplicatedRedis, replica: ReplicatedRedis) -> None:
    replica.promote()
    master.follow(replica)
    wait_synced(replica, master)
    assert info(master, "replication")["role"] == "slave"
    assert info(replica, "replication")["connected_slaves"] == "1"


def test_a_redis_that_is_not_a_replica_is_never_in_sync(master: ReplicatedRedis, replica: ReplicatedRedis) -> None:
    with pytest.raises(RedisNotReadyError, match=r"not in sync after 0\.2 s"):
        wait_synced(replica, master, 0.2)


def test_only_a_stopped_redis_is_wiped(master: ReplicatedRedis) -> None:
    with pytest.raises(RuntimeError, match="stop it before"):
        wipe(master)
    data = master.directory / "data"
    master.stop()
    assert any(data.iterdir())
    wipe(master)
    assert not data.exists()
    with pytest.raises(RedisCommandError, match="REPLICAOF"):
        master.promote()
    master.start()
    master.wait_ready()
