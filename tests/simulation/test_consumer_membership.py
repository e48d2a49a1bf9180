"""Groups of the newer protocol on the simulated cluster, by requests that the project's client sends."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from shared.events import catalogue
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.admin.transaction_state import OFFSETS_TOPIC, partition_of
from shared.kafka.client.brokers import Brokers
from shared.kafka.client.requests import Request
from shared.kafka.protocol.codec import Values
from shared.kafka.runtime.transaction_requests import GroupMember
from tests.contract.helpers import producing
from tests.partitions import PARTITIONS
from tests.simulation.cluster import Partition
from tests.simulation.errors import (
    FENCED_MEMBER_EPOCH,
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    INVALID_REQUEST,
    NONE,
    NOT_COORDINATOR,
    STALE_MEMBER_EPOCH,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSTABLE_OFFSET_COMMIT,
    UNSUPPORTED_ASSIGNOR,
    UNSUPPORTED_VERSION,
)
from tests.simulation.world import SERVERS, World, history

GROUP, TOPIC, ID = "ledger", catalogue.LEDGER_TRANSFERS, "ledger-ledger.transfers-1"
EVERY = list(range(PARTITIONS))
SETTLED_S = 1.0
"""By then markers are written and replicated."""
FIRST = 2
"""The epoch of a group's first member."""


class Client:
    """Requests to the brokers of a world."""

    def __init__(self, world: World, brokers: Brokers) -> None:
        self.world = world
        self.brokers = brokers
        self.topic_id = b""

    @property
    def coordinated(self) -> Partition:
        topic = self.world.cluster.topic(OFFSETS_TOPIC)
        return topic[partition_of(GROUP, len(topic))]

    async def ask(self, api: str, version: int, values: Values, node: int | None = None) -> Values:
        """Ask the group's coordinator, or another broker."""
        node = self.coordinated.leader if node is None else node
        answer: Values = await self.brokers.ask(node, Request(api, version, values))
        return answer

    async def beat(
        self,
        epoch: int,
        owned: list[int],
        member_id: str = "a",
        node: int | None = None,
        others: Mapping[str, Any] | None = None,
    ) -> tuple[int, int, list[int]]:
        """Send a full heartbeat; returns code, epoch and the partitions assigned."""
        values = {
            "GroupId": GROUP,
            "MemberId": member_id,
            "MemberEpoch": epoch,
            "RebalanceTimeoutMs": 10_000,
            "SubscribedTopicNames": [TOPIC],
            "TopicPartitions": [{"TopicId": self.topic_id, "Partitions": owned}] if owned else [],
        }
        answer = await self.ask("ConsumerGroupHeartbeat", 1, values | dict(others or {}), node)
        found = answer["Assignment"] or {"TopicPartitions": []}
        numbers = [number for topic in found["TopicPartitions"] for number in topic["Partitions"]]
        return answer["ErrorCode"], answer["MemberEpoch"], numbers

    async def offset(self, *, stable: bool = True, version: int = 7) -> tuple[int, int]:
        """Code and offset of partition 1."""
        topics = [{"Name": TOPIC, "PartitionIndexes": [1]}]
        asked = {"GroupId": GROUP, "Topics": topics} | ({"RequireStable": stable} if version >= 7 else {})
        answer = await self.ask("OffsetFetch", version, asked)
        [part] = answer["Topics"][0]["Partitions"]
        return part["ErrorCode"], part["CommittedOffset"]

    async def commit(self, epoch: int, offset: int, *, member_id: str = "a", version: int = 9) -> int:
        """Commit an offset of partition 1."""
        part = {"PartitionIndex": 1, "CommittedOffset": offset, "CommittedMetadata": ""}
        values = {
            "GroupId": GROUP,
            "GenerationIdOrMemberEpoch": epoch,
            "MemberId": member_id,
            "Topics": [{"Name": TOPIC, "Partitions": [part]}],
        }
        answer = await self.ask("OffsetCommit", version, values)
        code: int = answer["Topics"][0]["Partitions"][0]["ErrorCode"]
        return code

    async def classic_join(self, member_id: str = "") -> Values:
        return await self.ask(
            "JoinGroup",
            4,
            {
                "GroupId": GROUP,
                "SessionTimeoutMs": 6000,
                "RebalanceTimeoutMs": 6000,
                "MemberId": member_id,
                "ProtocolType": "consumer",
                "Protocols": [{"Name": "range", "Metadata": b""}],
            },
        )


