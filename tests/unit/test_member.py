"""A member whose topic was deleted and made again while it had nothing to fetch."""

import asyncio
from typing import Any

import pytest

from shared.eos.errors import RejoinError
from shared.kafka.client.requests import Request
from shared.kafka.runtime.member import Member

TOPIC = "input"


class ClusterInMemory:
    """A cluster with one group and one topic, whose id changes."""

    def __init__(self) -> None:
        self.topic_id, self.next_id = "first", "second"

    async def retry(self, attempt: Any, _: str) -> Any:
        return await attempt()

    async def send_to_any(self, _: Request) -> Any:
        return {"Topics": [{"ErrorCode": 0, "TopicId": self.topic_id}]}

    async def coordinator(self, _: str) -> int:
        return 0

    async def send(self, *_: object, **__: object) -> Any:
        partitions = [{"TopicId": self.topic_id, "Partitions": [0, 1]}] if self.topic_id else []
        self.topic_id, self.next_id = ("", self.next_id) if partitions else (self.next_id, "")
        assignment = {"TopicPartitions": partitions}
        return {"ErrorCode": 0, "MemberEpoch": 1, "HeartbeatIntervalMs": 1, "Assignment": assignment}


async def test_a_topic_that_was_made_again_ends_the_membership() -> None:
    """Its offsets are others. Without an error, the member would wait for partitions of the topic that is gone."""
    assigned: list[set[int]] = []

    async def revoked(_: set[int]) -> None:
        pass

    cluster: Any = ClusterInMemory()
    member = Member(cluster, "group", TOPIC, "group-0", assigned.append, revoked)
    async with asyncio.timeout(10):
        with pytest.raises(RejoinError, match="topic input was deleted"):
            await member.run()
    assert assigned == [{0, 1}]
