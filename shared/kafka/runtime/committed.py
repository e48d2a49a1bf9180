"""A consumer group's member for a framework that brings its own loop: committed records only, begun where it is told.

What holds: it gives committed records whatever the framework's settings are; where a partition begins is never the
group's committed offset, for whoever uses it keeps its positions elsewhere; each page says where it was read from and
where the next one begins, so that a page lost on its way is noticed. It must not know what the records are for.
"""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError, NoOffsetForPartitionError

from shared.eos.records import Record
from shared.kafka.client.access import Bootstrap, client_options
from shared.kafka.client.cluster import Target
from shared.kafka.client.leaving import abandon
from shared.kafka.client.patience import PatientConsumer
from shared.kafka.runtime.session import FETCH_BYTES, REBALANCE_TIMEOUT_MS

FETCH_WAIT_MS: Final = 100  # a fetch under way blocks its broker's other partitions, so an empty one must be short
POLL_INTERVAL_MAX_MS: Final = 900_000  # one that stands for so long gives its partitions to others
POLL_RECORDS_MAX: Final = 2000
"""Records of all partitions that one poll gives: a bound on what is in memory and on how long unpacking takes."""

log = logging.getLogger(__name__)


class CommittedPage(NamedTuple):
    """What one poll gave of one partition; there may be no records, where only markers were passed.

    Attributes:
        start: where it was read from.
        next_offset: where the next page begins, markers and aborted records passed over.
    """

    target: Target
    start: int
    next_offset: int
    records: list[Record]


def committed_consumer(
    bootstrap_servers: Bootstrap, *, group: str, instance: str, session_timeout_ms: int
) -> PatientConsumer:
    """The member's consumer, not started.

    Args:
        bootstrap_servers: brokers, comma separated, or an `Access`.
        group: the consumer group.
        instance: unique in the group and stable over restarts, so that it has its partitions back at once (KIP-345).
        session_timeout_ms: without a heartbeat for this long, the group gives the partitions to others.
    """
    return PatientConsumer(
        **client_options(bootstrap_servers),
        client_id=f"{group}-{instance}",
        group_id=group,
        group_instance_id=f"{group}-{instance}",
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",  # an offset that is no longer there must not be passed over
        partition_assignment_strategy=(StickyPartitionAssignor,),
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 6,
        max_poll_interval_ms=POLL_INTERVAL_MAX_MS,
        max_poll_records=POLL_RECORDS_MAX,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        max_partition_fetch_bytes=FETCH_BYTES,
        fetch_max_wait_ms=FETCH_WAIT_MS,
    )


class Pages:
    """The pages of a member's partitions.

    Args:
        consumer: as `committed_consumer` makes it.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._member_id = ""
        self._next: dict[TopicPartition, int] = {}
        self._assignment: object | None = None  # a new one with each; None from a revocation on

    @property
    def removed(self) -> bool:
        """Whether the group has forgotten this member.

        Asked whenever partitions are taken away or assigned: a member that is forgotten while it joins has given its
        partitions away already, and the client joins anew, under another id, without a word.
        """
        member_id = self._consumer._coordinator.member_id  # noqa: SLF001 # the client tells nobody else
        return bool(self._member_id) and member_id != self._member_id

    async def abandon(self) -> None:
        """Close the connections of a member that the group has removed, and nothing else."""
        await abandon(self._consumer)

    def hold(self, assigned: Iterable[Target]) -> None:
        """Partitions were assigned anew: nothing is read of them before they begin."""
        self._member_id = self._consumer._coordinator.member_id  # noqa: SLF001 # as above
        self._next.clear()
        self._assignment = object()
        self._consumer.pause(*(TopicPartition(*target) for target in assigned))

    def release(self) -> None:
        """Partitions were taken away."""
        self._next.clear()
        self._assignment = None

    async def begin(self, offsets: Mapping[Target, int]) -> None:
        """Let partitions begin at offsets, anew where they were read already. Those taken away are left out.

        In a rebalance none begins: the client has forgotten what was sought, and they are to begin after `hold`.

        Raises:
            KafkaError: the group refuses this member.
        """
        assignment, held = self._assignment, self._consumer.assignment()
        if assignment is None:
            return
        begun = {TopicPartition(*target): offset for target, offset in offsets.items() if target in held}
        self._consumer.pause(*begun)
        for target, offset in begun.items():
            self._next.pop(target, None)
            self._consumer.seek(target, offset)
        for target in begun:
            # The client looked for the group's offset by itself and may have noted that there is none: that is settled
            with contextlib.suppress(NoOffsetForPartitionError):
                await self._consumer.getmany(target, timeout_ms=0)
        if assignment is self._assignment:
            self._next.update(begun)
            self._consumer.resume(*begun)

    async def poll(self, timeout_ms: int) -> list[CommittedPage]:
        """What came, or what was passed over, of partitions that have begun; nothing after `timeout_ms`.

        Raises:
            KafkaError: the group refuses this member, or an offset is out of range.
        """
        polled: Mapping[TopicPartition, list[Any]] = {}
        # That the group has no offset is said of partitions that have not begun: those that have need none
        with contextlib.suppress(NoOffsetForPartitionError):
            polled = await self._consumer.getmany(timeout_ms=timeout_ms)
        held = self._consumer.assignment()
        pages = []
        for target, start in list(self._next.items()):
            if target not in held:
                continue
            next_offset = await self._consumer.position(target)
            if next_offset > start:
                self._next[target] = next_offset
                records = [
                    Record(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)
                    for r in polled.get(target, ())
                ]
                pages.append(CommittedPage((target.topic, target.partition), start, next_offset, records))
        return pages

    async def tell(self, offsets: Mapping[Any, int]) -> bool:
        """Commit offsets for those who watch the group; one that fails is made up for by the next.

        Returns:
            Whether they were committed.
        """
        try:
            await self._consumer.commit({TopicPartition(*target): offset for target, offset in offsets.items()})
        except KafkaError as error:
            log.debug("offsets not committed", extra={"reason": repr(error)})
            return False
        return True
