"""The cluster's brokers and partitions: who leads, what is replicated, and what a lost leader takes with it.

Followers are not modelled one by one: what they have is a prefix of the leader's log, up to the high watermark. A new
leader has that prefix. A leader that restarts before anybody succeeded it has its whole log, and leads again with it.
"""

import asyncio
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.simulation.log import Log

Target = tuple[str, int]

BATCH_BYTES_MAX: Final = 1_048_588
"""The brokers' default of max.message.bytes."""
REPLICATION_S: Final = (0.0005, 0.003)
"""Until the followers have what was appended, from and to."""
SESSION_S: Final = 3.0
"""Until the controller notices that a broker is gone."""
CAUGHT_UP_S: Final = 0.3
"""Until a follower that is back is in sync."""


def topic_id_of(name: str) -> bytes:
    """A topic's id, a UUID: the same in each cluster."""
    return uuid.uuid5(uuid.NAMESPACE_URL, name).bytes


@dataclass(slots=True)
class Partition:
    """One partition.

    Attributes:
        replicas: node ids, the preferred leader first.
        leader: node id; the last one's while there is none.
        batch_bytes_max: larger batches are refused.
        compacted: whether records without a key are refused.
        epoch: of the leader.
        in_sync: node ids; never empty.
        held: whether the followers fetch nothing, as a fault.
        takes_markers: whether transaction coordinators reach it.
        refuses: error codes for the next batches.
    """

    target: Target
    replicas: tuple[int, ...]
    in_sync: set[int]
    leader: int
    batch_bytes_max: int = BATCH_BYTES_MAX
    epoch: int = 0
    compacted: bool = False
    held: bool = False
    takes_markers: bool = True
    refuses: list[int] = field(default_factory=list)
    log: Log = field(default_factory=Log)
    _waiting: "dict[asyncio.Future[bool], int]" = field(default_factory=dict)
    _readers: "dict[asyncio.Future[None], None]" = field(default_factory=dict)

    async def replicated(self, end: int, timeout_s: float) -> bool:
        """Wait until every in-sync replica has all below an offset; False when that is not so in time, or is lost."""
        if self.log.high_watermark >= end:
            return True
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[reached] = end
        try:
            return await asyncio.wait_for(reached, timeout_s)
        except TimeoutError:
            return False
        finally:
            self._waiting.pop(reached, None)

    def on_advance(self, reader: "asyncio.Future[None]") -> None:
        """Resolve a future when there is more to read, or another leader to read from."""
        self._readers[reader] = None

    def _wake_readers(self) -> None:
        readers, self._readers = self._readers, {}
        for reader in readers:
            if not reader.done():
                reader.set_result(None)

    def advance(self, end: int) -> None:
        """Let the followers have everything below an offset."""
        self.log.high_watermark = max(self.log.high_watermark, min(end, self.log.end))
        for reached, wanted in list(self._waiting.items()):
            if wanted <= self.log.high_watermark and not reached.done():
                reached.set_result(True)
        self._wake_readers()

    def lead(self, node: int) -> None:
        """Begin a leader's epoch; another leader than before has what was replicated."""
        if node != self.leader:
            self.log.truncate(self.log.high_watermark)
        self.leader = node
        self.epoch += 1
        for reached in self._waiting:
            if not reached.done():
                reached.set_result(False)
        self._wake_readers()


class Note(NamedTuple):
    """An event, or a log line, for the printed history.

    Attributes:
        at_s: virtual time.
        state: whether it is a new state of the cluster.
    """

    at_s: float
    who: str
    text: str
    state: bool


