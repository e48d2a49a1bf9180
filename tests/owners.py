"""Owners of an input partition without a service: each test decides how their transactions end."""

from collections.abc import Iterable

from shared.eos.crash import CrashPoints
from shared.eos.records import Output
from shared.eos.store import Table
from shared.events import catalogue
from shared.events.headers import SOURCE, Coordinates
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Target
from shared.kafka.runtime.owned import OwnedPartition, now_ms
from shared.settings import RuntimeSettings
from tests.torn import OFFSETS, commit_parts, open_transaction

INPUT = catalogue.LEDGER_TRANSFERS


class Owner(OwnedPartition):
    """An owner of an input partition, whose state counts what it has processed.

    Args:
        brokers: where the cluster listens.
        group: its consumer group, which is the key of the records that it writes.
        partition: of the input.
        changelog: the topic of its state.
    """

    transaction_version_max = 1  # with version 2 a leader adds a partition that is left out here

    def __init__(self, brokers: str, group: str, partition: int, changelog: str) -> None:
        self.counts: Table[int] = Table(b"account/", lambda count: b"%d" % count, int, lambda count: count)
        settings = RuntimeSettings(bootstrap_servers=brokers)
        points = CrashPoints("", lambda _: None)
        super().__init__(group, INPUT, partition, changelog, self.counts, settings, points)

    @property
    def processed(self) -> int:
        """Number of processed records, from its state."""
        return self.counts.get("processed") or 0

    def _outputs(self) -> list[str]:
        return [topic.name for topic in catalogue.TOPICS]

    async def take_over(self) -> None:
        """Fence the predecessor, and recover."""
        await self.fence()
        await self.recover()

    async def fence(self) -> None:
        """Initialise the transactional.id."""
        await self._producer.init(30)

    async def recover(self) -> None:
        """Read offset and state, and complete a torn transaction."""
        recovered = await self._recover()
        self._next_offset = recovered.offset or 0

    async def prepare(self, targets: Iterable[Target], count: int) -> None:
        """Do a transaction except its end: `count` input records make a record in each of the partitions."""
        await self._fill(targets, count)
        await self._send(self._next_offset + count)

    async def commit(self, targets: Iterable[Target], count: int) -> None:
        """Do a whole transaction."""
        await self._fill(targets, count)
        await self._end(self._next_offset + count)

    async def prepare_unknown(self, targets: Iterable[Target], count: int, unknown: Target) -> None:
        """Prepare a transaction whose coordinator does not know of one partition, and so writes no marker there.

        The brokers must not verify (`tests.hanging.unverified`).
        """
        await self._fill(targets, count)
        self._producer._added.add(unknown)  # treated as added
        await self._send(self._next_offset + count)

    async def prepare_behind(self, targets: Iterable[Target], count: int) -> None:
        """Do another transaction except its end, while the prepared one has ended in some parts only."""
        self._next_offset += count
        self.counts.commit()
        self._stamp_ms = self._begun_ms = max(now_ms(), self._stamp_ms + 1)
        self._append_all(targets, count)
        await self._send(self._next_offset + count)

    async def _fill(self, targets: Iterable[Target], count: int) -> None:
        await self._begin()
        self._append_all(targets, count)

    def _append_all(self, targets: Iterable[Target], count: int) -> None:
        places = list(targets)
        for offset in range(self._next_offset, self._next_offset + count):
            source = Coordinates(INPUT, self._partition, offset).encode()
            self._append(Output(*target, self._group.encode(), source, ((SOURCE, source),)) for target in places)
        self.counts.put("processed", self.processed + count)
        self._append_state(self._next_offset + count)

    async def tear(self, brokers: Brokers, *committed: Target) -> None:
        """Commit parts of the prepared transaction past its coordinator, and discard the producer."""
        await self.commit_some(brokers, *committed)
        await self.let_go()

    async def commit_some(self, brokers: Brokers, *committed: Target, offsets: bool = False) -> None:
        """Commit parts of the prepared transaction past its coordinator.

        Args:
            brokers: connections.
            committed: partitions.
            offsets: whether the group's offset is committed as well.
        """
        transaction = await open_transaction(brokers, self._producer.transactional_id)
        more = [target for target in transaction.partitions if offsets and target[0] == OFFSETS]
        await commit_parts(brokers, transaction, [*committed, *more])

    async def let_go(self) -> None:
        """Discard the producer, as a killed process does."""
        await self._producer.discard()

    async def abort(self) -> None:
        """Abort the open transaction."""
        await self._producer.abort()
        self.counts.rollback()
