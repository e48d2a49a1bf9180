"""Owners of input partitions without a service: each test decides how their transactions end."""

from collections.abc import Collection, Iterable, Sequence

from deploy.drills.tearing import OFFSETS, commit_parts, open_transaction
from shared.eos.crash import CrashPoints
from shared.eos.records import Output
from shared.eos.store import Table
from shared.events import catalogue
from shared.events.headers import SOURCE, Coordinates
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.cluster import Target
from shared.kafka.runtime.scope import TransactionScope, now_ms
from shared.kafka.runtime.task import Task
from shared.kafka.runtime.transaction_requests import GroupMember
from shared.settings import RuntimeSettings

INPUT = catalogue.LEDGER_TRANSFERS


class Owner:
    """An owner of input partitions in one scope, whose states count what it has processed.

    Args:
        brokers: where the cluster listens.
        group: its consumer group, which is the key of the records that it writes.
        partitions: of the input.
        changelog: the topic of its states.
        name: of the instance, for its transactional.id; the first partition's by default.
        member: of the group, for the offsets.
        version_max: with version 2 a leader adds a partition that is left out.

    Attributes:
        counts: the states, by partition.
        tasks: likewise.
    """

    def __init__(
        self,
        brokers: str,
        group: str,
        partitions: Sequence[int],
        changelog: str,
        *,
        name: str = "",
        member: GroupMember | None = None,
        version_max: int = 1,
    ) -> None:
        self._group = group
        self.counts = {partition: _counts() for partition in partitions}
        self.tasks = {
            partition: Task(group, (INPUT, partition), changelog, counts) for partition, counts in self.counts.items()
        }
        self.member = GroupMember(group) if member is None else member
        self.scope = TransactionScope(
            group,
            INPUT,
            f"{group}-{name or f'{INPUT}-{partitions[0]}'}",
            RuntimeSettings(bootstrap_servers=brokers),
            CrashPoints("", lambda _: None),
            lambda: self.member,
            outputs=[topic.name for topic in catalogue.TOPICS],
            version_max=version_max,
        )

    def processed_of(self, partition: int) -> int:
        """Number of processed records of a partition, from its state."""
        return self.counts[partition].get("processed") or 0

    @property
    def processed(self) -> int:
        """Number of processed records of all partitions."""
        return sum(map(self.processed_of, self.counts))

    async def take_over(self) -> None:
        """Fence the predecessor, and recover."""
        await self.fence()
        await self.recover()

    async def fence(self) -> None:
        """Initialise the transactional.id."""
        await self.scope.init()

    async def recover(self) -> None:
        """Read offsets and states, and complete torn transactions."""
        for task in self.tasks.values():
            torn = await self.scope.recover(task, skips_processed=False)
            if torn is not None:
                await self.scope.complete(task, torn)

    async def process(self, targets: Iterable[Target], count: int) -> None:
        """Begin a transaction: `count` records of each input partition make one in each target. Nothing is sent."""
        await self.scope.begin()
        self._process(targets, count, self.tasks)

    async def prepare(self, targets: Iterable[Target], count: int, partitions: Collection[int] | None = None) -> None:
        """Do a transaction except its end, over all input partitions or some of them."""
        await self.scope.begin()
        await self.prepare_begun(targets, count, partitions)

    async def commit(self, targets: Iterable[Target], count: int) -> None:
        """Do a whole transaction."""
        await self.scope.begin()
        await self.scope.commit(self._process(targets, count, self.tasks))

    async def prepare_unknown(self, targets: Iterable[Target], count: int, unknown: Target) -> None:
        """Prepare a transaction whose coordinator does not know of one partition, and so writes no marker there.

        The brokers must not verify (`deploy.drills.hanging.unverified`).
        """
        await self.scope.begin()
        self.scope.producer._added.add(unknown)  # treated as added
        await self.prepare_begun(targets, count)

    async def prepare_behind(self, targets: Iterable[Target], count: int) -> None:
        """Do another transaction except its end, while the prepared one has ended in some parts only."""
        for task in self.tasks.values():
            task.commit()
        self.scope._stamp_ms = self.scope._begun_ms = max(now_ms(), self.scope._stamp_ms + 1)
        await self.prepare_begun(targets, count)

    async def prepare_begun(
        self, targets: Iterable[Target], count: int, partitions: Collection[int] | None = None
    ) -> None:
        """Do the rest of a transaction that has begun, except its end."""
        progress = self._process(targets, count, self.tasks if partitions is None else partitions)
        self.scope._close(progress, lambda *_: (), None)
        await self.scope._send(progress)

    def _process(self, targets: Iterable[Target], count: int, partitions: Collection[int]) -> dict[Task, int]:
        places, progress = list(targets), {}
        for partition in partitions:
            task = self.tasks[partition]
            first = task.next_offset
            for offset in range(first, first + count):
                source = Coordinates(INPUT, partition, offset).encode()
                outputs = [Output(*target, self._group.encode(), source, ((SOURCE, source),)) for target in places]
                self.scope.append(task, outputs)
            self.counts[partition].put("processed", self.processed_of(partition) + count)
            progress[task] = first + count
        return progress

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
        transaction = await open_transaction(brokers, self.scope.producer.transactional_id)
        more = [target for target in transaction.partitions if offsets and target[0] == OFFSETS]
        await commit_parts(brokers, transaction, [*committed, *more])

    async def let_go(self) -> None:
        """Discard the producer, as a killed process does."""
        await self.scope.close()

    async def abort(self) -> None:
        """Abort the open transaction."""
        await self.scope.abort(self.tasks.values())


def _counts() -> Table[int]:
    return Table(b"account/", lambda count: b"%d" % count, int, lambda count: count)