class Cluster:
    """The controller's view, and the faults of brokers.

    Attributes:
        notes: what happened, in order.
        partitions: by topic and number.
        alive: node ids of brokers that run.
        registered: those that the controller knows as running.
        on_leader: called with each partition whose leader changed.
        transaction_version: the finalised feature: which protocol of transactions clients shall speak.
    """

    def __init__(self, chance: random.Random, brokers: int, min_in_sync: int, transaction_version: int = 2) -> None:
        self.min_in_sync = min_in_sync
        self.transaction_version = transaction_version
        self.partitions: dict[Target, Partition] = {}
        self.notes: list[Note] = []
        self._topics: dict[str, list[Partition]] = {}
        self.alive = set(range(brokers))
        self.registered = set(self.alive)
        self.on_leader: list[Callable[[Partition], None]] = []
        self._chance = chance

    def note(self, who: str, text: str, *, state: bool = True) -> None:
        """Note something for the printed history."""
        self.notes.append(Note(asyncio.get_running_loop().time(), who, text, state))

    def create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create a topic, replicated to every broker.

        Args:
            settings: of these max.message.bytes and cleanup.policy have a meaning here.

        The leaders of its partitions are spread over the brokers. Those of reference data have one, as few brokers as
        possible for what follows them all the time.
        """
        batch_bytes_max = int(settings.get("max.message.bytes", BATCH_BYTES_MAX))
        compacted = settings.get("cleanup.policy") == "compact"
        nodes, before = sorted(self.registered), len(self.partitions)
        for number in range(partitions):
            turn = (before + (0 if topic.startswith("reference.") else number)) % len(nodes)
            replicas = tuple(nodes[turn:] + nodes[:turn])
            made = Partition(
                (topic, number), replicas, set(replicas), replicas[0], batch_bytes_max, compacted=compacted
            )
            self.partitions[topic, number] = made
            self._topics.setdefault(topic, []).append(made)

    def topic(self, name: str) -> list[Partition]:
        """The partitions of a topic in order; none if it does not exist."""
        return self._topics.get(name, [])

    def topic_of(self, topic_id: bytes) -> str | None:
        """The topic of an id."""
        return next((name for name in self._topics if topic_id_of(name) == topic_id), None)

    def led(self, target: Target, node: int) -> Partition | None:
        """A partition, if this broker leads it."""
        partition = self.partitions.get(target)
        return partition if partition is not None and partition.leader == node and node in self.alive else None

    def takes_appends(self, partition: Partition) -> bool:
        """Whether enough replicas are in sync for acks=all."""
        return len(partition.in_sync) >= self.min_in_sync

    def appended(self, partition: Partition) -> None:
        """Replicate what the leader has now, a little later."""
        end, epoch = partition.log.end, partition.epoch

        def fetched() -> None:
            if partition.epoch == epoch and partition.leader in self.alive:
                self._catch_up(partition, end)

        asyncio.get_running_loop().call_later(self._chance.uniform(*REPLICATION_S), fetched)

    def _catch_up(self, partition: Partition, end: int) -> None:
        followers = partition.in_sync - {partition.leader}
        # A follower that is gone holds the high watermark until the controller takes it out of the in-sync replicas
        if not followers or (not partition.held and followers <= self.alive):
            partition.advance(end)

    def hold(self, partition: Partition) -> None:
        """Have a partition's followers fetch nothing."""
        partition.held = True

    def release(self, partition: Partition) -> None:
        """Have them fetch again."""
        partition.held = False
        if partition.leader in self.alive:
            self._catch_up(partition, partition.log.end)

    def kill(self, node: int) -> None:
        """Kill a broker; the controller notices after its session."""
        self.alive.discard(node)
        asyncio.get_running_loop().call_later(SESSION_S, self._fence, node)

    def _fence(self, node: int) -> None:
        if node in self.alive:
            return
        self.registered.discard(node)
        for partition in self.partitions.values():
            left = partition.in_sync - {node}
            if left:
                partition.in_sync = left
            if partition.leader == node:
                self._elect(partition)
            elif partition.leader in self.alive:
                self._catch_up(partition, partition.log.end)

    def _elect(self, partition: Partition) -> None:
        able = [node for node in partition.replicas if node in partition.in_sync and node in self.alive]
        if able:
            self.move(partition, able[0])

    def start(self, node: int) -> None:
        """Start a broker again, with what it has on its disk."""
        self.alive.add(node)
        self.registered.add(node)
        for partition in self.partitions.values():
            if partition.leader == node or (partition.leader not in self.registered and node in partition.in_sync):
                self.move(partition, node)
        asyncio.get_running_loop().call_later(CAUGHT_UP_S, self._rejoin, node)

    def _rejoin(self, node: int) -> None:
        if node not in self.alive:
            return
        for partition in self.partitions.values():
            if node in partition.replicas and partition.leader in self.alive and not partition.held:
                partition.in_sync.add(node)
                self._catch_up(partition, partition.log.end)

    def move(self, partition: Partition, node: int) -> None:
        """Make an in-sync replica the leader."""
        lost = partition.log.end - partition.log.high_watermark if node != partition.leader else 0
        partition.lead(node)
        topic, number = partition.target
        self.note(f"broker-{node}", f"leads {topic}:{number} in epoch {partition.epoch}, {lost} records lost")
        for follow in self.on_leader:
            follow(partition)
        self._catch_up(partition, partition.log.end)
