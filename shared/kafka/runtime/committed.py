"""A consumer group member for a framework that has its own loop: committed records only, from offsets that are given.

Invariant: it gives committed records whatever the framework's settings are. A partition never begins at the group's
committed offset, because the caller keeps its positions elsewhere. Each page says where it was read from and where the
next one begins, so that a page lost on its way is noticed.
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
from shared.kafka.client.consumer import PatientConsumer
from shared.kafka.client.leaving import abandon

FETCH_BYTES: Final = 1024 * 1024  # per partition and request: a bound on what waits in memory
REBALANCE_TIMEOUT_MS: Final = 30_000
FETCH_WAIT_MS: Final = 100  # a fetch under way blocks its broker's other partitions, so an empty one must be short
POLL_INTERVAL_MAX_MS: Final = 900_000  # a member that does not poll for so long gives its partitions to others
POLL_RECORDS_MAX: Final = 2000  # of all partitions: a bound on what is in memory and on how long unpacking takes

log = logging.getLogger(__name__)


class CommittedPage(NamedTuple):
    """The result of one poll of one partition; without records if only markers were passed."""

    target: Target
    start: int  # where it was read from
    next_offset: int  # where the next page begins, behind markers and aborted records
    records: list[Record]


def committed_consumer(
    bootstrap_servers: Bootstrap, *, group: str, instance: str, session_timeout_ms: int
) -> PatientConsumer:
    """Make the consumer of a static group member (KIP-345), not started.

    The instance is unique in the group and stable over restarts, so that it has its partitions back at once. Without a
    heartbeat for `session_timeout_ms` the group gives them to others.
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
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        max_partition_fetch_bytes=FETCH_BYTES,
        max_poll_interval_ms=POLL_INTERVAL_MAX_MS,
        max_poll_records=POLL_RECORDS_MAX,
        fetch_max_wait_ms=FETCH_WAIT_MS,
    )


class Pages:
    """The pages of a member's partitions, from a consumer of `committed_consumer`."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._member_id = ""
        self._next: dict[TopicPartition, int] = {}
        self._assignment: object | None = None  # a new one with each; None from a revocation on

    @property
    def removed(self) -> bool:
        """Whether the group has removed this member.

        Ask whenever partitions are revoked or assigned. A member that is removed while it joins has given its
        partitions away already, and the client joins again under another id without an error.
        """
        member_id = self._consumer._coordinator.member_id  # noqa: SLF001 # no public access
        return bool(self._member_id) and member_id != self._member_id

    async def abandon(self) -> None:
        """Close the connections of a member that the group has removed, and nothing else."""
        await abandon(self._consumer)

    def hold(self, assigned: Iterable[Target]) -> None:
        """Partitions were assigned: none of them is read before it begins."""
        self._member_id = self._consumer._coordinator.member_id  # noqa: SLF001 # as above
        self._next.clear()
        self._assignment = object()
        self._consumer.pause(*(TopicPartition(*target) for target in assigned))

    def release(self) -> None:
        """Partitions were revoked."""
        self._next.clear()
        self._assignment = None

    async def begin(self, offsets: Mapping[Target, int]) -> None:
        """Begin partitions at offsets, also those that were read already. Revoked ones are left out.

        None begins in a rebalance, because the client forgets the seek: begin them after `hold`. Raises KafkaError if
        the group refuses this member.
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
            # The client looked for the group's offset by itself, and may still have to report that there is none
            with contextlib.suppress(NoOffsetForPartitionError):
                await self._consumer.getmany(target, timeout_ms=0)
        if assignment is self._assignment:
            self._next.update(begun)
            self._consumer.resume(*begun)

    async def poll(self, timeout_ms: int) -> list[CommittedPage]:
        """Poll partitions that have begun, for at most `timeout_ms`; a page may have passed markers only.

        Raises KafkaError if the group refuses this member, or an offset is out of range.
        """
        polled: Mapping[TopicPartition, list[Any]] = {}
        # The group has no offset for partitions that have not begun; the others need none
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
        """Commit offsets for lag monitoring; return whether it succeeded. The next commit makes up for a failed one."""
        try:
            await self._consumer.commit({TopicPartition(*target): offset for target, offset in offsets.items()})
        except KafkaError as error:
            log.debug("offsets not committed", extra={"reason": repr(error)})
            return False
        return True