def clients(main: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    async def run(world: World) -> None:
        async with Brokers(SERVERS) as brokers:
            await brokers.view([TOPIC])
            client = Client(world, brokers)
            asked = {"Topics": [{"Name": TOPIC}], "AllowAutoTopicCreation": False}
            client.topic_id = (await client.ask("Metadata", 12, asked))["Topics"][0]["TopicId"]
            await main(client)

    history(run)


def test_topics_have_ids() -> None:
    async def main(client: Client) -> None:
        asked: list[Values] = [{"Name": name} for name in (TOPIC, "unknown")]
        asked += [{"Name": None, "TopicId": topic_id} for topic_id in (client.topic_id, b"u" * 16)]
        answer = await client.ask("Metadata", 12, {"Topics": asked, "AllowAutoTopicCreation": False})
        found = {(topic["Name"], topic["TopicId"]): topic["ErrorCode"] for topic in answer["Topics"]}
        assert found == {
            (TOPIC, client.topic_id): NONE,
            ("unknown", bytes(16)): UNKNOWN_TOPIC_OR_PARTITION,
            (None, b"u" * 16): UNKNOWN_TOPIC_ID,
        }
        features = await client.ask("ApiVersions", 3, {"ClientSoftwareName": "once", "ClientSoftwareVersion": "1"})
        assert ("group.version", 1) in {(one["Name"], one["MaxVersionLevel"]) for one in features["FinalizedFeatures"]}

    clients(main)


def test_a_member_joins_stays_and_leaves() -> None:
    async def main(client: Client) -> None:
        assert await client.beat(FIRST, EVERY) == (GROUP_ID_NOT_FOUND, 0, [])
        assert await client.beat(0, []) == (NONE, FIRST, EVERY)
        assert await client.beat(FIRST, EVERY) == (NONE, FIRST, EVERY)
        assert await client.beat(FIRST + 1, EVERY) == (FENCED_MEMBER_EPOCH, 0, [])
        assert await client.beat(FIRST, [], "b") == (UNKNOWN_MEMBER_ID, 0, [])
        assert await client.beat(-1, []) == (NONE, -1, [])
        assert await client.beat(0, []) == (NONE, FIRST + 2, EVERY)

    clients(main)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"TopicPartitions": None}, INVALID_REQUEST),
        ({"RebalanceTimeoutMs": -1}, INVALID_REQUEST),
        ({"SubscribedTopicNames": None}, INVALID_REQUEST),
        ({"MemberId": ""}, INVALID_REQUEST),
        ({"ServerAssignor": "sticky"}, UNSUPPORTED_ASSIGNOR),
    ],
)
def test_a_join_without_what_it_needs_is_refused(values: Values, code: int) -> None:
    async def main(client: Client) -> None:
        assert await client.beat(0, [], others=values) == (code, 0, [])
        assert await client.beat(FIRST, []) == (GROUP_ID_NOT_FOUND, 0, [])

    clients(main)


def test_the_next_coordinator_has_the_group_and_begins_its_sessions_again() -> None:
    async def main(client: Client) -> None:
        await client.beat(0, [])
        partition = client.coordinated
        before = partition.leader
        await asyncio.sleep(5)
        client.world.cluster.move(partition, next(node for node in partition.replicas if node != before))
        assert await client.beat(FIRST, EVERY, node=before) == (NOT_COORDINATOR, 0, [])
        await asyncio.sleep(5)
        assert await client.beat(FIRST, EVERY) == (NONE, FIRST, EVERY)
        await asyncio.sleep(7)
        assert await client.beat(FIRST, EVERY) == (UNKNOWN_MEMBER_ID, 0, [])

    clients(main)


def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets() -> None:
    async def main(client: Client) -> None:
        await set_group_offsets(SERVERS, GROUP, TOPIC, {1: 5})
        assert await client.beat(0, []) == (NONE, FIRST, EVERY)
        assert await client.offset() == (NONE, 5)
        described = await client.ask("DescribeGroups", 4, {"Groups": [GROUP]})
        assert described["Groups"][0]["GroupState"] == "Dead"
        described = await client.ask("ConsumerGroupDescribe", 1, {"GroupIds": [GROUP]})
        assert described["Groups"][0]["GroupState"] == "Stable"
        assert [member["MemberEpoch"] for member in described["Groups"][0]["Members"]] == [FIRST]
        await client.beat(-1, [])
        joined = await client.classic_join((await client.classic_join())["MemberId"])
        assert (joined["ErrorCode"], joined["GenerationId"]) == (NONE, 1)
        assert await client.offset() == (NONE, 5)
        assert await client.beat(0, []) == (GROUP_ID_NOT_FOUND, 0, [])
        described = await client.ask("ConsumerGroupDescribe", 1, {"GroupIds": [GROUP]})
        assert described["Groups"][0]["ErrorCode"] == GROUP_ID_NOT_FOUND

    clients(main)


