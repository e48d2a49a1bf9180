"""MirrorMaker 2 as a process: it copies topics of one cluster to another, under their names (KIP-382).

It is configured as its documentation begins: its consumer reads uncommitted, and its producer has no transactions.
"""

from collections.abc import Sequence
from pathlib import Path

from deploy.local.jars import MIRROR_LOCK_PATH, classpath
from deploy.local.prerequisites import require_java
from deploy.local.process import ManagedProcess

_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def mirror_properties(source: str, target: str, topics: Sequence[str]) -> str:
    """Return the text of mm2.properties."""
    return f"""\
clusters = first, second
first.bootstrap.servers = {source}
second.bootstrap.servers = {target}
first->second.enabled = true
second->first.enabled = false
first->second.topics = {",".join(topics)}
# One task for each partition
tasks.max = 2
# A topic keeps its name. It is made before, and keeps its settings.
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
sync.topic.configs.enabled = false
sync.topic.acls.enabled = false
# Nothing but records is of interest, and the second cluster has one broker
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
offset-syncs.topic.location = target
replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
status.storage.replication.factor = 1
config.storage.replication.factor = 1
"""


def mirror(source: str, target: str, topics: Sequence[str], directory: Path) -> ManagedProcess:
    """Make the process, not started.

    Raises:
        JarError: its jars cannot be downloaded.
        PrerequisiteError: there is no Java.
    """
    path = directory / "mm2.properties"
    path.write_text(mirror_properties(source, target, topics))
    argv = [require_java(), *_OPTIONS, "org.apache.kafka.connect.mirror.MirrorMaker", str(path)]
    environment = {"CLASSPATH": classpath(MIRROR_LOCK_PATH)}
    return ManagedProcess("mirror-maker", argv, environment, directory / "mirror-maker.log")
