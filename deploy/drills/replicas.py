"""A replica of a partition as its broker has it on disk: each broker's own copy, leader or follower.

Only a local cluster has its data on this machine.
"""

from pathlib import Path

from deploy.drills.target import Target
from shared.kafka.client.batches import Batch, decode


def replica_directory(target: Target, broker: str, topic: str, partition: int = 0) -> Path:
    """Return where a broker keeps its replica."""
    return target.directory / "data" / "kafka" / broker / f"{topic}-{partition}"


def replica_log(target: Target, broker: str, topic: str, partition: int = 0) -> list[Batch]:
    """Return all batches of a replica in order; a batch that is being written is left out."""
    files = sorted(replica_directory(target, broker, topic, partition).glob("*.log"))
    return [batch for file in files for batch in decode(file.read_bytes())]


def snapshots(target: Target, broker: str, topic: str, partition: int = 0) -> list[int]:
    """Return the offsets of a replica's snapshots of its producers' state, in order."""
    return sorted(int(file.stem) for file in replica_directory(target, broker, topic, partition).glob("*.snapshot"))