def test_commits_name_the_member_epoch() -> None:
    async def main(client: Client) -> None:
        await client.beat(0, [])
        assert await client.commit(FIRST, 5) == NONE
        assert await client.commit(FIRST, 6, version=8) == UNSUPPORTED_VERSION
        assert await client.commit(FIRST + 1, 6) == STALE_MEMBER_EPOCH
        assert await client.commit(FIRST - 1, 6) == STALE_MEMBER_EPOCH
        assert await client.commit(FIRST, 6, member_id="b") == UNKNOWN_MEMBER_ID
        assert await client.commit(-1, 6, member_id="") == UNKNOWN_MEMBER_ID
        assert [await client.offset(version=version) for version in range(1, 8)] == [(NONE, 5)] * 7

    clients(main)


def test_offsets_of_an_open_transaction_are_unstable() -> None:
    async def main(client: Client) -> None:
        await set_group_offsets(SERVERS, GROUP, TOPIC, {1: 5})
        async with producing(SERVERS, ID) as producer:
            for commits in (False, True):
                await producer.begin()
                await producer.send_offsets(GroupMember(GROUP), {(TOPIC, 1): 9})
                assert await client.offset() == (UNSTABLE_OFFSET_COMMIT, -1)
                assert await client.offset(stable=False) == (NONE, 5)
                await (producer.commit() if commits else producer.abort())
                await asyncio.sleep(SETTLED_S)
                assert await client.offset() == (NONE, 9 if commits else 5)

    clients(main)


def test_stable_offsets_wait_until_earlier_writes_are_replicated() -> None:
    async def main(client: Client) -> None:
        await set_group_offsets(SERVERS, GROUP, TOPIC, {1: 5})
        partition = client.coordinated
        client.world.cluster.hold(partition)
        # A broker takes one request of a connection at a time
        async with Brokers(SERVERS) as writing, Brokers(SERVERS) as reading:
            for brokers in (writing, reading):
                await brokers.view([])
            commit = asyncio.create_task(Client(client.world, writing).commit(-1, 9, member_id=""))
            await asyncio.sleep(0.5)
            assert await client.offset(stable=False) == (NONE, 5)
            waiting = asyncio.create_task(Client(client.world, reading).offset())
            await asyncio.sleep(0.5)
            assert not waiting.done()
            client.world.cluster.release(partition)
            assert await waiting == (NONE, 9)
            assert await commit == NONE

    clients(main)


@pytest.mark.parametrize(
    ("epoch", "member_id", "code"),
    [
        (FIRST, "a", NONE),
        (FIRST + 1, "a", ILLEGAL_GENERATION),
        (FIRST - 1, "a", ILLEGAL_GENERATION),
        (FIRST, "b", UNKNOWN_MEMBER_ID),
        (-1, "", NONE),
    ],
)
def test_transactions_name_the_member_epoch(epoch: int, member_id: str, code: int) -> None:
    async def main(client: Client) -> None:
        await client.beat(0, [])
        coordinator = await client.ask("FindCoordinator", 1, {"Key": ID, "KeyType": 1})
        asked = {"TransactionalId": ID, "TransactionTimeoutMs": 10_000}
        given = await client.ask("InitProducerId", 1, asked, coordinator["NodeId"])
        own = {"TransactionalId": ID, "ProducerId": given["ProducerId"], "ProducerEpoch": given["ProducerEpoch"]}
        part = {"PartitionIndex": 1, "CommittedOffset": 9, "CommittedMetadata": ""}
        named = {"GroupId": GROUP, "GenerationId": epoch, "MemberId": member_id}
        answer = await client.ask(
            "TxnOffsetCommit", 5, own | named | {"Topics": [{"Name": TOPIC, "Partitions": [part]}]}
        )
        assert answer["Topics"][0]["Partitions"][0]["ErrorCode"] == code
        assert await client.offset() == ((UNSTABLE_OFFSET_COMMIT, -1) if code == NONE else (NONE, -1))

    clients(main)
