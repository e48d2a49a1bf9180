"""A member of a consumer group, by the newer protocol (KIP-848): one heartbeat request for all that a member does.

The coordinator assigns, and the member follows one partition at a time: partitions that stay are never interrupted.

1. A heartbeat with epoch 0 joins. The answer, as each later one, has the partitions that the member shall have.
2. Those that it shall no longer have are given back: `revoked` returns when their transactions have ended, and the next
   heartbeat, with fewer owned partitions, releases them to others.
3. Those that are new are passed to `assigned`, once no other member has them.
4. A heartbeat with epoch -1 leaves: others get the partitions at once.

A group whose members speak the older protocol is converted when the first member of the newer one joins. Brokers with
group.consumer.migration.policy=disabled refuse that until the group is empty, and the member waits.

Invariant: a partition is released only after `revoked` has returned. The member's id is its instance's, so a process
that is started again has its partitions back at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from aiokafka.errors import KafkaError

from shared.eos.errors import FatalError, RejoinError
from shared.kafka.client.cluster import Cluster, check
from shared.kafka.client.errors import GroupIdNotFoundError, error_for, error_name, is_denied, is_retriable
from shared.kafka.client.measured import REMOVALS
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values
from shared.kafka.runtime.transaction_requests import GroupMember
from shared.telemetry import metrics

REBALANCE_TIMEOUT_MS: Final = 30_000
"""A member that does not give a partition back for so long is removed."""
RETRY_BACKOFF_S: Final = 0.1
CLASSIC_S: Final = 0.5
"""How often a member that joins asks whether the members of the older protocol are gone."""
LEAVE_S: Final = 2.0
"""A coordinator that does not answer removes the member when its session ends."""
_JOINS: Final = 0
_LEAVES: Final = -1
_REMOVED: Final = (*REMOVALS, GroupIdNotFoundError.__name__)

log = logging.getLogger(__name__)


class Member:
    """One instance's membership of a group that consumes one topic.

    Args:
        cluster: an open connection.
        member_id: unique in the group, stable over restarts.
        assigned: called with partitions that the member has from now on.
        revoked: called with partitions to give back; it returns when no transaction with them is open.
    """

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topic: str,
        member_id: str,
        assigned: Callable[[set[int]], None],
        revoked: Callable[[set[int]], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._topic = topic
        self._topic_id = ""
        self._member_id = member_id
        self._assigned = assigned
        self._revoked = revoked
        self._epoch = _JOINS
        self._known = False  # whether the coordinator may know the member
        self._coordinator: int | None = None
        self._owned: set[int] = set()
        self._wanted: set[int] | None = None
        self._interval_s = 1.0
        self._wake = asyncio.Event()
        self._revoking: asyncio.Task[None] | None = None
        self.waits_for = ""  # what keeps it from joining, for the operator

    @property
    def identity(self) -> GroupMember:
        """The member, for the offsets of a transaction."""
        return GroupMember(self._group, self._member_id, self._epoch)

    @property
    def settled(self) -> bool:
        """Whether it has joined, and has exactly the partitions that it shall have."""
        return self._wanted == self._owned

    def beat(self) -> None:
        """Have the next heartbeat sent now: its answer brings the member's present epoch."""
        self._wake.set()

    async def run(self) -> NoReturn:
        """Join, and send heartbeats until it is cancelled.

        Raises:
            RejoinError: the group has removed this member.
            KafkaError: the group refuses it for another reason, or a right is missing (`is_denied`).
        """
        try:
            await self._learn_topic_id()
            while True:
                await self._beat()
        finally:
            if self._revoking is not None:
                self._revoking.cancel()

    async def _beat(self) -> None:
        """Send a heartbeat, begin what its answer asks for, and wait until the next one is due."""
        self._wake.clear()
        response = await self._heartbeat(self._epoch)
        if self._revoking is not None and self._revoking.done():
            self._revoking.result()
            self._revoking = None
        self._follow(response)
        with contextlib.suppress(TimeoutError):  # the usual time for a heartbeat
            async with asyncio.timeout(self._interval_s):
                await self._wake.wait()

    async def leave(self) -> None:
        """Leave the group, if the coordinator answers within LEAVE_S. End `run` before."""
        if not self._known:
            return
        self._owned = set()
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._heartbeat(_LEAVES)
        except (KafkaError, RejoinError, FatalError, TimeoutError) as error:
            log.info("group not left: its session ends instead", extra={"reason": repr(error)})

    async def _learn_topic_id(self) -> None:
        async def attempt() -> str:
            asked = {"Topics": [{"Name": self._topic}], "AllowAutoTopicCreation": False}
            (topic,) = (await self._cluster.send_to_any(Request("Metadata", 12, asked)))["Topics"]
            check(topic["ErrorCode"], self._topic)
            found: str = topic["TopicId"]
            return found

        self._topic_id = await self._cluster.retry(attempt, f"the id of topic {self._topic} cannot be read")

    async def _heartbeat(self, epoch: int) -> Values:
        """Send one heartbeat until it is answered."""
        while True:
            try:
                if self._coordinator is None:
                    self._coordinator = await self._cluster.coordinator(self._group)
                request = Request("ConsumerGroupHeartbeat", 1, self._values(epoch))
                self._known = True
                response: Values = await self._cluster.send(self._coordinator, request, coordination=True)
                if response["ErrorCode"]:
                    raise error_for(response["ErrorCode"])(response["ErrorMessage"] or self._group)
            except KafkaError as error:
                if epoch == _JOINS and isinstance(error, GroupIdNotFoundError):
                    await self._wait_for_classic(error)
                    continue
                if error_name(error) in _REMOVED:
                    self._known = False
                    if epoch != _LEAVES:
                        metrics.FENCED.labels("ConsumerGroupHeartbeat", error_name(error)).inc()
                    raise RejoinError(f"the group removed this member: {error_name(error)}") from error
                if is_denied(error) or not is_retriable(error):
                    raise
                self._coordinator = None
                await asyncio.sleep(RETRY_BACKOFF_S)
            else:
                self.waits_for = ""
                return response

    async def _wait_for_classic(self, error: GroupIdNotFoundError) -> None:
        """Wait before the next attempt to join a group whose members speak the older protocol."""
        if not self.waits_for:
            log.warning("waiting for members of the older protocol to leave", extra={"reason": str(error)})
        self.waits_for = f"group {self._group} has members that speak the older protocol"
        await asyncio.sleep(CLASSIC_S)

    def _values(self, epoch: int) -> Values:
        """All fields each time: the answer then has the whole assignment."""
        owned = [{"TopicId": self._topic_id, "Partitions": sorted(self._owned)}] if self._owned else []
        return {
            "GroupId": self._group,
            "MemberId": self._member_id,
            "MemberEpoch": epoch,
            "RebalanceTimeoutMs": REBALANCE_TIMEOUT_MS,
            "SubscribedTopicNames": [self._topic],
            "TopicPartitions": owned,
        }

    def _follow(self, response: Values) -> None:
        """Take note of an answer, and begin what it asks for."""
        self._epoch = response["MemberEpoch"]
        self._interval_s = response["HeartbeatIntervalMs"] / 1000
        if response["Assignment"] is None:
            return
        topics = response["Assignment"]["TopicPartitions"]
        if any(topic["TopicId"] != self._topic_id for topic in topics):
            raise RejoinError(f"topic {self._topic} was deleted, and is another one now")
        self._wanted = {partition for topic in topics for partition in topic["Partitions"]}
        if self._revoking is not None:
            return
        gone, new = self._owned - self._wanted, self._wanted - self._owned
        if new:
            self._owned |= new
            self._assigned(new)
            self._wake.set()
        if gone:
            self._revoking = asyncio.create_task(self._give_back(gone), name=f"{self._group}-revoke")

    async def _give_back(self, partitions: set[int]) -> None:
        try:
            await self._revoked(partitions)
            self._owned -= partitions
        finally:
            self._wake.set()
